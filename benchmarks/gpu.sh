#!/usr/bin/env bash
# Measure what depends on a GPU, and write OUT/benchmarks.md: every command with its tables.
#
#   benchmarks/gpu.sh OUT
#
# Parts:
#   machine     the GPU and torch
#   tests       compare GPU with CPU results of all architectures, beam search, penalty, importance scores and relevance
#   update-P    an update in training in the precision P (fp16, bf16, fp32): fairseq's model, this plugin's without
#               gates, with those of each method, and without half of the heads
#   generation-P  decoder steps and beam search of fairseq's model, and of this plugin's whole, gated, pruned and
#               compressed, with kernels and peak memory; CTranslate2
#
# Run the command again to run the parts that failed or timed out. Environment variables: PARTS (the parts to run),
# LIMIT (seconds of a part), SIZE, ROUNDS, BATCHES (sentences in a batch of generation). DEVICE=cpu tests this script.
set -uo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
all="machine tests update-fp16 generation-fp16 update-bf16 generation-bf16 update-fp32 generation-fp32"
PARTS=${PARTS-$all} LIMIT=${LIMIT:-600} SIZE=${SIZE:-base} DEVICE=${DEVICE:-cuda} ROUNDS=${ROUNDS:-4}
BATCHES=${BATCHES:-1 32 128}

stop() { echo "gpu.sh: $1" >&2; exit 2; }
(($# == 1)) || stop "got $# arguments, needs OUT"
for name in $PARTS; do [[ " $all " == *" $name "* ]] || stop "unknown part $name: choose from $all"; done
mkdir -p "$1" || exit 2
out=$(readlink -f "$1") failed=()

# part NAME COMMAND...: run a command and keep what it prints, unless that exists or the part is not asked for.
part() {
  local name=$1 text=$out/$1.txt
  shift
  [[ " $PARTS " == *" $name "* && ! -f $text ]] || return 0
  echo "$(date +%T)  $name (log: $out/$name.log)"
  echo "\$ $*" >"$text.part"
  (cd "$root" && timeout "$LIMIT" "$@" 2>"$out/$name.log" >>"$text.part") && mv "$text.part" "$text" && return
  echo "gpu.sh: $name failed or took more than $LIMIT seconds: see $out/$name.log" >&2
  failed+=("$name")
}

part machine python3 -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())
if torch.cuda.is_available(): print(torch.cuda.get_device_name())"
part tests env HEADGATES_CUDA="$DEVICE" python3 -m pytest -q -p no:cacheprovider tests/plugin/models/test_cuda.py
common=(--size "$SIZE" --device "$DEVICE")
variants=(stock full gated pruned compressed ctranslate2)
for precision in fp16 bf16 fp32; do
  part "update-$precision" python3 benchmarks/train_step.py "${common[@]}" --dtype $precision --updates "$((2 * ROUNDS))"
  # shellcheck disable=SC2086 # a list of numbers
  part "generation-$precision" python3 benchmarks/generation_speed.py "${common[@]}" --dtype $precision \
    --repetitions "$ROUNDS" --batch $BATCHES --remove 0.75 --variants "${variants[@]}"
done

{
  echo "# Measured by benchmarks/gpu.sh on $(date +%F)"
  for name in $all; do
    [[ ! -f $out/$name.txt ]] || printf '\n## %s\n\n```text\n%s\n```\n' "$name" "$(cat "$out/$name.txt")"
  done
} >"$out/benchmarks.md"
echo "$out/benchmarks.md"
((${#failed[@]} == 0)) || exit 1
