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
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/runs.sh"
source "$recipes/lib/defaults.sh"

parse_arguments "RAW_DIR OUT_DIR SRC TGT" "$@"
raw=${arguments[0]} out=${arguments[1]} src=${arguments[2]} tgt=${arguments[3]}
export SRC=$src TGT=$tgt
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra clean_flags <<<"$CLEAN"
read -ra seeds <<<"$SEEDS"

need fairseq-preprocess fairseq-train fairseq-generate fairseq-validate headgates sacremoses subword-nmt sacrebleu
check_settings
check_out "$out"
no_colon "$out"
[[ ${DRY_RUN:-0} == 1 ]] || need_parallel "$raw" "$src" "$tgt"
for language in "$src" "$tgt"; do need_text "$raw" "$language" train valid test; done
find_plugin
find_devices
keep_settings "$out" "SRC=$src TGT=$tgt LOWERCASE=$LOWERCASE PRETOKENIZED=$PRETOKENIZED CLEAN=${CLEAN// /,} BPE=$BPE \
JOINT=$JOINT ARCH=$ARCH EMBED=$EMBED FFN=$FFN LAYERS=$LAYERS DECODER_LAYERS=${DECODER_LAYERS:-$LAYERS} HEADS=$HEADS \
PRE_NORM=$PRE_NORM DROPOUT=$DROPOUT$([[ $UNTIED == 0 ]] || echo " UNTIED=1")\
$([[ $SELECTION == bleu ]] || echo " SELECTION=$SELECTION") $(batch_settings) \
SCHEDULE=$SCHEDULE EPOCHS=$EPOCHS UPDATES=$UPDATES LR=$LR WARMUP=$WARMUP SAVE_EVERY=$SAVE_EVERY AVERAGE=$AVERAGE \
TRAIN_FLAGS=${TRAIN_FLAGS// /,} $(seeds_setting)"
# Controls and runs are comparable only with the same further training; without RUNS there is none.
[[ -z ${RUNS// /} ]] || keep_settings "$out" "PRUNE_UPDATES=$PRUNE_UPDATES PRUNE_LR=$PRUNE_LR PRUNE_WARMUP=$PRUNE_WARMUP \
PRUNE_SCHEDULE=$PRUNE_SCHEDULE GATE_LR_SCALE=$GATE_LR_SCALE L0_WARMUP=$L0_WARMUP SPARSITY_WARMUP=$SPARSITY_WARMUP \
FIX_AFTER=$FIX_AFTER SENTENCES=$SENTENCES ITERATIONS=$ITERATIONS" runs.txt
keep_settings "$out" "BEAM=$BEAM LENPEN=$LENPEN" generation.txt
[[ -z $METRIC ]] || keep_metric "$out"
same_text "$raw" "$out" "$src" "$tgt"
lock_out "$out"

# --- text: raw -> tokenised -> cleaned -> BPE -> binarised ----------------------------------------------------------
text=$out/text bin=$out/data-bin
[[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$text"

tokenise() { [[ $PRETOKENIZED == 1 ]] && echo cat || echo "sacremoses -q -l $1 normalize tokenize"; }
lowercased() { [[ $LOWERCASE == 0 ]] || echo " | python3 $(quoted "$recipes/lib") text.lines lowercase"; }

say "tokenising and encoding the text"
for split in train valid test; do
  for language in "$src" "$tgt"; do
    [[ ${DRY_RUN:-0} == 1 || -s $text/$split.tok.$language ]] || need_utf8 "$raw/$split.$language"
    by_lines "$raw/$split.$language" "$text/$split.tok.$language" "$(tokenise "$language")$(lowercased)"
  done
  aligned "$split" "$text/$split.tok" "$src" "$tgt"
done
detokenised() { [[ $PRETOKENIZED == 0 ]] || echo "| sacremoses -q -l $1 detokenize"; }
into "$text/reference.$tgt" "$(reading "$raw/test.$tgt")$(detokenised "$tgt")"
[[ -z $METRIC ]] || into "$text/source.$src" "$(reading "$raw/test.$src")$(detokenised "$src")"
train=$text/train.tok
if [[ -n $CLEAN ]]; then
  train=$text/train.clean
  step_into "$text/cleaning.txt" python3 "$recipes/lib" text.clean "$text/train.tok" "$train" "$src" "$tgt" "${clean_flags[@]}" \
    --without "$text/valid.tok" "$text/test.tok"
  if [[ ${DRY_RUN:-0} != 1 ]]; then
    cat "$text/cleaning.txt"
    [[ -s $train.$src ]] || fail "CLEAN='$CLEAN' leaves no training text (see the table above): use other options and another OUT_DIR"
  fi
fi
learn_bpe() { quoted subword-nmt learn-bpe -s "$BPE" --input "$1"; }
if [[ $JOINT == 1 ]]; then
  into "$text/train.both" "$(quoted cat "$train.$src" "$train.$tgt")"
  into "$text/codes.$src" "$(learn_bpe "$text/train.both")"
  into "$text/codes.$tgt" "$(quoted cat "$text/codes.$src")"
  dictionary=(--joined-dictionary) embeddings=(--share-all-embeddings)
else
  for language in "$src" "$tgt"; do into "$text/codes.$language" "$(learn_bpe "$train.$language")"; done
  dictionary=() embeddings=(--share-decoder-input-output-embed)
fi
[[ $UNTIED == 0 ]] || dictionary=() embeddings=()
for split in train valid test; do
  for language in "$src" "$tgt"; do
    tokens=$text/$split.tok.$language
    [[ $split == train ]] && tokens=$train.$language
    by_lines "$tokens" "$text/$split.bpe.$language" "$(quoted subword-nmt apply-bpe -c "$text/codes.$language")"
  done
done
need_short_lines source "$src"
need_short_lines target "$tgt"
if [[ ! -d $bin ]]; then
  [[ ${DRY_RUN:-0} == 1 ]] || rm -rf "$bin.part"
  run "$out/preprocess.log" fairseq-preprocess -s "$src" -t "$tgt" --trainpref "$text/train.bpe" \
    --validpref "$text/valid.bpe" --testpref "$text/test.bpe" --destdir "$bin.part" --workers "$(nproc)" "${dictionary[@]}"
  run "$out/preprocess.log" mv "$bin.part" "$bin"
fi

record_text "$raw" "$out" "$src" "$tgt"
text_is_made # from here on each model has a lock of its own

# --- models: a baseline, then its controls, and runs that start from it and are pruned ------------------------------
if [[ -n $TOKENS_PER_UPDATE ]]; then
  plan=(python3 "$recipes/lib" text.batches "$bin" "$src" "$tgt" --tokens "$TOKENS_PER_UPDATE" --workers "$workers" --max-tokens "$MAX_TOKENS")
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    quoted "${plan[@]}"
    echo "# gives --max-tokens and --update-freq"
    UPDATE_FREQ="UPDATE_FREQ"
  else
    answer "MAX_TOKENS UPDATE_FREQ" "${plan[@]}"
  fi
fi
[[ $LOWERCASE == 0 ]] || lowercase=(--lowercase)
size=(--encoder-embed-dim "$EMBED" --decoder-embed-dim "$EMBED" --encoder-ffn-embed-dim "$FFN"
  --decoder-ffn-embed-dim "$FFN" --encoder-layers "$LAYERS" --decoder-layers "${DECODER_LAYERS:-$LAYERS}"
  --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS"
  "${embeddings[@]}")
[[ $PRE_NORM == 0 ]] || size+=(--encoder-normalize-before --decoder-normalize-before)
common=(--task translation -s "$src" -t "$tgt" "${size[@]}" --dropout "$DROPOUT" --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ" "${train_flags[@]}")
# Checkpoints by updates, and none at the end of epochs.
[[ -z $SAVE_EVERY ]] || common+=(--save-interval-updates "$SAVE_EVERY" --validate-interval-updates "$SAVE_EVERY"
  --keep-interval-updates "$((AVERAGE > 1 ? AVERAGE : 1))" --save-interval 1000000 --validate-interval 1000000)
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
generate=(fairseq-generate "$bin" --user-dir "$plugin" --gen-subset test --remove-bpe --beam "$BEAM" --lenpen "$LENPEN"
  --max-tokens "$GENERATION_TOKENS" --required-batch-size-multiple 1 "${device[@]}")
gates=(${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"} ${FIX_AFTER:+--fix-gates-after "$FIX_AFTER"})

lines_of plan_of_runs python3 "$recipes/lib/runs.py"
folders=() share=${SHARE:-1/1}
# Shares begin with different seeds, so that they do not wait for the same baseline.
for ((turn = 0; turn < ${#seeds[@]}; turn++)); do
  position=$(((${share%/*} - 1 + turn) % ${#seeds[@]}))
  seed=${seeds[position]}
  place_of "$seed"
  all_runs "$place" "$((position * ${#plan_of_runs[@]}))"
done
if [[ -n $SHARE ]]; then
  say "share $SHARE is complete"
  exit
fi
last_table "$out/results.txt" \
  python3 "$recipes/lib/results.py" "${folders[@]}" ${PAPER:+--paper "$PAPER"} ${METRIC:+--metric "$METRIC_NAME"} \
  --seed "${seeds[0]}" --tsv "$out/results.tsv" --json "$out/results.json"
