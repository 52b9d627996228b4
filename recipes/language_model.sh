#!/usr/bin/env bash
# From raw text to a table of pruned language models, with fairseq's own commands.
#
#   recipes/language_model.sh [--dry-run] RAW_DIR OUT_DIR
#
# RAW_DIR holds {train,valid,test}.txt, plain or .gz, a sentence or a paragraph on each line, tokenised or not. The
# recipe trains a baseline, and prunes it once for each entry of RUNS. As a control, baseline+, it trains the
# baseline for as many more updates without pruning. ARCH is fairseq's transformer_lm, or transformer_lm_all_attention
# (Shim et al. 2021). The last output is a table: model, heads kept, parameters, perplexity on the validation and the
# test set per token and per word, tokens per second. The defaults are a small model for two CPU cores.
#
# A stage is skipped when its output is in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1
# save a checkpoint and end the recipe with exit code 75. --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/runs.sh"

configure -- "$@"
raw=${arguments[0]} out=${arguments[1]}
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra seeds <<<"$SEEDS"
AVERAGE=0 METRIC="" TGT="" # of translation, in lib/models.sh

need fairseq-preprocess fairseq-train headgates subword-nmt
need_plots
check_out "$out"
dry || read_text "$raw" {train,valid,test}.txt
find_plugin
find_devices
keep_settings "$out" settings evaluation ${RUNS:+runs}
lock_out "$out"

# --- text: raw -> one blank between words -> BPE -> binarised -------------------------------------------------------
text=$out/text bin=$out/data-bin
begin_text
say "encoding the text"
for split in train valid test; do
  into "$text/$split.words" "$(reading "$raw/$split.txt")| python3 $(quoted "$recipes/lib") text.lines words"
done
encoded=words dictionary=()
if ((BPE)); then
  encoded=bpe
  into "$text/codes" "$(quoted subword-nmt learn-bpe -s "$BPE" --input "$text/train.words")"
  for split in train valid test; do
    by_lines "$text/$split.words" "$text/$split.bpe" "$(quoted subword-nmt apply-bpe -c "$text/codes")"
  done
elif ((VOCABULARY)); then
  dictionary=(--nwordssrc "$VOCABULARY")
fi
binarise --only-source --trainpref "$text/train.$encoded" --validpref "$text/valid.$encoded" \
  --testpref "$text/test.$encoded" "${dictionary[@]}"
text_is_made

# --- models: a baseline, its control, and runs that start from it ---------------------------------------------------
# blocks_of_update: set MAX_TOKENS and UPDATE_FREQ so that an update has TOKENS_PER_UPDATE tokens on all `workers`, or
# at most a block more for each batch. All blocks have the same size, so no data is read for this.
blocks_of_update() {
  local blocks=$(((TOKENS_PER_UPDATE + TOKENS_PER_SAMPLE - 1) / TOKENS_PER_SAMPLE))
  local most=$((workers * (MAX_TOKENS / TOKENS_PER_SAMPLE)))
  UPDATE_FREQ=$(((blocks + most - 1) / most))
  MAX_TOKENS=$(((blocks + workers * UPDATE_FREQ - 1) / (workers * UPDATE_FREQ) * TOKENS_PER_SAMPLE))
}
[[ -z $TOKENS_PER_UPDATE ]] || blocks_of_update
criterion=cross_entropy
size=(--decoder-layers "$LAYERS" --decoder-attention-heads "$HEADS" --decoder-embed-dim "$EMBED"
  --decoder-input-dim "$EMBED" --decoder-output-dim "$EMBED" --dropout "$DROPOUT" --attention-dropout "$DROPOUT")
if [[ -n $ADAPTIVE ]]; then
  criterion=adaptive_loss
  size+=(--adaptive-input --adaptive-input-cutoff "$ADAPTIVE" --adaptive-softmax-cutoff "$ADAPTIVE"
    --tie-adaptive-weights --tie-adaptive-proj --ddp-backend legacy_ddp)
else
  size+=(--share-decoder-input-output-embed)
fi
arch=$ARCH gated_arch=$ARCH
if [[ $ARCH == transformer_lm ]]; then
  gated_arch=transformer_lm_head_gates task=(--task language_modeling --tokens-per-sample "$TOKENS_PER_SAMPLE")
  size+=(--decoder-ffn-embed-dim "$FFN")
  [[ $PRE_NORM == 0 ]] || size+=(--decoder-normalize-before)
else
  task=(--task language_modeling_segments --tokens-per-sample "$TOKENS_PER_SAMPLE" --stream-blocks "$STREAM_BLOCKS")
  size+=(--persistent-vectors "$PERSISTENT_VECTORS" --mem-len "$MEM_LEN")
fi
optimizer=(--optimizer "$OPTIMIZER" --clip-norm 1.0)
[[ $OPTIMIZER != adam ]] || optimizer+=(--adam-betas '(0.9, 0.98)')
# shellcheck disable=SC2207 # several options
common=("${task[@]}" "${size[@]}" "${optimizer[@]}" --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ"
  --required-batch-size-multiple 1 "${train_flags[@]}" $(saving 1))
schedule "$SCHEDULE" "$LR" "$WARMUP" "$UPDATES" "$MIN_LR"
baseline_training=("${common[@]}" "${scheduled[@]}")
# With a schedule that decays the last checkpoint is the result, otherwise the one with the lowest loss on valid.
baseline_checkpoint=checkpoint_last.pt
[[ $SCHEDULE != inverse_sqrt ]] || baseline_checkpoint=checkpoint_best.pt
schedule "$PRUNE_SCHEDULE" "$PRUNE_LR" "$PRUNE_WARMUP" "$PRUNE_UPDATES" "$MIN_LR"
further_training=("${common[@]}" "${scheduled[@]}")
gates=(${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"} ${GATE_INIT:+--gate-init "$GATE_INIT"}
  ${FIX_AFTER:+--fix-gates-after "$FIX_AFTER"})
[[ $GATE_HARD == 0 ]] || gates+=(--gate-hard)
[[ $GATE_OUTPUT_SCALE == 0 ]] || gates+=(--gate-output-scale)
scoring=("$bin" --user-dir "$plugin" "${task[@]}" --max-tokens "$EVAL_TOKENS" "${device[@]}")
evaluation=("${scoring[@]}" --gen-subset test --loss-subset valid,test --text "valid=$text/valid.words" --text "test=$text/test.words")

all_models
table language_model --paper "$PAPER" --bpe "$BPE" --plot "$out/results.svg"
