#!/usr/bin/env bash
# From raw text to a table of pruned language models, with fairseq's own commands.
#
#   recipes/language_model.sh [--dry-run] RAW_DIR OUT_DIR
#
# RAW_DIR holds {train,valid,test}.txt, plain or .gz, a sentence or a paragraph on each line, tokenised or not. The
# recipe trains a baseline, and prunes it once for each value of LAMBDAS. As a control, baseline+, it trains the
# baseline for as many more updates without gates. ARCH is fairseq's transformer_lm, or transformer_lm_all_attention (Shim
# et al. 2021). The last output is a table: model, heads kept, parameters, perplexity on the validation and the test set
# per token and per word, tokens per second. The defaults are a small model for two CPU cores.
#
# A stage is skipped when its output is in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1
# save a checkpoint and end the recipe with exit code 75. --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/language_models.sh"
source "$recipes/lib/language_model_defaults.sh"

parse_arguments "RAW_DIR OUT_DIR" "$@"
raw=${arguments[0]} out=${arguments[1]}
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra seeds <<<"$SEEDS"
read -ra lambdas <<<"$LAMBDAS"

need fairseq-preprocess fairseq-train fairseq-eval-lm headgates subword-nmt
need_plots
check_settings
check_out "$out"
no_colon "$out"
if [[ ${DRY_RUN:-0} != 1 ]]; then
  for split in train valid test; do
    [[ -f $raw/$split.txt || -f $raw/$split.txt.gz ]] ||
      fail "$raw/$split.txt[.gz] is missing: RAW_DIR needs train.txt, valid.txt and test.txt"
  done
fi
need_text "$raw" txt train valid test
find_plugin
find_devices
keep_settings "$out" "BPE=$BPE VOCABULARY=$VOCABULARY ARCH=$ARCH EMBED=$EMBED FFN=$FFN LAYERS=$LAYERS HEADS=$HEADS \
PRE_NORM=$PRE_NORM DROPOUT=$DROPOUT ADAPTIVE=$ADAPTIVE TOKENS_PER_SAMPLE=$TOKENS_PER_SAMPLE MEM_LEN=$MEM_LEN \
PERSISTENT_VECTORS=$PERSISTENT_VECTORS STREAM_BLOCKS=$STREAM_BLOCKS $(batch_settings) OPTIMIZER=$OPTIMIZER \
SCHEDULE=$SCHEDULE UPDATES=$UPDATES LR=$LR MIN_LR=$MIN_LR WARMUP=$WARMUP SAVE_EVERY=$SAVE_EVERY \
TRAIN_FLAGS=${TRAIN_FLAGS// /,} $(seeds_setting)"
keep_settings "$out" "PRUNE_UPDATES=$PRUNE_UPDATES PRUNE_LR=$PRUNE_LR PRUNE_WARMUP=$PRUNE_WARMUP \
PRUNE_SCHEDULE=$PRUNE_SCHEDULE GATE_LR_SCALE=$GATE_LR_SCALE GATE_INIT=$GATE_INIT GATE_HARD=$GATE_HARD \
GATE_OUTPUT_SCALE=$GATE_OUTPUT_SCALE L0_WARMUP=$L0_WARMUP FIX_AFTER=$FIX_AFTER" runs.txt
keep_settings "$out" "EVAL_TOKENS=$EVAL_TOKENS" evaluation.txt
same_text "$raw" "$out" txt
lock_out "$out"

# --- text: raw -> one blank between words -> BPE -> binarised -------------------------------------------------------
text=$out/text bin=$out/data-bin
[[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$text"

say "encoding the text"
for split in train valid test; do
  [[ ${DRY_RUN:-0} == 1 || -s $text/$split.words ]] || need_utf8 "$raw/$split.txt"
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
if [[ ! -d $bin ]]; then
  [[ ${DRY_RUN:-0} == 1 ]] || rm -rf "$bin.part"
  run "$out/preprocess.log" fairseq-preprocess --only-source --trainpref "$text/train.$encoded" \
    --validpref "$text/valid.$encoded" --testpref "$text/test.$encoded" --destdir "$bin.part" --workers "$(nproc)" \
    "${dictionary[@]}"
  run "$out/preprocess.log" mv "$bin.part" "$bin"
fi
record_text "$raw" "$out" txt

# --- models: a baseline, its control, and gated runs that start from it ---------------------------------------------
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
if [[ $ARCH == transformer_lm ]]; then
  gated_arch=transformer_lm_head_gates task=(--task language_modeling --tokens-per-sample "$TOKENS_PER_SAMPLE")
  size+=(--decoder-ffn-embed-dim "$FFN")
  [[ $PRE_NORM == 0 ]] || size+=(--decoder-normalize-before)
else
  gated_arch=$ARCH
  task=(--task language_modeling_segments --tokens-per-sample "$TOKENS_PER_SAMPLE" --stream-blocks "$STREAM_BLOCKS")
  size+=(--persistent-vectors "$PERSISTENT_VECTORS" --mem-len "$MEM_LEN")
fi
optimizer=(--optimizer "$OPTIMIZER" --clip-norm 1.0)
[[ $OPTIMIZER != adam ]] || optimizer+=(--adam-betas '(0.9, 0.98)')
common=("${task[@]}" "${size[@]}" "${optimizer[@]}" --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ"
  --required-batch-size-multiple 1 "${train_flags[@]}")
# Checkpoints by updates, and none at the end of epochs.
[[ -z $SAVE_EVERY ]] || common+=(--save-interval-updates "$SAVE_EVERY" --validate-interval-updates "$SAVE_EVERY"
  --keep-interval-updates 1 --save-interval 1000000 --validate-interval 1000000)
schedule "$SCHEDULE" "$LR" "$WARMUP" "$UPDATES"
baseline_training=("${common[@]}" "${scheduled[@]}")
schedule "$PRUNE_SCHEDULE" "$PRUNE_LR" "$PRUNE_WARMUP" "$PRUNE_UPDATES"
further_training=("${common[@]}" "${scheduled[@]}")
gates=(${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"} ${GATE_INIT:+--gate-init "$GATE_INIT"}
  ${L0_WARMUP:+--l0-warmup-updates "$L0_WARMUP"} ${FIX_AFTER:+--fix-gates-after "$FIX_AFTER"})
[[ $GATE_HARD == 0 ]] || gates+=(--gate-hard)
[[ $GATE_OUTPUT_SCALE == 0 ]] || gates+=(--gate-output-scale)
evaluation=("$bin" --user-dir "$plugin" "${task[@]}" --max-tokens "$EVAL_TOKENS" --log-format simple "${device[@]}")

folders=() checkpoints=()
for seed in "${seeds[@]}"; do
  place_of "$seed"
  lm_baseline "$place/baseline"
  lm_control "$place/baseline+"
  for weight in "${lambdas[@]}"; do lm_gated "$place/lambda$weight" "$weight"; done
done
if [[ $SPEED == 1 ]]; then
  say "measuring the speed of every model on the test set"
  for ((i = 0; i < ${#folders[@]}; i++)); do time_lm "${folders[i]}" "${checkpoints[i]}"; done
fi
last_table "$out/results.txt" \
  python3 "$recipes/lib/language_model_results.py" "${folders[@]}" --paper "$PAPER" --seed "${seeds[0]}" \
  --bpe "$BPE" --speed "$SPEED" --tsv "$out/results.tsv" --plot "$out/results.svg"
