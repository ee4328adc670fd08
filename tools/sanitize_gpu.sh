#!/usr/bin/env bash
# Runs the tests of our own GPU kernels under NVIDIA's compute-sanitizer.
#
#     [TOOLS="memcheck racecheck"] [WORKERS=0] bash tools/sanitize_gpu.sh [PYTHON]
#
# memcheck finds accesses out of bounds, with PyTorch's own pool of memory switched off, in which
# they would hit a neighbour; racecheck finds races in shared memory. It ends with 9 if one is found.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in ${TOOLS:-memcheck racecheck}; do
  echo "== $tool"
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
    --target-processes all "${1:-python3}" -m pytest -q -p no:cacheprovider -n "${WORKERS:-0}" \
    packages/backbay/tests/gpu/test_silu_gpu.py -k "not captured" # a capture must not allocate, and without the pool everything allocates
done
