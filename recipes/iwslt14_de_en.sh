#!/usr/bin/env bash
# When do heads become unimportant? The training dynamics of Michel et al. 2019, section 6, on IWSLT14 German-English:
# after several epochs, heads are removed step by step in the order of their gradient, and BLEU is measured.
#
#   recipes/iwslt14_de_en.sh [--dry-run] OUT_DIR
#
# Data as fairseq's users know it: every 23rd pair of the talks is kept for development, five small sets are the test
# set. 6+6 layers, 8 heads, dropout 0.3, 4000 tokens for each update. The last thing printed is a table: epochs by the
# share of heads that are removed. Every stage is skipped when its output is there; --dry-run prints the commands that
# are still to be run.
#
# Settings, from the environment:
#   DATA_DIR=PLACE                     a folder that has the archive, or the address of a mirror (recipes/fetching.py)
#   MEASURED="1 2 3 5 10 20 30 40"     after which epochs; the last is where training ends
#   STEPS=0,10,20,30,40,50,60,70,80,90 percent of the heads
#   TOKENS_PER_UPDATE= MAX_TOKENS=4000 source tokens for each update, on any number of GPUs; fairseq's --max-tokens
#   CPU=1                              go on without a GPU; DISK_GB= how much room the disk must have
#   GPUS, HOSTS, LAUNCHER and WORKERS, see recipes/common.sh; everything in recipes/translation.sh
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/common.sh"

recipe_arguments OUT_DIR "$@"
out=${arguments[0]}
: "${MEASURED:=1 2 3 5 10 20 30 40}" "${STEPS:=0,10,20,30,40,50,60,70,80,90}"
read -rd '' -a measured <<<"$MEASURED" || true # to the end
EPOCHS=${measured[*]: -1}
export MEASURED STEPS
export LOWERCASE=${LOWERCASE:-1} CLEAN=${CLEAN:---max-length 175 --max-ratio 1.5} BPE=${BPE:-10000} JOINT=${JOINT:-1} EPOCHS
export EMBED=${EMBED:-512} FFN=${FFN:-1024} LAYERS=${LAYERS:-6} HEADS=${HEADS:-8} DROPOUT=${DROPOUT:-0.3} PRE_NORM=${PRE_NORM:-0}
export MAX_TOKENS=${MAX_TOKENS:-4000} LR=${LR:-0.0005} WARMUP=${WARMUP:-4000} BEAM=${BEAM:-5} RUNS= SCRATCH= KEEP_EPOCHS=1
TRAIN_FLAGS="--weight-decay 0.0001 ${TRAIN_FLAGS:-}"

need curl fairseq-preprocess fairseq-train fairseq-generate headgates sacremoses subword-nmt sacrebleu
check_settings
check_out "$out"
no_colon "$out"
need_plots
find_devices
need_gpu
((gpus == 0)) || TRAIN_FLAGS="--fp16 $TRAIN_FLAGS"
only_run "$out"
# A checkpoint of every epoch: weights and two moments.
need_space "${DISK_GB:-$((2 + EPOCHS * 12 * (BPE * EMBED + LAYERS * (12 * EMBED * EMBED + 4 * EMBED * FFN)) / 1000000000))}" "$out"
export TRAIN_FLAGS

get_corpora iwslt14-de-en "$out"
talks="paste $(quoted "$out"/corpora/talks.{de,en})| awk -F '\t'" # titles without a description are empty on one side
for column in 1 2; do
  language=$([[ $column == 1 ]] && echo de || echo en)
  into "$out/raw/train.$language" "$talks '\$1 && \$2 && ++n % 23 { print \$$column }'"
  into "$out/raw/valid.$language" "$talks '\$1 && \$2 && ++n % 23 == 0 { print \$$column }'"
  into "$out/raw/test.$language" "cat $(quoted "$out/corpora/test.$language")"
done
part_of_recipe "$recipes/translation.sh" "$out/raw" "$out" de en

checkpoints=$(printf ":%s.pt" "${measured[@]/#/$out/baseline/checkpoint}")
say "pruning the checkpoints of epochs $MEASURED step by step"
find_plugin
[[ -f $out/dynamics.tsv ]] ||
  run "$out/dynamics.log" headgates curve "$out/data-bin" --path "${checkpoints#:}" --user-dir "$plugin" \
    --by gradient --types all --score-subset valid --gen-subset test --steps "$STEPS" --beam "$BEAM" --remove-bpe \
    --source-lang de --target-lang en --tokenizer moses --max-tokens "${GENERATION_TOKENS:-4000}" "${device[@]}" \
    --out "$out/dynamics.json" --tsv "$out/dynamics.tsv" --plot "$out/dynamics.svg" --force
last_table "$out/dynamics.txt" python3 "$recipes/curves.py" "$out/dynamics.tsv" --paper
