#!/usr/bin/env bash
# Run a recipe under SLURM: text on the first machine, training on all GPUs of the job, requeueing at the time limit.
#
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 --time 24:00:00 recipes/slurm.sh recipes/wmt_en_ru.sh OUT_DIR
#
# One task for each GPU; all machines share OUT_DIR. Five minutes before the time limit, and when the job is preempted,
# the training saves a checkpoint, and the job is requeued and resumes.
#SBATCH --job-name=headgates
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
set -euo pipefail

[[ -n ${SLURM_JOB_ID:-} && $# -gt 0 ]] || {
  echo "slurm.sh: run it with sbatch: sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2
  exit 2
}
tasks=${SLURM_NTASKS:-$((SLURM_NNODES * ${SLURM_NTASKS_PER_NODE:-1}))}
export LAUNCHER=${LAUNCHER:-srun python3} WORKERS=${WORKERS:-$tasks}

"$@" &
recipe=$!
trap 'kill -USR1 "$recipe"' USR1 TERM
while kill -0 "$recipe" 2>/dev/null; do wait "$recipe" || true; done # a signal interrupts a wait
wait "$recipe" && status=0 || status=$?
if ((status == 75)); then # stopped with a checkpoint
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
