#!/usr/bin/env bash
# Proves and times what needs a GPU; writes logs, tables, JSON and pages to the folder given.
#
#     [UNTIL=480] [AHEAD=3] [WORKERS=15] [ONLY="resnet50.* vit_b.*"] [TABLES=stems] \
#     [MORE="--no-proof"] bash benchmarks/gpu.sh OUT [STEP ...]
#
# Steps that prove: tests, sanitize, conformance, calibration. Steps that time: list, infer, train (races of
# torch's own backends), conditions, patterns, models, first_calls. Without a step: all of them, in this order.
#
# patterns, models, first_calls and conformance begin nothing new after UNTIL seconds, and go on where they
# were when they are called again with the same OUT. ONLY names some of the patterns or models, MORE is further
# options of their script, TABLES names some of the conditions. A step that times wants the GPU and the host
# for itself. Every step runs even if one before it failed; the exit code says whether all were fine.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
every="tests sanitize conformance calibration list infer train conditions patterns models first_calls"
steps=" ${*:-$every} "
until=(--until "${UNTIL:-480}")
workers=${WORKERS:-$(($(nproc) - 1))}
models=(--dtype bfloat16 --backends eager,aot_eager,inductor)
read -ra only <<<"${ONLY:+--only $ONLY}"
read -ra tables <<<"${TABLES:-}"
read -ra more <<<"${MORE:-}"
failed=0

for name in $steps; do
  [[ " $every " == *" $name "* ]] || { echo "no step is called $name; there are: $every" && exit 2; }
done

step() { # NAME COMMAND...: run a step, keep its output, say how long it took
  local name=$1 start=$SECONDS
  shift
  [[ $steps == *" $name "* ]] || return 0
  if "$@" >>"$out/$name.txt" 2>&1; then echo "$name: ok, $((SECONDS - start)) s"; else
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

timed() { # NAME: the rows of benchmarks/NAME.py that are missing, or undecided
  step "$1" python3 "benchmarks/$1.py" --state "$out/$1" --out "$out/$1.md" \
    --quick --ahead "${AHEAD:-3}" "${until[@]}" "${only[@]}" "${more[@]}"
}

first_calls() { # the models side by side, each on cores of its own
  local names=(llama_1b_4l.prefill_4x2k bert.infer gpt2.train resnet50.infer) started=() fine=0 cores n
  cores=$(($(nproc) / ${#names[@]}))
  for n in "${!names[@]}"; do
    taskset -c "$((n * cores))-$((n * cores + cores - 1))" python3 benchmarks/compile_times.py "${names[n]}" \
      --state "$out/first_calls_$n.jsonl" "${until[@]}" &
    started+=($!)
  done
  for n in "${started[@]}"; do wait "$n" || fine=1; done # 1: a bar that was missed, too
  cat "$out"/first_calls_?.jsonl >"$out/first_calls.jsonl"
  python3 benchmarks/compile_times.py --state "$out/first_calls.jsonl" --rounds 0 --out "$out/first_calls.md"
  return $fine
}

step tests python3 -m pytest -q -n "$workers" --dist load -p no:cacheprovider \
  packages/backbay/tests/gpu packages/backbay-optimizer/tests/gpu
step sanitize env WORKERS="$workers" bash tools/sanitize_gpu.sh
step conformance python3 benchmarks/conformance.py backbay inductor --profile quick --device cuda \
  --workers "$workers" --state "$out/conformance_state" --out "$out/conformance" "${until[@]}"
step calibration python3 benchmarks/calibrate.py --device cuda --seeds 4 --compile inductor
step list backbay list --all
race infer hf:llama hf:bert timm:resnet50 "${models[@]}"
race train hf:llama --train "${models[@]}"
step conditions python3 benchmarks/conditions.py "${tables[@]}" --out "$out/conditions.md"
timed patterns
timed models
step first_calls first_calls
exit $failed
