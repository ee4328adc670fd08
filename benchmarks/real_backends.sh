#!/usr/bin/env bash
# What `backbay doctor --probe` says with third-party backends really installed, one after the other.
#
#     bash benchmarks/real_backends.sh [FOLDER]
#
# Each is installed beside the torch that is here, into a folder of its own (1.2 GB in all).
set -euo pipefail
folder=${1:-$(mktemp -d)}
python=${PYTHON:-python}

date -u +%Y-%m-%d
for package in openvino==2026.4.1 apache-tvm==0.27.0.post1 iree-turbine==3.9.0; do
  place="$folder/${package%%==*}"
  [ -d "$place" ] || "$python" -m pip install -q --target "$place" "$package"
  printf '\n== %s\n' "$package"
  PYTHONPATH="$place" "$python" -m backbay doctor --probe --fresh
done
