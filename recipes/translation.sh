#!/usr/bin/env bash
# From raw parallel text to a table of pruned models, with fairseq's own commands.
#
#   recipes/translation.sh [--dry-run] RAW_DIR OUT_DIR SRC TGT
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, plain or .gz, one sentence per line. The recipe trains a baseline, and
# prunes it once for each entry of RUNS. As a control it trains the baseline for as many updates without pruning:
# baseline+, or baseline+frozen for runs whose decoder is frozen. The last output is a table: model, heads kept per
# attention type, parameters, BLEU and chrF on detokenised text, loss on the validation set. The defaults are a small
# model for two CPU cores.
#
# SHARE=I/N trains the I-th of N shares of the models; shares may run side by side, and recipes/sweep.sh starts them.
# A stage is skipped when its output is in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1
# save a checkpoint and end the recipe with exit code 75. --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/runs.sh"
source "$recipes/lib/translation.sh"

configure -- "$@"
raw=${arguments[0]} out=${arguments[1]} src=${arguments[2]} tgt=${arguments[3]}
export SRC=$src TGT=$tgt
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra clean_flags <<<"$CLEAN"
read -ra seeds <<<"$SEEDS"

need fairseq-preprocess fairseq-train headgates sacremoses subword-nmt
check_out "$out"
dry || read_text "$raw" {train,valid,test}."$src" {train,valid,test}."$tgt"
find_plugin
find_devices
# Controls and runs are comparable only with the same further training; without RUNS there is none.
keep_settings "$out" settings generation ${RUNS:+runs}
[[ -z $METRIC ]] || keep_metric "$out"
lock_out "$out"

# --- text: raw -> tokenised -> cleaned -> BPE -> binarised ----------------------------------------------------------
text=$out/text bin=$out/data-bin
begin_text
[[ -d $bin ]] || say "tokenising and encoding the text"
for split in train valid test; do
  for language in "$src" "$tgt"; do
    by_lines "$raw/$split.$language" "$text/$split.tok.$language" "$(tokenise "$language")$(lowercased)"
  done
  aligned "$split" "$text/$split.tok" "$src" "$tgt"
done
into "$text/reference.$tgt" "$(reading "$raw/test.$tgt")$(detokenised "$tgt")"
[[ -z $METRIC ]] || into "$text/source.$src" "$(reading "$raw/test.$src")$(detokenised "$src")"
train=$text/train.tok
[[ -z $CLEAN ]] || clean_text
dictionary=() embeddings=()
if [[ $JOINT == 1 ]]; then
  into "$text/train.both" "$(quoted cat "$train.$src" "$train.$tgt")"
  into "$text/codes.$src" "$(learn_bpe "$text/train.both")"
  into "$text/codes.$tgt" "$(quoted cat "$text/codes.$src")"
  [[ $UNTIED == 1 ]] || dictionary=(--joined-dictionary) embeddings=(--share-all-embeddings)
else
  for language in "$src" "$tgt"; do into "$text/codes.$language" "$(learn_bpe "$train.$language")"; done
  [[ $UNTIED == 1 ]] || embeddings=(--share-decoder-input-output-embed)
fi
for split in train valid test; do
  for language in "$src" "$tgt"; do
    tokens=$text/$split.tok.$language
    [[ $split == train ]] && tokens=$train.$language
    by_lines "$tokens" "$text/$split.bpe.$language" "$(quoted subword-nmt apply-bpe -c "$text/codes.$language")"
  done
done
need_short_lines source "$src"
need_short_lines target "$tgt"
binarise -s "$src" -t "$tgt" --trainpref "$text/train.bpe" --validpref "$text/valid.bpe" --testpref "$text/test.bpe" \
  "${dictionary[@]}"
text_is_made # from here on each model has a lock of its own

# --- models: a baseline, then its controls, and runs that start from it and are pruned ------------------------------
[[ -z $TOKENS_PER_UPDATE ]] || plan_batches
arch=transformer gated_arch=transformer_head_gates criterion=label_smoothed_cross_entropy
size=(--encoder-embed-dim "$EMBED" --decoder-embed-dim "$EMBED" --encoder-ffn-embed-dim "$FFN"
  --decoder-ffn-embed-dim "$FFN" --encoder-layers "$LAYERS" --decoder-layers "$DECODER_LAYERS"
  --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS"
  "${embeddings[@]}")
[[ $PRE_NORM == 0 ]] || size+=(--encoder-normalize-before --decoder-normalize-before)
# shellcheck disable=SC2207 # several options
common=(--task translation -s "$src" -t "$tgt" "${size[@]}" --dropout "$DROPOUT" --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ" "${train_flags[@]}" $(saving "$((AVERAGE > 1 ? AVERAGE : 1))"))
length=(--max-epoch "$EPOCHS") selection=()
[[ -z $UPDATES ]] || length=(--max-update "$UPDATES")
# Where the learning rate falls to 0, or checkpoints are averaged, the best BLEU would be a selection by noise.
baseline_checkpoint=checkpoint_last.pt
if [[ $SCHEDULE == polynomial_decay ]]; then
  length+=(--total-num-update "$UPDATES")
elif ((AVERAGE == 0)) && [[ $SELECTION == bleu ]]; then
  selection=(--eval-bleu --eval-bleu-args '{"beam": 1}' --eval-bleu-detok moses --eval-bleu-remove-bpe
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric)
  baseline_checkpoint=checkpoint_best.pt
fi
baseline_training=("${common[@]}" --lr-scheduler "$SCHEDULE" --lr "$LR" --warmup-updates "$WARMUP"
  "${length[@]}" "${selection[@]}")
schedule "$PRUNE_SCHEDULE" "$PRUNE_LR" "$PRUNE_WARMUP" "$PRUNE_UPDATES" # its length is not that of a step of a run
further_training=("${common[@]}" "${scheduled[@]}")
gates=(${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"} ${FIX_AFTER:+--fix-gates-after "$FIX_AFTER"})
data=("$bin" --user-dir "$plugin" --source-lang "$src" --target-lang "$tgt" --max-tokens "$GENERATION_TOKENS" "${device[@]}")
scoring=("${data[@]}" --skip-invalid-size-inputs-valid-test)
evaluation=("${data[@]}" --gen-subset test --loss-subset valid --reference "$text/reference.$tgt" --remove-bpe
  --tokenizer moses --beam "$BEAM" --lenpen "$LENPEN" --required-batch-size-multiple 1)
((DEV_TRANSLATIONS == 0)) || dev=("${data[@]}" --gen-subset valid --remove-bpe --tokenizer moses --beam "$BEAM" --lenpen "$LENPEN"
  --required-batch-size-multiple 1 --sentences "$DEV_TRANSLATIONS")
[[ $LOWERCASE == 0 ]] || evaluation+=(--scoring sacrebleu --sacrebleu-lowercase)

all_models
table translation ${PAPER:+--paper "$PAPER"} ${METRIC:+--metric "$METRIC_NAME"} --json "$out/results.json"
