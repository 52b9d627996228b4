#!/usr/bin/env bash
# From raw parallel text to a table of pruned models, with fairseq's own commands.
#
#   recipes/translation.sh [--dry-run] RAW_DIR OUT_DIR SRC TGT
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, plain or .gz, one sentence per line. Every stage is skipped when
# its output is in OUT_DIR: stop it whenever you like and run the same line again. The last thing it prints is
# a table: model, heads kept per attention type, parameters, BLEU and chrF on detokenised text. --dry-run prints the
# commands that are still to be run.
#
# Settings come from the environment; the defaults are a small model for two CPU cores:
#   LOWERCASE=0       1: lowercase the text (BLEU is then case-insensitive)
#   PRETOKENIZED=0    1: the text is tokenised already (the reference is detokenised for scoring)
#   CLEAN=""          options of clean.py for the tokenised training text, for example "--max-length 200 --unique"
#   BPE=6000 JOINT=1  BPE merges; 1: one code and one dictionary for both languages, embeddings shared
#   ARCH=transformer EMBED=128 FFN=512 LAYERS=3 HEADS=8 PRE_NORM=1 DROPOUT=0.1     the baseline
#   MAX_TOKENS=2500 UPDATE_FREQ=1 EPOCHS=16 LR=0.004 WARMUP=600           its training
#   TOKENS_PER_UPDATE=    source tokens for each update, whatever the number of GPUs: --update-freq follows from it, and
#                         --max-tokens (at most MAX_TOKENS) too; see batches.py
#   UPDATES=              its updates, instead of EPOCHS
#   KEEP_EPOCHS=0         1: keep a checkpoint of every epoch
#   SAVE_EVERY= AVERAGE=0 checkpoints (and dev BLEU) every so many updates; models are the mean of the last AVERAGE
#   RUNS="enc-self:0.01 ..."    gated runs, each TYPES:LAMBDA; "all" stands for enc-self,dec-self,dec-enc;
#                               with enc-self alone the decoder is frozen (Voita et al. 2019, section 6.2)
#   SCRATCH=""            which TYPES of them to train from nothing too, with the heads that were left: "all"
#   PRUNE_UPDATES=1260 PRUNE_LR=0.0015 PRUNE_WARMUP=100 GATE_LR_SCALE=    their training; the rate falls to 0, linearly
#   PRUNE_SCHEDULE=polynomial_decay               (or inverse_sqrt, as the baseline's; fixed, cosine, reduce_lr_on_plateau)
#   TRAIN_FLAGS=""              anything else for every fairseq-train, for example "--fp16"
#   BEAM=4 LENPEN=1 (fairseq's default; the 0.6 of the paper belongs to another formula) SEED=1
#   PAPER=                      wmt or opensubtitles: set the numbers of Voita et al. 2019, table 2, beside ours
#   HEADGATES=<folder of the plugin, default: headgates path>
# GPUS, HOSTS, LAUNCHER, WORKERS: where it runs, see common.sh. Ctrl-C, SIGTERM or SIGUSR1 stop a training with a
# checkpoint. settings.py has the range of every setting, and refuses any other value before anything runs.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/common.sh"

recipe_arguments "RAW_DIR OUT_DIR SRC TGT" "$@"
raw=${arguments[0]} out=${arguments[1]} src=${arguments[2]} tgt=${arguments[3]}
set -a # settings.py and the programs see the settings in the environment
SRC=$src TGT=$tgt
: "${LOWERCASE:=0}" "${PRETOKENIZED:=0}" "${CLEAN:=}" "${BPE:=6000}" "${JOINT:=1}"
: "${ARCH:=transformer}" "${EMBED:=128}" "${FFN:=512}" "${LAYERS:=3}" "${HEADS:=8}" "${PRE_NORM:=1}" "${DROPOUT:=0.1}"
: "${MAX_TOKENS:=2500}" "${UPDATE_FREQ:=1}" "${TOKENS_PER_UPDATE:=}" "${EPOCHS:=16}" "${UPDATES:=}" "${LR:=0.004}"
: "${WARMUP:=600}" "${SAVE_EVERY:=}" "${AVERAGE:=0}" "${TRAIN_FLAGS:=}" "${PAPER:=}" "${SCRATCH:=}"
: "${RUNS=enc-self:0.01 enc-self:0.02 all:0.02 all:0.03}"
: "${PRUNE_UPDATES:=1260}" "${PRUNE_LR:=0.0015}" "${PRUNE_WARMUP:=100}" "${GATE_LR_SCALE:=}"
: "${PRUNE_SCHEDULE:=polynomial_decay}"
set +a
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
# How an update is put together from batches is a matter of the machine where TOKENS_PER_UPDATE says how large it is.
batch_settings="MAX_TOKENS=$MAX_TOKENS UPDATE_FREQ=$UPDATE_FREQ"
[[ -z $TOKENS_PER_UPDATE ]] || batch_settings="TOKENS_PER_UPDATE=$TOKENS_PER_UPDATE"
keep_settings "$out" "SRC=$src TGT=$tgt LOWERCASE=$LOWERCASE PRETOKENIZED=$PRETOKENIZED CLEAN=${CLEAN// /,} BPE=$BPE \
JOINT=$JOINT ARCH=$ARCH EMBED=$EMBED FFN=$FFN LAYERS=$LAYERS HEADS=$HEADS PRE_NORM=$PRE_NORM DROPOUT=$DROPOUT $batch_settings EPOCHS=$EPOCHS \
UPDATES=$UPDATES LR=$LR WARMUP=$WARMUP SAVE_EVERY=$SAVE_EVERY AVERAGE=$AVERAGE TRAIN_FLAGS=${TRAIN_FLAGS// /,}"
only_run "$out"

# --- text: raw -> tokenised -> cleaned -> BPE -> binarised ----------------------------------------------------------
text=$out/text bin=$out/data-bin
[[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$text"

lowercased() { [[ $LOWERCASE == 0 ]] || echo "| python3 $(quoted "$recipes/lowercase.py")"; }
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
  step_into "$text/cleaning.txt" python3 "$recipes/clean.py" "$text/train.tok" "$train" "$src" "$tgt" "${clean_flags[@]}" \
    --without "$text/valid.tok" "$text/test.tok"
  if [[ ${DRY_RUN:-0} != 1 ]]; then
    cat "$text/cleaning.txt"
    [[ -s $train.$src ]] || fail "CLEAN='$CLEAN' leaves no training text (see the table above): other options need another OUT_DIR"
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

# --- models: one baseline, then gated runs that start from it and are pruned ----------------------------------------
if [[ -n $TOKENS_PER_UPDATE ]]; then
  plan=(python3 "$recipes/batches.py" "$bin" "$src" "$tgt" --tokens "$TOKENS_PER_UPDATE" --workers "$workers" --max-tokens "$MAX_TOKENS")
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
# Checkpoints by updates, and then none at the end of epochs.
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
  python3 "$recipes/results.py" "${runs[@]}" ${PAPER:+--paper "$PAPER"} --tsv "$out/results.tsv"
