#!/usr/bin/env bash
# The demonstration: train, gate and prune a small model on artificial text, in three minutes on two CPU cores.
#
#   recipes/demo.sh [--dry-run] [OUT_DIR, default demo-out]
#
# Makes a small artificial English-to-Russian corpus of plain sentences, trains a baseline transformer with 32 heads,
# trains it further without pruning as the control (baseline+), prunes half and three quarters of its heads, and prints a
# table and what was removed, lost and saved. It is recipes/translation.sh with small sizes, two models at a time. Then it
# removes heads and neurons of baseline+, 45% of the parameters of its layers, without training. At the end it writes a
# report, OUT_DIR/report.html.
# Needs no GPU and no download. Run the same command again to resume. `make demo` makes the environment first.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

if (($# == 0)) || [[ $# == 1 && $1 == --dry-run ]]; then set -- "$@" demo-out; fi
updates=()
[[ -n ${EPOCHS:-} ]] || updates=(UPDATES=260)
configure OMP_NUM_THREADS=1 RUNS="all=0.5 all=0.25" PRETOKENIZED=1 JOINT=0 BPE=1000 \
  EMBED=64 FFN=128 LAYERS=2 DECODER_LAYERS=1 HEADS=8 DROPOUT=0 MAX_TOKENS=2500 SAVE_EVERY=300 LR=0.015 WARMUP=80 \
  "${updates[@]}" PRUNE_UPDATES=260 PRUNE_WARMUP=20 GATE_LR_SCALE=5 SPARSITY_WARMUP=50 FIX_AFTER=75 -- "$@"
out=${arguments[0]}
need_plots
need fairseq-preprocess fairseq-train headgates sacremoses subword-nmt
check_out "$out"

[[ -f $out/corpus/train.en.conllu ]] || step "making the corpus" python3 "$recipes/make_corpus.py" "$out/corpus" \
  --train 12000 --valid 300 --test 300 --force # that file is the last one
find_devices
translate=("$recipes/translation.sh" "$out/corpus" "$out" en ru)
models=${places[0]} # of the first seed
log=$models/report.log

# measured NAME COMMAND OPTIONS...: write $models/NAME.json with a command of headgates, unless it exists.
measured() {
  stage "$models/$1.json" "$log" headgates "$2" "$out/data-bin" --path "$models/baseline/checkpoint_last.pt" \
    --gen-subset valid "${device[@]}" "${@:3}" --out "$models/$1.json"
}
measure_heads() {
  [[ ! -f $models/attention.json ]] || return 0
  say "measuring the heads of the baseline (log: $log)"
  measured head_scores score --method confidence,gradient
  measured functions functions --conllu "$out/corpus/valid.en.conllu"
  measured attention attention --heads 'enc-self:*,dec-enc:*'
}

if dry; then
  translate=("$recipes/translation.sh" --dry-run "${translate[@]:1}")
elif command -v flock >/dev/null; then
  cores=$(env -u OMP_NUM_THREADS nproc)
  shown=1 in_shares "$((gpus == 1 || (gpus == 0 && cores == 1) ? 1 : 2))" "${translate[@]}"
fi
[[ ! -f $models/baseline/evaluation.json ]] || measure_heads # before the table, which is followed by its summary
part_of_recipe "${translate[@]}"
measure_heads

folders=("$models/baseline") pruned='' compressed=$models/compressed
for line in "${plan_of_runs[@]}"; do
  read -r name method control _ <<<"$line"
  [[ $method != control && (-f $models/$name/pruned.pt || $DRY_RUN == 1) ]] || continue
  folders+=("$models/$name")
  [[ -n $pruned ]] || pruned=$models/$name whole=$models/$control/checkpoint_last.pt
done
if [[ -n $pruned ]]; then
  folders+=("$compressed/pruned.pt")
  dry || mkdir -p "$compressed"
  # Embeddings and layer norms are 29% of the parameters: 68% of all are 55% of attention and feed-forward blocks.
  into "$compressed/compressed.json" "$(quoted headgates compress "$out/data-bin" --path "$whole" --params 0.68 \
    --gen-subset valid "${device[@]}" --out "$compressed/pruned.pt" --force --json)"
  stage "$compressed/compared.json" "$log" headgates evaluate "$out/data-bin" \
    --path "$whole:$pruned/pruned.pt:$compressed/pruned.pt" \
    --source-lang en --target-lang ru --gen-subset test --reference "$out/text/reference.ru" --remove-bpe \
    --tokenizer moses --beam "$BEAM" --lenpen "$LENPEN" --max-tokens "$GENERATION_TOKENS" \
    --required-batch-size-multiple 1 "${device[@]}" --speed --out "$compressed/compared.json" --force
  show_into "$compressed/removed.txt" python3 "$recipes/lib" results.removed "$compressed/compared.json" \
    --compressed "$compressed/compressed.json"
fi
step "writing the report" headgates report "$out/report.html" "${folders[@]}" "$out/results.json" \
  "$models"/{head_scores,functions,attention}.json --force
dry || [[ -z $pruned ]] || echo "next: headgates show $pruned/checkpoint_last.pt"
