#!/usr/bin/env bash
# Measure what depends on a GPU, and write OUT/benchmarks.md: the machine, and every command with its tables.
#
#   benchmarks/gpu.sh OUT [RAW_DIR SRC TGT]
#
# Parts, each at most ten minutes:
#   machine           the GPU and torch
#   equal             compare GPU with CPU results of beam search with static and captured decoder steps
#   step-fp16, step-fp32: a decoder step of stock, unpruned, pruned and compressed models, also captured as a CUDA graph;
#                     its kernels, launches and synchronisations
#   search-fp16, search-fp32: beam search with these models, also on the device, and with CTranslate2
#   corpus            translation of CORPUS sentences with all of these in fp16
#   tests             compare GPU with CPU results of all architectures, penalty, importance scores and relevance
#   generation-bf16   step and beam search of stock, unpruned, gated and pruned models; generation-big: the same with
#                     transformer-big in fp16
#   update            an update in training, without gates and with each gating method, in fp32, fp16 and bf16
#   update-large      the same with 420 instead of 96 sentences
#   scores            the cost of importance scores
#   training          recipes/translation.sh with transformer-base: half and a quarter of the heads, and the control, on
#                     the parallel text RAW_DIR/{train,valid,test}.{SRC,TGT}, or on artificial text
#
# Run the command again to run the parts that failed or timed out; the recipe resumes. Environment variables: PARTS (the
# parts to run), LIMIT (seconds of a part), SIZE (base; of all parts but generation-big), ROUNDS, BATCHES (sentences in a
# batch of generation), CORPUS (1000) and CORPUS_BATCHES (of corpus), RUNS, UPDATES, PRUNE_UPDATES, LR and LINES_OF_TEXT
# (of training). DEVICE=cpu tests this script.
set -uo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
[[ -d $root/recipes ]] || { echo "$0: recipes/ is missing beside this copy (sbatch makes one): sbatch OPTIONS --wrap 'benchmarks/gpu.sh OUT'" >&2; exit 2; }
all="machine equal step-fp16 step-fp32 search-fp16 search-fp32 corpus tests"
all+=" generation-bf16 generation-big update update-large scores training"
PARTS=${PARTS-$all} LIMIT=${LIMIT:-600} SIZE=${SIZE:-base} DEVICE=${DEVICE:-cuda} ROUNDS=${ROUNDS:-4}
BATCHES=${BATCHES:-1 8 32 128} CORPUS_BATCHES=${CORPUS_BATCHES:-128 32}

stop() { echo "gpu.sh: $1" >&2; exit 2; }
(($# == 1 || $# == 4)) || stop "got $# arguments, needs OUT or OUT RAW_DIR SRC TGT"
out=$1 raw=${2:-} source=${3:-en} target=${4:-ru} failed=()
for name in $PARTS; do [[ " $all " == *" $name "* ]] || stop "unknown part $name: choose from $all"; done
[[ $DEVICE != cuda ]] || python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  stop "torch finds no GPU"
mkdir -p "$out"

# part NAME COMMAND...: run a command and keep what it prints, unless that exists or the part is not asked for.
part() {
  local name=$1 status=0
  shift
  [[ " $PARTS " == *" $name "* && ! -f $out/$name.txt ]] || return 0
  echo "$(date +%T)  $name (log: $out/$name.log)"
  { printf '$'; printf ' %s' "$@"; printf '\n\n'; } >"$out/$name.part"
  (cd "$root" && timeout --signal=TERM "$LIMIT" "$@" 2>"$out/$name.log" >>"$out/$name.part") || status=$?
  case $status in
  0) mv "$out/$name.part" "$out/$name.txt" ;;
  75 | 124) echo "gpu.sh: $name was stopped after $LIMIT seconds: run the same command again to resume" >&2 && failed+=("$name") ;;
  *) echo "gpu.sh: $name failed with exit code $status: see $out/$name.log" >&2 && failed+=("$name") ;;
  esac
}

