#!/usr/bin/env bash
# Proves and times everything that needs a GPU; writes logs, JSON and pages to the folder given.
#
#     bash benchmarks/race_gpu.sh OUT [STEP ...]
#
# Steps: list, infer, train, tests, calibration; default: all, about fourteen minutes on an H200. Every
# step runs even if one before it failed; the exit code says whether all were fine.
set -uo pipefail
out=$1
shift
steps=" ${*:-list infer train tests calibration} "
models=(--dtype bfloat16 --backends eager,aot_eager,inductor)
mkdir -p "$out"
failed=0

step() { # NAME COMMAND...: run a step, keep its output, say how long it took
  local name=$1 start=$SECONDS
  shift
  [[ $steps == *" $name "* ]] || return 0
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
  step "$name" backbay race "$@" --device cuda --json "$out/$name.json" --html "$out/$name.html"
}

step list backbay list --all
race infer hf:llama hf:bert timm:resnet50 "${models[@]}"
race train hf:llama --train "${models[@]}"
step tests python3 -m pytest -q -m gpu -p no:cacheprovider
step calibration python3 -m backbay.proof.calibration --device cuda --seeds 4 --compile inductor
exit $failed
