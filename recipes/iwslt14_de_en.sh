#!/usr/bin/env bash
# Pruning over the course of training on IWSLT14 German-English: Michel et al. 2019, section 6.
#
#   recipes/iwslt14_de_en.sh [--dry-run] OUT_DIR
#
# After each of several epochs, heads are removed step by step in the order of their gradient score, and BLEU is
# measured. Data as in fairseq's example: every 23rd pair of the talks is for development, five small sets are the test
# set. 6+6 layers, 8 heads, dropout 0.3, updates of 4000 tokens on one GPU. The last output is a table of BLEU: a row
# for each epoch, a column for each fraction of removed heads. Needs a GPU and a download. Run the same command again to
# resume; --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

# Training ends after the last epoch that is measured, and no other model is trained.
export EPOCHS='' RUNS='' SCRATCH='' KEEP_EPOCHS=1 SCHEDULE=inverse_sqrt
configure MEASURED="1 2 3 5 10 20 30 40" STEPS=0,10,20,30,40,50,60,70,80,90 LOWERCASE=1 CLEAN="--max-length 175 --max-ratio 1.5" BPE=10000 JOINT=1 \
  UNTIED=1 EMBED=512 FFN=1024 LAYERS=6 HEADS=8 DROPOUT=0.3 PRE_NORM=1 MAX_TOKENS=4000 GPUS=1 SELECTION=last LR=0.0005 \
  WARMUP=4000 BEAM=5 DISK_GB=25 -- "$@"
out=${arguments[0]}
read -ra measured <<<"$MEASURED"
need_plots
begin_full_size "$out"
((workers == 1)) || [[ -n $TOKENS_PER_UPDATE ]] ||
  fail "$workers processes would make updates of $workers times $MAX_TOKENS tokens: set TOKENS_PER_UPDATE to the number of source tokens for each update, or train on one GPU"
TRAIN_FLAGS="--weight-decay 0.0001 $TRAIN_FLAGS"
((gpus == 0)) || TRAIN_FLAGS="--fp16 --fp16-no-flatten-grads $TRAIN_FLAGS" # gates do not decay
export TRAIN_FLAGS

get_corpora iwslt14-de-en "$out"
talks="paste $(quoted "$out"/corpora/talks.{de,en})| awk -F '\t'" # without titles whose description is empty on one side
for column in 1 2; do
  language=$([[ $column == 1 ]] && echo de || echo en)
  into "$out/raw/train.$language" "$talks '\$1 && \$2 && ++n % 23 { print \$$column }'"
  into "$out/raw/valid.$language" "$talks '\$1 && \$2 && ++n % 23 == 0 { print \$$column }'"
  into "$out/raw/test.$language" "cat $(quoted "$out/corpora/test.$language")"
done
part_of_recipe "$recipes/translation.sh" "$out/raw" "$out" de en

checkpoints=$(printf ":%s.pt" "${measured[@]/#/$out/baseline/checkpoint}")
find_plugin
say "pruning the checkpoints of epochs $MEASURED step by step"
stage "$out/dynamics.tsv" "$out/dynamics.log" \
  headgates curve "$out/data-bin" --path "${checkpoints#:}" --user-dir "$plugin" \
    --by gradient --types all --score-subset valid --gen-subset test --steps "$STEPS" --beam "$BEAM" --remove-bpe \
    --source-lang de --target-lang en --tokenizer moses --max-tokens "$GENERATION_TOKENS" "${device[@]}" \
    --out "$out/dynamics.json" --tsv "$out/dynamics.tsv" --plot "$out/dynamics.svg" --force
last_table "$out/dynamics.txt" python3 "$recipes/lib" results.curves "$out/dynamics.tsv" --paper
