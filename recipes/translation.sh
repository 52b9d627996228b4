#!/usr/bin/env bash
# From raw parallel text to a table of pruned models, with fairseq's own commands.
#
#   recipes/translation.sh [--dry-run] RAW_DIR OUT_DIR SRC TGT
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, plain or .gz, one sentence per line. A baseline is trained, then gated
# models that start from it and are pruned. The last output is a table: model, heads kept per attention type,
# parameters, BLEU and chrF on detokenised text. The defaults are a small model for two CPU cores.
#
# A stage is skipped when its output is in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1
# stop a training with a checkpoint. --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/defaults.sh"

parse_arguments "RAW_DIR OUT_DIR SRC TGT" "$@"
raw=${arguments[0]} out=${arguments[1]} src=${arguments[2]} tgt=${arguments[3]}
export SRC=$src TGT=$tgt
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra clean_flags <<<"$CLEAN"

need fairseq-preprocess fairseq-train fairseq-generate headgates sacremoses subword-nmt sacrebleu
check_settings
check_out "$out"
no_colon "$out"
if [[ ${DRY_RUN:-0} != 1 ]]; then
  for split in train valid test; do
    for language in "$src" "$tgt"; do
      [[ -f $raw/$split.$language || -f $raw/$split.$language.gz ]] ||
        fail "$raw/$split.$language[.gz] is missing: RAW_DIR needs train, valid and test in $src and $tgt"
    done
  done
fi
for language in "$src" "$tgt"; do need_text "$raw" "$language" train valid test; done
find_plugin
find_devices
# With TOKENS_PER_UPDATE the batches of an update depend on the machine, and are not part of the experiment.
batch_settings="MAX_TOKENS=$MAX_TOKENS UPDATE_FREQ=$UPDATE_FREQ"
[[ -z $TOKENS_PER_UPDATE ]] || batch_settings="TOKENS_PER_UPDATE=$TOKENS_PER_UPDATE"
keep_settings "$out" "SRC=$src TGT=$tgt LOWERCASE=$LOWERCASE PRETOKENIZED=$PRETOKENIZED CLEAN=${CLEAN// /,} BPE=$BPE \
JOINT=$JOINT ARCH=$ARCH EMBED=$EMBED FFN=$FFN LAYERS=$LAYERS HEADS=$HEADS PRE_NORM=$PRE_NORM DROPOUT=$DROPOUT $batch_settings EPOCHS=$EPOCHS \
UPDATES=$UPDATES LR=$LR WARMUP=$WARMUP SAVE_EVERY=$SAVE_EVERY AVERAGE=$AVERAGE TRAIN_FLAGS=${TRAIN_FLAGS// /,}"
lock_out "$out"

