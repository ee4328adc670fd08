# Races on CPUs: docker build -t backbay . && docker run --rm backbay race --backends eager,inductor
FROM python:3.11-slim-bookworm

# Inductor compiles C++.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

WORKDIR /backbay
COPY . .

# The CPU build of PyTorch; on Linux, the default index has the build for CUDA.
RUN pip install --no-cache-dir -c constraints.txt --index-url https://download.pytorch.org/whl/cpu torch
RUN pip install --no-cache-dir -c constraints.txt './packages/backbay[race,models,torch]' ./packages/backbay-optimizer ./packages/backbay-conformance

RUN useradd --create-home racer
USER racer
WORKDIR /home/racer

ENTRYPOINT ["backbay"]
CMD ["list"]
