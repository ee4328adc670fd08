#!/usr/bin/env bash
# Proves and times everything that needs a GPU; writes logs, JSON and pages to the folder given.
#
#     bash benchmarks/race_gpu.sh OUT [DEVICE]
#
# One CUDA GPU, about nine minutes on an H200. Every step runs even if one before it failed; the exit code says
# whether all were fine.
set -uo pipefail
out=$1
device=${2:-cuda}
mkdir -p "$out"
failed=0

step() { # NAME COMMAND...: run a step, keep its output, say how long it took
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.txt" 2>&1; then echo "$name: ok, $((SECONDS - start)) s"; else
    echo "$name: FAILED, $((SECONDS - start)) s"
    tail -n 15 "$out/$name.txt"
    failed=1
  fi
}

backbay() { python3 -c 'from backbay.cli import main; main()' "$@"; }

race() { # NAME ARGUMENTS...
  local name=$1
  shift
  step "$name" backbay race "$@" --device "$device" --json "$out/$name.json" --html "$out/$name.html"
  grep -E ' (infer|train)\): ' "$out/$name.txt"
}

step list backbay list --all
race infer hf:llama hf:bert timm:resnet50 --dtype bfloat16 --backends eager,aot_eager,inductor
race train hf:llama --train --dtype bfloat16 --backends eager,aot_eager,inductor
step calibration python3 -m backbay.proof.calibration --device "$device"
step tests python3 -m pytest -q -m gpu
exit $failed