# --- text: raw -> tokenised -> cleaned -> BPE -> binarised ----------------------------------------------------------
text=$out/text bin=$out/data-bin
[[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$text"

lowercased() { [[ $LOWERCASE == 0 ]] || echo "| python3 $(quoted "$recipes/lib/lowercase.py")"; }
tokenised() { [[ $PRETOKENIZED == 1 ]] || echo "| sacremoses -q -l $1 normalize tokenize"; }

say "tokenising and encoding the text"
for split in train valid test; do
  for language in "$src" "$tgt"; do
    into "$text/$split.tok.$language" "$(reading "$raw/$split.$language")$(tokenised "$language")$(lowercased)"
  done
  aligned "$split" "$text/$split.tok" "$src" "$tgt"
done
detokenised() { [[ $PRETOKENIZED == 0 ]] || echo "| sacremoses -q -l $tgt detokenize"; }
into "$text/reference.$tgt" "$(reading "$raw/test.$tgt")$(detokenised)"
train=$text/train.tok
if [[ -n $CLEAN ]]; then
  train=$text/train.clean
  step_into "$text/cleaning.txt" python3 "$recipes/lib/clean.py" "$text/train.tok" "$train" "$src" "$tgt" "${clean_flags[@]}" \
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
for split in train valid test; do
  for language in "$src" "$tgt"; do
    tokens=$text/$split.tok.$language
    [[ $split == train ]] && tokens=$train.$language
    into "$text/$split.bpe.$language" "$(quoted subword-nmt apply-bpe -c "$text/codes.$language" --input "$tokens")"
  done
done
if [[ ! -d $bin ]]; then
  [[ ${DRY_RUN:-0} == 1 ]] || rm -rf "$bin.part"
  run "$out/preprocess.log" fairseq-preprocess -s "$src" -t "$tgt" --trainpref "$text/train.bpe" \
    --validpref "$text/valid.bpe" --testpref "$text/test.bpe" --destdir "$bin.part" --workers "$(nproc)" "${dictionary[@]}"
  run "$out/preprocess.log" mv "$bin.part" "$bin"
fi

# --- models: a baseline, then gated runs that start from it and are pruned ------------------------------------------
if [[ -n $TOKENS_PER_UPDATE ]]; then
  plan=(python3 "$recipes/lib/batches.py" "$bin" "$src" "$tgt" --tokens "$TOKENS_PER_UPDATE" --workers "$workers" --max-tokens "$MAX_TOKENS")
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    quoted "${plan[@]}"
    echo "# gives --max-tokens and --update-freq"
    UPDATE_FREQ="UPDATE_FREQ"
  else
    answer "MAX_TOKENS UPDATE_FREQ" "${plan[@]}"
  fi
fi
[[ $LOWERCASE == 1 ]] && sacrebleu_flags=(--lowercase --chrf-lowercase)
size=(--encoder-embed-dim "$EMBED" --decoder-embed-dim "$EMBED" --encoder-ffn-embed-dim "$FFN"
  --decoder-ffn-embed-dim "$FFN" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
  --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS"
  "${embeddings[@]}")
[[ $PRE_NORM == 0 ]] || size+=(--encoder-normalize-before --decoder-normalize-before)
common=(--task translation -s "$src" -t "$tgt" "${size[@]}" --dropout "$DROPOUT" --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ"
  --eval-bleu --eval-bleu-args '{"beam": 1}' --eval-bleu-detok moses --eval-bleu-remove-bpe
  --best-checkpoint-metric bleu --maximize-best-checkpoint-metric
  "${train_flags[@]}")
# Checkpoints by updates, and none at the end of epochs.
[[ -z $SAVE_EVERY ]] || common+=(--save-interval-updates "$SAVE_EVERY" --validate-interval-updates "$SAVE_EVERY"
  --keep-interval-updates "$((AVERAGE > 1 ? AVERAGE : 1))" --save-interval 1000000 --validate-interval 1000000)
length=(--max-epoch "$EPOCHS")
[[ -z $UPDATES ]] || length=(--max-update "$UPDATES")
baseline_training=("${common[@]}" --lr-scheduler inverse_sqrt --lr "$LR" --warmup-updates "$WARMUP" "${length[@]}")
gated_training=("${common[@]}" --lr-scheduler "$PRUNE_SCHEDULE" --lr "$PRUNE_LR" --warmup-updates "$PRUNE_WARMUP"
  --max-update "$PRUNE_UPDATES" ${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"})
[[ $PRUNE_SCHEDULE != polynomial_decay ]] || gated_training+=(--total-num-update "$PRUNE_UPDATES")

reference=$text/reference.$tgt
train "$out/baseline" "$bin" --arch "$ARCH" --criterion label_smoothed_cross_entropy "${baseline_training[@]}"
averaged "$out/baseline" checkpoint_best.pt
baseline=$out/baseline/$checkpoint
evaluate "$out/baseline" "$checkpoint" "$bin" "$reference" "$tgt"

runs=("$out/baseline")
for run in $RUNS; do
  types=${run%:*} lambda=${run##*:}
  name=${types//,/+}_lambda$lambda
  scratch=0
  [[ " $(echo $SCRATCH) " == *" $types "* ]] && scratch=1
  [[ $types == all ]] && types=enc-self,dec-self,dec-enc
  gated_run "$out/$name" "$bin" "$reference" "$tgt" "$types" "$lambda" "$baseline" "${gated_training[@]}"
  runs+=("$out/$name")
  if ((scratch)); then
    scratch_run "$out/${name}_scratch" "$bin" "$reference" "$tgt" "$out/$name/pruned.pt" "${baseline_training[@]}"
    runs+=("$out/${name}_scratch")
  fi
done
last_table "$out/results.txt" \
  python3 "$recipes/lib/results.py" "${runs[@]}" ${PAPER:+--paper "$PAPER"} --tsv "$out/results.tsv"
