#!/usr/bin/env bash
# Many pruned models of one baseline, trained side by side, and the table and plot of BLEU over the number of heads.
#
#   recipes/sweep.sh [--dry-run] RAW_DIR OUT_DIR SRC TGT
#
# The models are those of recipes/translation.sh, which trains them. Unless RUNS is set, there is a run for each of TYPES
# with each of LAMBDAS, and with each of TARGETS and each of METHODS. JOBS models are trained at the same time, each on
# one GPU (JOBS=1: on all GPUs). In a SLURM array (sbatch --array=1-8 ... recipes/slurm.sh recipes/sweep.sh ...) each job
# trains its share; the same command outside of the array then prints the table.
#
# OUT_DIR gets what translation.sh writes, and sweep.tsv, sweep.json and sweep.svg. A stage is skipped when its output is
# in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1 stop all trainings with a checkpoint.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

configure -- "$@"
out=${arguments[1]}
need flock
need_plots
check_out "$out"
find_devices
jobs=${JOBS:-$((gpus ? gpus : 1))}
translate=("$recipes/translation.sh" "${arguments[@]}")
! dry || translate=("$recipes/translation.sh" --dry-run "${arguments[@]}")

if [[ -v SLURM_ARRAY_TASK_ID ]]; then
  index=$(((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / SLURM_ARRAY_TASK_STEP + 1))
  # Not SLURM_ARRAY_TASK_COUNT: an array of single numbers (1,3,4) repeats some shares of a complete one.
  export SHARE=$index/$(((SLURM_ARRAY_TASK_MAX - SLURM_ARRAY_TASK_MIN) / SLURM_ARRAY_TASK_STEP + 1))
fi
# One share, or the commands of all.
if [[ -v SLURM_ARRAY_TASK_ID ]] || dry; then exec "${translate[@]}"; fi

in_shares "$jobs" "${translate[@]}"

# What is not complete, one model after the other; the speed of translation; the table.
SPEED=1 part_of_recipe "${translate[@]}"
read -ra seeds <<<"$SEEDS"
last_table "$out/sweep.txt" python3 "$recipes/lib" results.table translation "${places[@]}" "${options_of_runs[@]}" --sweep \
  --seed "${seeds[0]}" --tsv "$out/sweep.tsv" --json "$out/sweep.json" --plot "$out/sweep.svg"
