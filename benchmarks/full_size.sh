#!/usr/bin/env bash
# Run the WMT recipe at the paper's model size on a small corpus, in half an hour on one GPU: tokens per second, memory,
# BLEU, heads, and an estimate of the time of the whole recipe.
#
#   benchmarks/full_size.sh TEXT_DIR OUT_DIR
#
# TEXT_DIR holds {train,valid,test}.{en,ru}, plain or .gz, about ten thousand pairs, from which a miniature mirror of WMT
# is made. Settings and model sizes are those of recipes/wmt_en_ru.sh. The tests do not run this script.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
[[ -d $root/recipes ]] || { echo "$0: recipes/ is missing beside this copy (sbatch makes one): sbatch OPTIONS --wrap 'benchmarks/full_size.sh TEXT_DIR OUT_DIR'" >&2; exit 2; }
[[ $# -eq 2 ]] || { echo "full_size.sh: got $# arguments, needs TEXT_DIR OUT_DIR" >&2; exit 2; }
text=$1 out=$2
[[ -d $out/mirror ]] || PYTHONPATH=$root/tests python3 -m support.mirror wmt "$text" "$out/mirror"
export DATA_DIR=$out/mirror BPE=${BPE:-8000} DISK_GB=${DISK_GB:-20}
export UPDATES=${UPDATES:-1500} WARMUP=${WARMUP:-400} PRUNE_UPDATES=${PRUNE_UPDATES:-600} PRUNE_WARMUP=${PRUNE_WARMUP:-100}
export SAVE_EVERY=${SAVE_EVERY:-300} AVERAGE=${AVERAGE:-3} RUNS=${RUNS-"enc-self:0.02 all:0.02"} SCRATCH=${SCRATCH-}
"$root/recipes/wmt_en_ru.sh" "$out/run"
echo
python3 "$root/recipes/lib" training.plan "$out/run" | tee "$out/plan.txt"
