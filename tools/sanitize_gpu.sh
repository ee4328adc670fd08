#!/usr/bin/env bash
# Runs the tests of our own GPU kernels under NVIDIA's compute-sanitizer.
#
#     [TOOLS="memcheck racecheck"] [WORKERS=0] bash tools/sanitize_gpu.sh [PYTHON]
#
# memcheck finds accesses out of bounds, with PyTorch's own pool of memory switched off, in which
# they would hit a neighbour; racecheck finds races in shared memory. It ends with 9 if one is found.
# racecheck counts as a race that two threads write the same value to the same place, as Triton has them
# do where a table has fewer elements than a program has threads: so it finds one in group norm's gradient.
set -euo pipefail
cd "$(dirname "$0")/.."
run() { # TOOL PYTHON TESTS WHICH
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 \
    --target-processes all "$2" -m pytest -q -p no:cacheprovider -n "${WORKERS:-0}" "$3" -k "$4"
}
optimizer=packages/backbay-optimizer/tests/gpu
for tool in ${TOOLS:-memcheck racecheck}; do
  echo "== $tool"
  # A capture must not allocate, and without the pool everything allocates.
  run "$tool" "${1:-python3}" packages/backbay/tests/gpu/test_silu_gpu.py "not captured"
  for kernel in group_norm_silu depthwise_convolution linear_epilogue; do
    run "$tool" "${1:-python3}" $optimizer/test_${kernel}_gpu.py "stray or misread"
  done
  # Not at the sizes of whole models, where a kernel takes a hundred times as long under a tool.
  for kernel in batch_norm max_pool embedding row_norm few_row_linears float8_rows \
    linear_cross_entropy rotated_heads softmax; do
    run "$tool" "${1:-python3}" $optimizer/test_${kernel}_gpu.py \
      "(stray or misread or torchs or references) and not (128 or test_backbay)"
  done
done
