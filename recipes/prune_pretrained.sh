#!/usr/bin/env bash
# Prune a trained model without training, as in Michel et al. 2019.
#
#   recipes/prune_pretrained.sh [--dry-run] CHECKPOINT DATA OUT_DIR
#
# Heads are scored by the gradient of the loss and by ablation, then removed step by step in that order. The last output
# is a table of BLEU: a row for each score, a column for each fraction of removed heads. OUT_DIR/pruned.pt keeps KEEP
# heads, a number or a fraction.
#
# CHECKPOINT is a .pt file with its dictionaries (dict.*.txt) and BPE codes (bpecodes, of subword-nmt) in the same
# folder, or the name of a trained model of fairseq, which is downloaded: transformer.wmt14.en-fr, the model of the
# paper. DATA is a folder with raw text, {valid,test}.{SRC,TGT}, one sentence per line: heads are scored on valid, BLEU
# is measured on test (in the paper newstest2009-12 and 2013). It may also be a folder made by fairseq-preprocess with
# these dictionaries. Runs on a CPU; a GPU is faster. Run the same command again to resume; --dry-run prints the
# commands that are still to be run.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"
set -a
: "${SRC:=en}" "${TGT:=fr}" "${STEPS:=0,10,20,30,40,50,60,70,80,90}" "${KEEP:=0.8}" "${TOKENIZE=tokenize -a}"
: "${BEAM:=5}" "${LENPEN:=1}" "${GENERATION_TOKENS:=4000}" "${SENTENCES:=}" "${DATA_DIR:=}"
set +a

parse_arguments "CHECKPOINT DATA OUT_DIR" "$@"
checkpoint=${arguments[0]} data=${arguments[1]} out=${arguments[2]}
need curl fairseq-preprocess fairseq-generate headgates sacremoses subword-nmt sacrebleu
check_settings
check_out "$out"
need_plots
[[ -f $checkpoint || $checkpoint == transformer.* || ${DRY_RUN:-0} == 1 ]] ||
  fail "CHECKPOINT='$checkpoint' is no file: give a .pt file, or a name like transformer.wmt14.en-fr"
if ! compgen -G "$data/dict.*.txt" >/dev/null; then
  no_colon "$out"
  for split in valid test; do
    for language in "$SRC" "$TGT"; do
      [[ -f $data/$split.$language || -f $data/$split.$language.gz ]] ||
        fail "$data/$split.$language[.gz] is missing: DATA needs valid and test in $SRC and $TGT, or the output of fairseq-preprocess"
      need_text "$data" "$language" "$split"
    done
  done
  for file in bpecodes "dict.$SRC.txt" "dict.$TGT.txt"; do
    [[ ! -f $checkpoint || -f $(dirname "$checkpoint")/$file ]] ||
      fail "$(dirname "$checkpoint")/$file is missing: CHECKPOINT needs its BPE codes and dictionaries in the same folder"
  done
fi
find_plugin
find_devices
keep_settings "$out" "CHECKPOINT=$checkpoint DATA=$data SRC=$SRC TGT=$TGT STEPS=$STEPS KEEP=$KEEP TOKENIZE=${TOKENIZE// /,} BEAM=$BEAM \
LENPEN=$LENPEN SENTENCES=$SENTENCES"
lock_out "$out"

if [[ $checkpoint == transformer.* && ! -f $checkpoint ]]; then
  step "getting $checkpoint" \
    python3 "$recipes/lib" corpora.pretrained "$checkpoint" "$out" ${DATA_DIR:+--data-dir "$DATA_DIR"}
  checkpoint=$out/model/model.pt
fi
model=$(dirname "$checkpoint")

# --- text: raw -> tokenised -> BPE -> binarised ---------------------------------------------------------------------
bin=$data
if ! compgen -G "$data/dict.*.txt" >/dev/null; then
  bin=$out/data-bin text=$out/text
  [[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$text"
  for split in valid test; do
    for language in "$SRC" "$TGT"; do
      raw=$data/$split.$language
      [[ ${DRY_RUN:-0} == 1 || -s $text/$split.tok.$language ]] || need_utf8 "$raw"
      by_lines "$raw" "$text/$split.tok.$language" "${TOKENIZE:+sacremoses -q -l $language normalize }${TOKENIZE:-cat}"
      by_lines "$text/$split.tok.$language" "$text/$split.bpe.$language" "$(quoted subword-nmt apply-bpe -c "$model/bpecodes")"
    done
    aligned "$split" "$text/$split.tok" "$SRC" "$TGT"
  done
  if [[ ! -d $bin ]]; then
    [[ ${DRY_RUN:-0} == 1 ]] || rm -rf "$bin.part"
    run "$out/preprocess.log" fairseq-preprocess -s "$SRC" -t "$TGT" --validpref "$text/valid.bpe" --testpref "$text/test.bpe" \
      --srcdict "$model/dict.$SRC.txt" --tgtdict "$model/dict.$TGT.txt" --destdir "$bin.part" --workers "$(nproc)"
    run "$out/preprocess.log" mv "$bin.part" "$bin"
  fi
fi

# --- scores, curves, a pruned checkpoint ----------------------------------------------------------------------------
common=("$bin" --path "$checkpoint" --user-dir "$plugin" --source-lang "$SRC" --target-lang "$TGT"
  --max-tokens "$GENERATION_TOKENS" "${device[@]}")
search=(--beam "$BEAM" --lenpen "$LENPEN" --remove-bpe --tokenizer moses)
say "scoring the heads on valid"
[[ -f $out/scores.json ]] ||
  run "$out/scores.log" headgates score "${common[@]}" --gen-subset valid ${SENTENCES:+--sentences "$SENTENCES"} \
    --method gradient,ablation --out "$out/scores.json" --plot "$out/scores.svg" --force
into "$out/agreement.txt" "$(quoted headgates correlate "$out/scores.json")"
[[ ${DRY_RUN:-0} == 1 ]] || cat "$out/agreement.txt"
for method in gradient ablation; do
  say "removing heads step by step, by $method"
  [[ -f $out/$method.tsv ]] ||
    run "$out/$method.log" headgates curve "${common[@]}" --gen-subset test "${search[@]}" --scores "$out/scores.json" \
      --score-method "$method" --types all --steps "$STEPS" --out "$out/$method.json" --tsv "$out/$method.tsv" \
      --plot "$out/$method.svg" --force
done
say "the pruned checkpoint: $out/pruned.pt"
[[ -f $out/pruned.pt ]] ||
  run "$out/prune.log" headgates prune "$checkpoint" "$out/pruned.pt" --scores "$out/scores.json" --method gradient \
    --keep "$KEEP" --no-optimizer
last_table "$out/results.txt" python3 "$recipes/lib/curves.py" "$out/gradient.tsv" "$out/ablation.tsv"
