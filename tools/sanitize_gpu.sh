#!/usr/bin/env bash
# Runs the tests of our own GPU kernels under NVIDIA's compute-sanitizer, a process for each kernel.
#
#     [TOOLS="memcheck racecheck"] [WORKERS=1] [ONLY=EXPRESSION] [PYTHON=python3]
#     bash tools/sanitize_gpu.sh [KERNEL ...]
#
# memcheck finds accesses out of bounds, with PyTorch's own pool of memory switched off, in which
# they would hit a neighbour; racecheck finds races in shared memory. WORKERS processes run at once. A
# line of each says what ran and what the tool found, all is in a folder named at the end; it ends with
# another code than 0 if one failed. ONLY is what pytest's -k takes: it leaves fewer of their tests.
# racecheck counts as a race that two threads write the same value to the same place, as Triton has them
# do where a table has fewer elements than a program has threads: so it finds one in group norm's gradient.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
every="silu group_norm_silu depthwise_convolution linear_epilogue batch_norm max_pool embedding row_norm
  few_row_linears float8_rows linear_cross_entropy rotated_heads softmax"
for kernel in "$@"; do
  [[ " $(echo $every) " == *" $kernel "* ]] || { echo "no kernel is called $kernel; there are:" $every && exit 2; }
done
logs=$(mktemp -d)
export logs

tests() { # KERNEL: which of a kernel's tests run
  case $1 in
    silu) echo "not captured" ;; # a capture must not allocate, and without the pool everything allocates
    # Not products: racecheck finds races within NVIDIA's kernels for them.
    group_norm_silu | depthwise_convolution | linear_cross_entropy) echo "stray or misread" ;;
    # Not at the sizes of whole models, where a kernel takes a hundred times as long under a tool.
    linear_epilogue) echo "(stray or misread) and not (196 or 3072)" ;;
    few_row_linears) echo "(stray or misread) and not large" ;;
    *) echo "(stray or misread or torchs or references) and not (128 or test_backbay)" ;;
  esac
}

run() { # TOOL KERNEL
  local file=packages/backbay-optimizer/tests/gpu/test_$2_gpu.py log=$logs/$1-$2.txt said=ok
  [[ $2 == silu ]] && file=packages/backbay/tests/gpu/test_silu_gpu.py
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 \
    --target-processes all "${PYTHON:-python3}" -m pytest -q -p no:cacheprovider "$file" \
    -k "($(tests "$2")) and (${ONLY:-test})" >"$log" 2>&1 || said="FAILED, exit code $?"
  echo "$1, $2: $said; $(grep -E ' (passed|failed|skipped|error).* in |SUMMARY' "$log" | tail -n 2 | paste -sd ';')"
  [[ $said == ok ]]
}

export -f tests run
for tool in ${TOOLS:-memcheck racecheck}; do
  printf "$tool %s\n" ${*:-$every}
done | xargs -P "${WORKERS:-1}" -L 1 bash -c 'run "$@"' _
code=$?
echo "logs: $logs"
exit $code
