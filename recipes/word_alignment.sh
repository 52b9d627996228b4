#!/usr/bin/env bash
# Word alignments of the Greek New Testament against manual ones, before and after half of the heads of a translation
# model are removed.
#
#   recipes/word_alignment.sh [--dry-run] OUT_DIR
#
# Downloads the package bible-alignments 0.4.2 (9 MB; the links CC BY 4.0, the English text in the public domain), trains
# a small Greek-English model on all 7,919 verses with recipes/translation.sh, and aligns 1,000 of these verses: word
# aligners, too, align the text that they are trained on. Then it removes half of the heads by each of six scores, with
# and without refit (one head of every layer stays), and aligns again. The best head is chosen on 500 other verses. If
# eflomal is installed (pip install eflomal), it aligns the same text. The last output is a table of alignment error
# rates. Run the same command again to resume; --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

configure RUNS= PRETOKENIZED=1 LOWERCASE=1 JOINT=0 BPE=4000 DROPOUT=0.3 UPDATES=8000 WARMUP=300 SAVE_EVERY=1000 -- "$@"
out=${arguments[0]}
need headgates
check_out "$out"
stage "$out"/package/*.whl "$out/package/log" python3 -m pip download -q --no-deps -d "$out/package" \
  bible-alignments==0.4.2
stage "$out/package/LICENSE.md" "$out/package/log" python3 -m zipfile -e "$out"/package/*.whl "$out/package"
show_into "$out/corpus.txt" python3 "$recipes/lib" corpora.bible "$out/package" "$out/corpus"
find_devices
dry && dry_run=(--dry-run) || dry_run=()
part_of_recipe "$recipes/translation.sh" "${dry_run[@]}" "$out/corpus" "$out" el en

# align NAME MODEL SUBSET BY: write $place/align/NAME.json and NAME.align.
align() {
  stage "$place/align/$1.json" "$place/align/log" headgates functions "$out/data-bin" --path "$2" --gen-subset "$3" \
    --alignment "$out/corpus/$3.align" --align-by "$4" --write-alignments "$place/align/$1.align" --no-rare \
    --max-tokens "$GENERATION_TOKENS" "${device[@]}" --out "$place/align/$1.json" --force
}
align_all() { # NAME MODEL
  say "aligning with $1 of ${place#"$out/"}"
  align "$1.chosen" "$2" valid best
  local best=HEAD
  dry || best=$(python3 "$recipes/lib" results.alignment --by "$place/align/$1.chosen.json")
  align "$1.best" "$2" test "$best"
  align "$1.average" "$2" test "dec-enc:$((DECODER_LAYERS - 1)).*"
  align "$1.alti" "$2" test alti
}
names=(whole)
for score in gradient ablation confidence relevance refit random; do names+=("$score" "$score-refit"); done
for seed in "${!places[@]}"; do
  place=${places[seed]} model=${places[seed]}/baseline/checkpoint_last.pt
  align_all whole "$model"
  stage "$place/align/scores.json" "$place/align/log" headgates score "$out/data-bin" --path "$model" "${device[@]}" \
    --gen-subset valid --seed "$((seed + 1))" --method gradient,ablation,confidence,relevance,refit,random \
    --out "$place/align/scores.json" --force
  for name in "${names[@]:1}"; do
    refit=()
    [[ $name != *-refit ]] || refit=(--refit "$out/data-bin" "${device[@]}")
    stage "$place/align/$name.pt" "$place/align/log" headgates prune "$model" "$place/align/$name.pt" --keep 0.5 \
      --scores "$place/align/scores.json" --method "${name%-refit}" --min-per-layer 1 --force "${refit[@]}"
    align_all "$name" "$place/align/$name.pt"
  done
done
! command -v eflomal-align >/dev/null || stage "$out/eflomal.reverse" "$out/eflomal.log" eflomal-align --overwrite \
  -s "$out/text/train.tok.el" -t "$out/text/train.tok.en" -f "$out/eflomal.forward" -r "$out/eflomal.reverse"
last_table "$out/alignment.txt" python3 "$recipes/lib" results.alignment "$out/corpus" "$out/eflomal" \
  "${places[@]/%//align}" --models "${names[@]}"
