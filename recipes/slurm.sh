#!/usr/bin/env bash
# Run a recipe under SLURM: text on the first machine, training on all GPUs of the job, requeueing at the time limit.
#
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 --cpus-per-task 4 --time 24:00:00 \
#       recipes/slurm.sh recipes/wmt_en_ru.sh OUT_DIR
#
# One task for each GPU, or one for each machine, whose GPUs are then all used; all machines share OUT_DIR. Five minutes
# before the time limit, and when the job is preempted, the training saves a checkpoint, or another stage ends at once; the
# job is requeued and resumes.
#SBATCH --job-name=headgates
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
set -euo pipefail

[[ -n ${SLURM_JOB_ID:-} && $# -gt 0 ]] || {
  echo "slurm.sh: run it with sbatch: sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2
  exit 2
}
fail() { echo "slurm.sh: $*" >&2; exit 2; }

# count_workers: set WORKERS to the number of training processes. fairseq starts them so: with one task for each machine,
# one for each GPU, otherwise one for each task, on the GPU with the number of the task on its machine.
count_workers() {
  local machines=${SLURM_NNODES:-1} tasks gpus tasks_of_machine
  tasks=${SLURM_NTASKS:-$((machines * ${SLURM_NTASKS_PER_NODE:-1}))}
  gpus=${SLURM_GPUS_ON_NODE:-$({ nvidia-smi -L 2>/dev/null || true; } | grep -c ^GPU || true)}
  tasks_of_machine=${SLURM_NTASKS_PER_NODE:-$((tasks / machines))}
  [[ -z ${GPUS:-} ]] || fail "GPUS=$GPUS has no effect in a job of SLURM: ask SLURM for the number of GPUs"
  [[ -z ${SLURM_GPUS_PER_TASK:-} ]] || ((tasks_of_machine == 1)) ||
    fail "--gpus-per-task hides from each task the GPUs of the others, and fairseq expects to see all: ask for --gpus-per-node"
  ((tasks == machines * tasks_of_machine)) ||
    fail "$tasks tasks on $machines machines: ask for as many on each (--ntasks-per-node)"
  ((gpus == 0 || tasks_of_machine <= gpus)) ||
    fail "$tasks_of_machine tasks share $gpus GPUs on each machine: ask for one task for each GPU (--ntasks-per-node $gpus)"
  ((gpus || tasks == 1 || tasks_of_machine > 1)) ||
    fail "one task on each of $machines machines without GPUs: fairseq starts a process for each GPU, so there would be none; ask for --gpus-per-node, or for one task"
  WORKERS=$tasks
  if ((tasks_of_machine == 1 && gpus > 1)); then WORKERS=$((machines * gpus)); fi
}

[[ -n ${WORKERS:-} ]] || count_workers
export WORKERS LAUNCHER=${LAUNCHER:-srun python3}
# Since 22.05 srun does not use the --cpus-per-task of sbatch.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}

asked=0
trap 'asked=1' USR1 TERM # until the recipe runs
"$@" &
recipe=$!
trap 'asked=1; kill -USR1 "$recipe" 2>/dev/null' USR1 TERM
((asked == 0)) || kill -USR1 "$recipe" 2>/dev/null || true
while kill -0 "$recipe" 2>/dev/null; do wait "$recipe" || true; done # a signal interrupts a wait
wait "$recipe" && status=0 || status=$?
# 75: stopped, and can be resumed. A recipe that had just started has ended by the signal itself.
if ((status == 75 || (status && asked))); then
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
