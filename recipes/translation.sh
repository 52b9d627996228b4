#!/usr/bin/env bash
# From raw parallel text to a table of pruned models, with fairseq's own commands.
#
#   recipes/translation.sh RAW_DIR OUT_DIR SRC TGT
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, plain or .gz, one sentence per line. Every stage is skipped when
# its output is in OUT_DIR: stop it whenever you like and run the same line again. The last thing it prints is
# a table: model, heads kept per attention type, parameters, BLEU and chrF on detokenised text.
#
# Settings come from the environment; the defaults are a small model for two CPU cores:
#   LOWERCASE=0       1: lowercase the text (BLEU is then case-insensitive)
#   PRETOKENIZED=0    1: the text is tokenised already (the reference is detokenised for scoring)
#   BPE=6000 JOINT=1  BPE merges; 1: one code and one dictionary for both languages, embeddings shared
#   ARCH=transformer EMBED=128 FFN=512 LAYERS=3 HEADS=8 DROPOUT=0.1       the baseline
#   MAX_TOKENS=2500 UPDATE_FREQ=1 EPOCHS=16 LR=0.004 WARMUP=600           its training
#   RUNS="enc-self:0.01 ..."    gated runs, each TYPES:LAMBDA; "all" stands for enc-self,dec-self,dec-enc;
#                               with enc-self alone the decoder is frozen (Voita et al. 2019, section 6.2)
#   PRUNE_UPDATES=1260 PRUNE_LR=0.0015 PRUNE_WARMUP=100 GATE_LR_SCALE=    their training; the rate falls to 0, linearly
#   TRAIN_FLAGS=""              anything else for every fairseq-train, for example "--fp16"
#   BEAM=4 LENPEN=1 (fairseq's default; the 0.6 of the paper belongs to another formula) SEED=1
#   HEADGATES=<folder of the plugin, default: headgates path>
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/common.sh"

