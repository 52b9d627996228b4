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
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

configure -- "$@"
checkpoint=${arguments[0]} data=${arguments[1]} out=${arguments[2]}
SHARE="" # of the other recipes, in lib/common.sh
need fairseq-preprocess headgates sacremoses subword-nmt
check_out "$out"
need_plots
[[ -f $checkpoint || $checkpoint == transformer.* ]] || dry ||
  fail "CHECKPOINT='$checkpoint' is not a file: give a .pt file, or a name like transformer.wmt14.en-fr"
binarised=$(compgen -G "$data/dict.*.txt" || true)
names=() files=()
[[ ! -f $checkpoint ]] || files=("$checkpoint")
if [[ -n $binarised ]]; then
  files+=("$data"/{dict,valid,test}.*)
else
  names=({valid,test}."$SRC" {valid,test}."$TGT")
  [[ ! -f $checkpoint ]] || files+=("$(dirname "$checkpoint")"/{bpecodes,dict."$SRC".txt,dict."$TGT".txt})
fi
dry || read_text "$data" "${names[@]}" ${files:+--files "${files[@]}"}
find_plugin
find_devices
keep_settings "$out" settings
lock_out "$out"
begin_text

if [[ $checkpoint == transformer.* && ! -f $checkpoint ]]; then
  get_model "$checkpoint" "$out"
  checkpoint=$out/model/model.pt
fi
model=$(dirname "$checkpoint")

# --- text: raw -> tokenised -> BPE -> binarised ---------------------------------------------------------------------
bin=$data
if [[ -n $binarised ]]; then
  record_text
else
  bin=$out/data-bin text=$out/text
  for split in valid test; do
    for language in "$SRC" "$TGT"; do
      by_lines "$data/$split.$language" "$text/$split.tok.$language" "${TOKENIZE:+sacremoses -q -l $language normalize }${TOKENIZE:-cat}"
      by_lines "$text/$split.tok.$language" "$text/$split.bpe.$language" "$(quoted subword-nmt apply-bpe -c "$model/bpecodes")"
    done
    aligned "$split" "$text/$split.tok" "$SRC" "$TGT"
  done
  binarise -s "$SRC" -t "$TGT" --validpref "$text/valid.bpe" --testpref "$text/test.bpe" \
    --srcdict "$model/dict.$SRC.txt" --tgtdict "$model/dict.$TGT.txt"
fi

# --- scores, curves, a pruned checkpoint ----------------------------------------------------------------------------
common=("$bin" --path "$checkpoint" --user-dir "$plugin" --source-lang "$SRC" --target-lang "$TGT"
  --max-tokens "$GENERATION_TOKENS" "${device[@]}")
search=(--beam "$BEAM" --lenpen "$LENPEN" --remove-bpe --tokenizer moses)
say "scoring the heads on valid"
stage "$out/scores.json" "$out/scores.log" headgates score "${common[@]}" --gen-subset valid \
  ${SENTENCES:+--sentences "$SENTENCES"} --method gradient,ablation --out "$out/scores.json" --plot "$out/scores.svg" --force
show_into "$out/agreement.txt" headgates correlate "$out/scores.json"
for method in gradient ablation; do
  say "removing heads step by step, by $method"
  stage "$out/$method.tsv" "$out/$method.log" headgates curve "${common[@]}" --gen-subset test "${search[@]}" \
    --scores "$out/scores.json" --score-method "$method" --types all --steps "$STEPS" --out "$out/$method.json" \
    --tsv "$out/$method.tsv" --plot "$out/$method.svg" --force
done
say "the pruned checkpoint: $out/pruned.pt"
stage "$out/pruned.pt" "$out/prune.log" headgates prune "$checkpoint" "$out/pruned.pt" --scores "$out/scores.json" \
  --method gradient --keep "$KEEP" --no-optimizer
last_table "$out/results.txt" python3 "$recipes/lib" results.curves "$out/gradient.tsv" "$out/ablation.tsv"
