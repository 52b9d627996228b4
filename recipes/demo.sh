#!/usr/bin/env bash
# The demonstration: make a small model smaller, with and without training, in four minutes on two CPU cores.
#
#   recipes/demo.sh [--dry-run] [OUT_DIR, default demo-out]
#
# Makes a small artificial English-to-Russian corpus of plain sentences, trains a baseline transformer with 32 heads,
# trains it further as the control (baseline+) and with gates that leave half of its heads. This part is
# recipes/translation.sh with small sizes, two models at a time. Then it makes baseline+ smaller without training: removes
# half of its heads by two scores, and heads and neurons with `headgates compress`. It prints a table of both parts, and
# writes a report, OUT_DIR/report.html.
# Needs no GPU and no download. Run the same command again to resume. `make demo` makes the environment first.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

if (($# == 0)) || [[ $# == 1 && $1 == --dry-run ]]; then set -- "$@" demo-out; fi
updates=()
[[ -n ${EPOCHS:-} ]] || updates=(UPDATES=260)
configure OMP_NUM_THREADS=1 RUNS=all=0.5 PRETOKENIZED=1 JOINT=0 BPE=1000 \
  EMBED=64 FFN=128 LAYERS=2 DECODER_LAYERS=1 HEADS=8 DROPOUT=0 MAX_TOKENS=2500 SAVE_EVERY=300 LR=0.015 WARMUP=80 \
  "${updates[@]}" PRUNE_UPDATES=260 PRUNE_WARMUP=20 GATE_LR_SCALE=5 SPARSITY_WARMUP=50 FIX_AFTER=75 \
  TRAIN_FLAGS="--log-interval 10" -- "$@"
out=${arguments[0]}
need_plots
need fairseq-preprocess fairseq-train headgates sacremoses subword-nmt
check_out "$out"

[[ -f $out/corpus/train.en.conllu ]] || step "making the corpus" python3 "$recipes/make_corpus.py" "$out/corpus" \
  --train 12000 --valid 300 --test 300 --force # that file is the last one
find_devices
translate=("$recipes/translation.sh" "$out/corpus" "$out" en ru)
models=${places[0]} # of the first seed
log=$models/smaller.log

dry || report_updates "$out" &
reporting=$!
trap 'kill "$reporting" 2>/dev/null || true' EXIT
if dry; then
  translate=("$recipes/translation.sh" --dry-run "${translate[@]:1}")
elif command -v flock >/dev/null; then
  cores=$(env -u OMP_NUM_THREADS nproc)
  shown=1 in_shares "$((gpus == 1 || (gpus == 0 && cores == 1) ? 1 : 2))" "${translate[@]}"
fi
part_of_recipe "${translate[@]}"

# --- without training: the control, without half of its heads, and without heads and neurons --------------------------
control=baseline pruned=()
for line in "${plan_of_runs[@]}"; do
  read -r name method of _ <<<"$line"
  [[ $method == control ]] || { control=$of && pruned+=("$models/$name/pruned.pt"); }
done
whole=$models/$control/checkpoint_last.pt smaller=$models/smaller
measured=("$out/data-bin" --path "$whole" --gen-subset valid "${device[@]}")
half=(--keep 0.5 --scores "$smaller/scores.json" --force)
translated=(--gen-subset test --reference "$out/text/reference.ru" --remove-bpe --source-lang en --target-lang ru
  --tokenizer moses --beam "$BEAM" --lenpen "$LENPEN" --required-batch-size-multiple 1 --speed)

# smaller FILE COMMAND...: make a file of $smaller with a command of headgates, unless it exists.
smaller() {
  [[ -s $smaller/$1 ]] || say "headgates $2: $smaller/$1"
  stage "$smaller/$1" "$log" headgates "${@:2}"
}
say "making $control smaller without training (log: $log)"
smaller scores.json score "${measured[@]}" --method confidence,gradient,refit --out "$smaller/scores.json"
smaller gradient.pt prune "$whole" "$smaller/gradient.pt" "${half[@]}" --method gradient
smaller refit.pt prune "$whole" "$smaller/refit.pt" "${half[@]}" --method refit --refit "$out/data-bin" "${device[@]}"
smaller compressed.pt compress "${measured[@]}" --params 0.7 --out "$smaller/compressed.pt" --force
compared=$(printf ':%s' "$smaller"/{gradient,refit,compressed}.pt "${pruned[@]}")
smaller evaluation.json evaluate "$out/data-bin" --path "$whole$compared" "${translated[@]}" "${device[@]}" \
  --out "$smaller/evaluation.json"
smaller functions.json functions "${measured[@]}" --conllu "$out/corpus/valid.en.conllu" --out "$smaller/functions.json"
smaller explanations.json explain "${measured[@]}" --lines 1,2 --out "$smaller/explanations.json"
smaller attention.json attention "${measured[@]}" --heads 'dec-enc:*' --out "$smaller/attention.json"
[[ -s $smaller/curve.json ]] || say "headgates compress: $smaller/curve.svg"
into "$smaller/curve.json" "$(quoted headgates compress "${measured[@]}" --params 0.9,0.8,0.7,0.6,0.5 \
  --plot "$smaller/curve.svg" --force --json)"
last_table "$smaller/table.txt" python3 "$recipes/lib" results.demo "$smaller/evaluation.json"
step "writing the report" headgates report "$out/report.html" "${pruned[@]%/*}" "$models"/{baseline,"$control"} \
  "$smaller/compressed.pt" "$smaller"/{evaluation,curve,scores,functions,explanations,attention}.json --force
dry || echo "next: ${VENV:+source $VENV/bin/activate && }headgates compress $out/data-bin --path $whole --params 0.7 --out small.pt" >&2