[[ $# -eq 4 ]] || fail "got $# arguments, needs four: translation.sh RAW_DIR OUT_DIR SRC TGT"
raw=$1 out=$2 src=$3 tgt=$4
: "${LOWERCASE:=0}" "${PRETOKENIZED:=0}" "${BPE:=6000}" "${JOINT:=1}"
: "${ARCH:=transformer}" "${EMBED:=128}" "${FFN:=512}" "${LAYERS:=3}" "${HEADS:=8}" "${DROPOUT:=0.1}"
: "${MAX_TOKENS:=2500}" "${UPDATE_FREQ:=1}" "${EPOCHS:=16}" "${LR:=0.004}" "${WARMUP:=600}"
: "${RUNS=enc-self:0.01 enc-self:0.02 all:0.02 all:0.03}" "${TRAIN_FLAGS:=}"
: "${PRUNE_UPDATES:=1260}" "${PRUNE_LR:=0.0015}" "${PRUNE_WARMUP:=100}" "${GATE_LR_SCALE:=}"
read -ra train_flags <<<"$TRAIN_FLAGS"

need fairseq-preprocess fairseq-train fairseq-generate headgates sacremoses subword-nmt sacrebleu
plugin=${HEADGATES:-$(headgates path)}

for split in train valid test; do
  for language in "$src" "$tgt"; do
    [[ -f $raw/$split.$language || -f $raw/$split.$language.gz ]] ||
      fail "$raw/$split.$language[.gz] is missing: RAW_DIR needs train, valid and test in $src and $tgt"
  done
done
keep_settings "$out" "SRC=$src TGT=$tgt LOWERCASE=$LOWERCASE PRETOKENIZED=$PRETOKENIZED BPE=$BPE JOINT=$JOINT \
ARCH=$ARCH EMBED=$EMBED FFN=$FFN LAYERS=$LAYERS HEADS=$HEADS DROPOUT=$DROPOUT MAX_TOKENS=$MAX_TOKENS \
UPDATE_FREQ=$UPDATE_FREQ EPOCHS=$EPOCHS LR=$LR WARMUP=$WARMUP TRAIN_FLAGS=$TRAIN_FLAGS"

# --- text: raw -> tokenised -> BPE -> binarised ---------------------------------------------------------------
text=$out/text bin=$out/data-bin
mkdir -p "$text"

raw_text() { if [[ -f $raw/$1 ]]; then cat "$raw/$1"; else gzip -dc "$raw/$1.gz"; fi; }
cased() {
  if [[ $LOWERCASE == 1 ]]; then
    python3 -c 'import sys; sys.stdin.reconfigure(encoding="utf-8"); sys.stdout.reconfigure(encoding="utf-8")
for line in sys.stdin: sys.stdout.write(line.lower())'
  else
    cat
  fi
}
tokenised() {
  if [[ $PRETOKENIZED == 1 ]]; then raw_text "$1.$2" | cased; else
    raw_text "$1.$2" | sacremoses -q -l "$2" normalize tokenize | cased
  fi
}
reference() {
  if [[ $PRETOKENIZED == 1 ]]; then raw_text "test.$tgt" | sacremoses -q -l "$tgt" detokenize; else raw_text "test.$tgt"; fi
}

learn_bpe() { subword-nmt learn-bpe -s "$BPE" --input "$1" 2>>"$out/preprocess.log"; } # its progress bar fills a terminal

say "tokenising and encoding the text"
for split in train valid test; do
  for language in "$src" "$tgt"; do into "$text/$split.tok.$language" tokenised "$split" "$language"; done
  lines=$(wc -l <"$text/$split.tok.$src") other=$(wc -l <"$text/$split.tok.$tgt")
  [[ $lines == "$other" ]] || fail "$split has $lines lines in $src but $other in $tgt: the two sides must be aligned"
done
into "$text/reference.$tgt" reference
if [[ $JOINT == 1 ]]; then
  into "$text/codes.$src" learn_bpe <(cat "$text/train.tok.$src" "$text/train.tok.$tgt")
  into "$text/codes.$tgt" cat "$text/codes.$src"
  dictionary=(--joined-dictionary) embeddings=(--share-all-embeddings)
else
  for language in "$src" "$tgt"; do
    into "$text/codes.$language" learn_bpe "$text/train.tok.$language"
  done
  dictionary=() embeddings=(--share-decoder-input-output-embed)
fi
for split in train valid test; do
  for language in "$src" "$tgt"; do
    into "$text/$split.bpe.$language" subword-nmt apply-bpe -c "$text/codes.$language" --input "$text/$split.tok.$language"
  done
done
if [[ ! -d $bin ]]; then
  rm -rf "$bin.part"
  fairseq-preprocess -s "$src" -t "$tgt" --trainpref "$text/train.bpe" --validpref "$text/valid.bpe" \
    --testpref "$text/test.bpe" --destdir "$bin.part" --workers "$(nproc)" "${dictionary[@]}" >>"$out/preprocess.log" 2>&1
  mv "$bin.part" "$bin"
fi

# --- models: one baseline, then gated runs that start from it and are pruned --------------------------------------------------
[[ $LOWERCASE == 1 ]] && sacrebleu_flags=(--lowercase --chrf-lowercase)
size=(--encoder-embed-dim "$EMBED" --decoder-embed-dim "$EMBED" --encoder-ffn-embed-dim "$FFN"
  --decoder-ffn-embed-dim "$FFN" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
  --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS"
  --encoder-normalize-before --decoder-normalize-before "${embeddings[@]}")
common=(--task translation -s "$src" -t "$tgt" "${size[@]}" --dropout "$DROPOUT" --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ"
  --eval-bleu --eval-bleu-args '{"beam": 1}' --eval-bleu-detok moses --eval-bleu-remove-bpe
  --best-checkpoint-metric bleu --maximize-best-checkpoint-metric "${train_flags[@]}")

reference=$text/reference.$tgt
train "$out/baseline" "$bin" "${common[@]}" --arch "$ARCH" --criterion label_smoothed_cross_entropy \
  --lr-scheduler inverse_sqrt --lr "$LR" --warmup-updates "$WARMUP" --max-epoch "$EPOCHS"
evaluate "$out/baseline" checkpoint_best.pt "$bin" "$reference" "$tgt"

runs=("$out/baseline")
for run in $RUNS; do
  types=${run%:*} lambda=${run##*:}
  name=${types//,/+}_lambda$lambda
  [[ $types == all ]] && types=enc-self,dec-self,dec-enc
  gated_run "$out/$name" "$bin" "$reference" "$tgt" "$types" "$lambda" "$out/baseline/checkpoint_best.pt" \
    "${common[@]}" --lr-scheduler polynomial_decay --lr "$PRUNE_LR" --warmup-updates "$PRUNE_WARMUP" \
    --total-num-update "$PRUNE_UPDATES" --max-update "$PRUNE_UPDATES" \
    ${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"}
  runs+=("$out/$name")
done
echo
python3 "$recipes/results.py" "${runs[@]}" | tee "$out/results.txt"
