#!/usr/bin/env bash
# The demonstration: train, gate and prune a small model on artificial text, in about ten minutes on one CPU core.
#
#   recipes/demo.sh [--dry-run] [OUT_DIR, default demo-out]
#
# Makes a small artificial English-to-Russian corpus, trains a baseline transformer, trains it further without pruning
# as the control (baseline+), prunes heads of the encoder with the decoder frozen, prunes heads of all types, and prints
# one table. It is recipes/translation.sh with small sizes and seed 2, with which more heads have a function than
# with seed 1. At the end it writes a report, OUT_DIR/report.html.
# Needs no GPU and no download. Run the same command again to resume. `make demo` makes the environment first.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"
set -a
: "${OMP_NUM_THREADS:=1}" "${SEEDS:=${SEED:-2}}"
: "${PRETOKENIZED:=1}" "${JOINT:=0}" "${BPE:=1000}"
: "${EMBED:=64}" "${FFN:=128}" "${LAYERS:=2}" "${DECODER_LAYERS:=1}" "${HEADS:=8}" "${DROPOUT:=0}"
: "${MAX_TOKENS:=2500}" "${SAVE_EVERY:=300}" "${LR:=0.008}" "${WARMUP:=150}"
[[ -n ${EPOCHS:-} ]] || : "${UPDATES:=2400}"
: "${PRUNE_UPDATES:=600}" "${PRUNE_WARMUP:=40}"
set +a
source "$recipes/lib/defaults.sh"

if (($# == 0)) || [[ $# == 1 && $1 == --dry-run ]]; then set -- "$@" demo-out; fi
parse_arguments OUT_DIR "$@"
out=${arguments[0]}
need_plots
need fairseq-preprocess fairseq-train fairseq-generate fairseq-validate headgates sacremoses subword-nmt sacrebleu
check_settings
check_out "$out"
no_colon "$out"

[[ -d $out/corpus ]] || step "making the corpus" python3 "$recipes/make_corpus.py" "$out/corpus"
translate=("$recipes/translation.sh" "$out/corpus" "$out" en ru)
[[ ${DRY_RUN:-0} != 1 ]] || translate=("$recipes/translation.sh" --dry-run "${translate[@]:1}")
part_of_recipe "${translate[@]}"

# --- a report on the baseline and the pruned models -----------------------------------------------------------------
find_devices
models=$out
[[ $SEEDS != *' '* ]] || models=$out/seed${SEEDS%% *}
baseline=("$out/data-bin" --path "$models/baseline/checkpoint_last.pt" --gen-subset valid "${device[@]}")
log=$models/report.log
# measured NAME COMMAND OPTIONS...: write $models/NAME.json with a command of headgates, unless it exists.
measured() {
  [[ -f $models/$1.json ]] || run "$log" headgates "$2" "${baseline[@]}" "${@:3}" --out "$models/$1.json"
}
[[ ${DRY_RUN:-0} == 1 ]] || say "measuring the heads of the baseline (log: $log)"
measured head_scores score --method confidence,gradient
measured functions functions --conllu "$out/corpus/valid.en.conllu"
measured attention attention --heads 'enc-self:*,dec-enc:*'
folders=("$models/baseline")
for folder in "$models"/*_heads* "$models"/*_lambda*; do
  [[ ! -f $folder/pruned.pt ]] || folders+=("$folder")
done
step "writing the report" headgates report "$out/report.html" "${folders[@]}" "$out/results.json" "$models"/{head_scores,functions,attention}.json \
  --force