out=$(readlink -f "$out")
[[ -z $raw ]] || raw=$(readlink -e "$raw") || stop "RAW_DIR='$raw' is missing"
# shellcheck disable=SC2206 # a list of numbers
speed=(python3 benchmarks/generation_speed.py --device "$DEVICE" --warm-up 1 --repetitions "$ROUNDS" --batch $BATCHES)
models=(--size "$SIZE" --remove 0.75 --variants stock full pruned compressed graph)
searches=(device ctranslate2 ctranslate2-int8)
both=(--variants stock full gated pruned --remove 0.5 0.75 --parts step beam)
tests=(env HEADGATES_CUDA="$DEVICE" python3 -m pytest -q -p no:cacheprovider tests/plugin/models/test_cuda.py)
update=(python3 benchmarks/train_step.py --size "$SIZE" --device "$DEVICE" --updates "$((2 * ROUNDS))")
[[ $DEVICE == cuda ]] && precisions=(fp32 fp16 bf16) || precisions=(fp32)

part machine python3 -c "import torch; print(torch.__version__, torch.version.cuda or '')
if torch.cuda.is_available(): print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())"
part equal "${tests[@]}" -k static_steps
for precision in fp16 fp32; do
  part "step-$precision" "${speed[@]}" "${models[@]}" --parts step --dtype "$precision"
done
for precision in fp16 fp32; do
  part "search-$precision" "${speed[@]}" "${models[@]}" "${searches[@]}" --parts beam --dtype "$precision"
done
# shellcheck disable=SC2086
part corpus "${speed[@]}" "${models[@]}" "${searches[@]}" --parts corpus --dtype fp16 --corpus "${CORPUS:-1000}" \
  --batch $CORPUS_BATCHES --repetitions "$(((ROUNDS + 1) / 2))"
part tests "${tests[@]}" -k "not static_steps"
part generation-bf16 "${speed[@]}" "${both[@]}" --size "$SIZE" --dtype bf16
part generation-big "${speed[@]}" "${both[@]}" --size big --dtype fp16
part update "${update[@]}" --dtype "${precisions[@]}"
part update-large "${update[@]}" --dtype "${precisions[@]}" --sentences 420
part scores python3 benchmarks/importance_speed.py --size "$SIZE" --device "$DEVICE" --rounds "$ROUNDS"

if [[ " $PARTS " == *" training "* ]]; then
  if [[ -z $raw ]]; then
    raw=$out/corpus
    [[ -d $raw ]] || python3 "$root/recipes/make_corpus.py" "$raw" --train "${LINES_OF_TEXT:-30000}" --valid 300 --test 300
  fi
  case $SIZE in
  small) sizes=(EMBED=64 FFN=128 LAYERS=2 HEADS=4 BPE=1000) ;;
  *) sizes=(EMBED=512 FFN=2048 LAYERS=6 HEADS=8) ;;
  esac
  updates=${UPDATES:-3000} more=${PRUNE_UPDATES:-1500}
  part training env "${sizes[@]}" RUNS="${RUNS:-all=0.5 all=0.25 all=0.5@gradient}" LR="${LR:-0.0007}" UPDATES="$updates" \
    WARMUP="$((updates / 5))" PRUNE_UPDATES="$more" PRUNE_WARMUP="$((more / 10))" \
    recipes/translation.sh "$raw" "$out/training" "$source" "$target"
fi

{
  echo "# Measured by benchmarks/gpu.sh on $(date +%F)"
  for name in $all; do
    [[ ! -f $out/$name.txt ]] || printf '\n## %s\n\n```text\n%s\n```\n' "$name" "$(cat "$out/$name.txt")"
  done
} >"$out/benchmarks.md.part" && mv "$out/benchmarks.md.part" "$out/benchmarks.md"
echo "$out/benchmarks.md"
((${#failed[@]} == 0)) || exit 1
