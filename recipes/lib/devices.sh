# Where a recipe runs: GPUS, HOSTS, LAUNCHER and WORKERS. Source it after common.sh.

# find_devices: set `gpus` (of this machine, 0: none), `launcher` (the command that starts train.py), `workers` (the
# number of its processes), and fairseq's options `device` (for one process on this machine) and `distributed` (for
# training). Without --distributed-world-size fairseq starts a process for each visible GPU: a training would have larger
# updates, and fairseq-eval-lm would print the perplexity of a part of the text.
find_devices() {
  local hosts visible
  gpus=0 device=(--distributed-world-size 1) distributed=() launcher=(python3) workers=1
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    visible=$(if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"; else nvidia-smi -L; fi | wc -l)
    gpus=${GPUS:-$visible}
    ((gpus <= visible)) || fail "GPUS=$gpus must be at most $visible, the number of GPUs that this machine shows"
    ((gpus == 0)) || show_gpus "$gpus"
  fi
  if ((gpus == 0)); then
    device+=(--cpu)
    # By default glibc returns large buffers to the kernel after each use and requests them again.
    export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}
  fi
  if [[ -n ${LAUNCHER:-} ]]; then
    read -ra launcher <<<"$LAUNCHER"
    [[ ${DRY_RUN:-0} == 1 ]] || command -v "${launcher[0]}" >/dev/null || fail "LAUNCHER='$LAUNCHER': '${launcher[0]}' is not on the PATH"
    workers=$WORKERS
  elif [[ -n ${HOSTS:-} ]]; then
    read -ra hosts <<<"$HOSTS"
    launcher=("$recipes/lib/on_hosts.sh" "${hosts[@]}" --)
    export NPROC_PER_NODE=$((gpus ? gpus : 1))
    workers=$((${#hosts[@]} * NPROC_PER_NODE))
  elif ((gpus > 1)); then
    launcher=(torchrun --standalone --nproc_per_node "$gpus")
    workers=$gpus
  fi
  distributed=(--distributed-world-size "$workers")
  # The machines of a LAUNCHER may have GPUs although this one has none.
  if ((gpus == 0)) && [[ -z ${LAUNCHER:-} || ${CPU:-0} == 1 ]]; then
    distributed+=(--cpu)
    ((workers == 1)) || distributed+=(--distributed-backend gloo --ddp-backend legacy_ddp)
  fi
  # fairseq reads ranks and the first machine from SLURM's environment; it needs the port.
  [[ -z ${LAUNCHER:-} || -z ${SLURM_JOB_ID:-} ]] || distributed+=(--distributed-port "${PORT:-29500}")
}

# show_gpus NUMBER: hide all GPUs but the first NUMBER of those that are visible now.
show_gpus() {
  local visible=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(($1 - 1)))} shown
  shown=$(cut -d, -f "1-$1" <<<"$visible")
  [[ $shown != "${CUDA_VISIBLE_DEVICES:-}" ]] || return 0
  export CUDA_VISIBLE_DEVICES=$shown
  [[ ${DRY_RUN:-0} != 1 ]] || echo "export CUDA_VISIBLE_DEVICES=$shown"
}

# begin_full_size OUT_DIR: check settings, folder and machine of a recipe of full size, and lock the folder.
begin_full_size() {
  check_settings
  check_out "$1"
  no_colon "$1"
  find_devices
  need_gpu
  lock_out "$1"
}

# choose_precision: set PRECISION, if it is not set, to fp16 on GPUs, otherwise to fp32.
choose_precision() {
  # A launcher may start the training on GPUs of other machines.
  if ((gpus)) || [[ -n ${LAUNCHER:-} && ${CPU:-0} != 1 ]]; then
    : "${PRECISION:=fp16}"
  fi
  : "${PRECISION:=fp32}"
}

# need_gpu: recipes of full size need a GPU, except for a dry run.
need_gpu() {
  ((gpus)) || [[ ${CPU:-0} == 1 || -n ${LAUNCHER:-} || ${DRY_RUN:-0} == 1 ]] ||
    fail "no GPU found (nvidia-smi -L): this recipe trains for days on one; set CPU=1 to run it on the CPU, with small sizes"
}
