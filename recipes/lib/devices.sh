# Where a recipe runs: GPUS, HOSTS, LAUNCHER and WORKERS. Source it after common.sh.

shown= # of in_shares

# find_devices: set `gpus` (of this machine, 0: none), `launcher` (the command that starts train.py), `workers` (the
# number of its processes), and fairseq's options `device` (for one process on this machine) and `distributed` (for
# training). Without --distributed-world-size fairseq starts a process for each visible GPU: a training would have larger
# updates, and an evaluation would share the text among them.
find_devices() {
  local hosts visible
  gpus=0 device=(--distributed-world-size 1) distributed=() launcher=(python3) workers=1
  visible=$(visible_gpus)
  if ((visible)); then
    gpus=${GPUS:-$visible}
    ((gpus <= visible)) || fail "GPUS=$gpus must be at most $visible, the number of GPUs that this machine shows"
    # A LAUNCHER starts processes of its own, for whose GPUs WORKERS counts.
    ((gpus == 0 || gpus == visible)) || [[ -n ${LAUNCHER:-} ]] || show_gpus "$gpus"
  fi
  if ((gpus == 0)); then
    device+=(--cpu)
    # By default glibc returns large buffers to the kernel after each use and requests them again.
    export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}
  fi
  # On recent GPUs, cuDNN's attention would prepare for every new shape of a batch; see docs/benchmarks.md, On a GPU.
  export TORCH_CUDNN_SDPA_DEPRIORITIZED=${TORCH_CUDNN_SDPA_DEPRIORITIZED:-1}
  if [[ -n ${LAUNCHER:-} ]]; then
    read -ra launcher <<<"$LAUNCHER"
    dry || command -v "${launcher[0]}" >/dev/null || fail "LAUNCHER='$LAUNCHER': '${launcher[0]}' is not on the PATH"
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

# visible_gpus: print the number of GPUs that CUDA shows to a program. Of the MIG devices of a machine it is one.
visible_gpus() {
  local listed
  listed=$(nvidia-smi -L 2>/dev/null) || { echo 0; return; }
  case ${CUDA_VISIBLE_DEVICES-unset} in
    unset) if grep -q '^ *MIG ' <<<"$listed"; then echo 1; else grep -c '^GPU' <<<"$listed" || true; fi ;;
    MIG*) echo 1 ;;
    "" | -1* | NoDevFiles) echo 0 ;;
    *) tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | sed '/^-1$/,$d' | wc -l ;;
  esac
}

# show_gpus NUMBER: hide all GPUs but the first NUMBER of those that are visible now.
show_gpus() {
  local visible=${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $(($1 - 1)))}
  CUDA_VISIBLE_DEVICES=$(cut -d, -f "1-$1" <<<"$visible")
  export CUDA_VISIBLE_DEVICES
  ! dry || echo "export CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
}

# begin_full_size OUT_DIR: check folder, machine and disk of a recipe of full size, choose PRECISION, and lock the folder.
begin_full_size() {
  ! dry || echo "# no run at this size has been made"
  need fairseq-preprocess fairseq-train headgates sacremoses subword-nmt
  check_out "$1"
  find_devices
  need_gpu
  need_space "$DISK_GB" "$1"
  # A launcher may start the training on GPUs of other machines.
  if ((gpus)) || [[ -n $LAUNCHER && $CPU != 1 ]]; then : "${PRECISION:=fp16}"; fi
  export PRECISION=${PRECISION:-fp32}
  lock_out "$1"
}

# need_gpu: recipes of full size need a GPU, except for a dry run.
need_gpu() {
  ((gpus)) || [[ ${CPU:-0} == 1 || -n ${LAUNCHER:-} ]] || dry ||
    fail "no GPU found (nvidia-smi -L): this recipe trains for days on one; set CPU=1 to run it on the CPU, with small sizes"
}

# share I JOBS COMMAND...: run a recipe with the I-th of JOBS shares, on the I-th GPU.
share() {
  local index=$1 visible
  export SHARE=$1/$2
  if ((gpus)); then
    [[ -v CUDA_VISIBLE_DEVICES ]] || CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((gpus - 1)))
    mapfile -td, visible <<<"$CUDA_VISIBLE_DEVICES"
    export CUDA_VISIBLE_DEVICES=${visible[index - 1]//$'\n'/} GPUS=1
  elif [[ ! -v OMP_NUM_THREADS ]]; then
    export OMP_NUM_THREADS=$(($2 < $(nproc) ? $(nproc) / $2 : 1))
  fi
  exec "${@:3}"
}

# in_shares JOBS COMMAND...: run a recipe in JOBS shares side by side, with output in OUT_DIR/jobI.log. With shown=1 it is
# printed, too. Each error is printed once.
in_shares() {
  local jobs=$1 job status why reasons=$'\n' worst=0 children=()
  shift
  ((jobs > 1)) || return 0
  ((gpus == 0 || jobs <= gpus)) || fail "JOBS=$jobs must be at most $gpus, the number of GPUs: each model is trained on one"
  mkdir -p "$out"
  say "training models, $jobs at a time (logs: $out/job1.log to job$jobs.log)"
  for ((job = 1; job <= jobs; job++)); do
    if [[ -n $shown ]]; then
      (share "$job" "$jobs" "$@") > >(tee -a "$out/job$job.log") 2>>"$out/job$job.log" &
    else
      (share "$job" "$jobs" "$@") >>"$out/job$job.log" 2>&1 &
    fi
    children+=($!)
  done
  trap 'kill -TERM "${children[@]}" 2>/dev/null' INT TERM USR1
  for job in "${!children[@]}"; do
    ended "${children[$job]}" && status=0 || status=$?
    if ((status)); then
      why=$(last_line "$out/job$((job + 1)).log")
      [[ $reasons == *$'\n'$why$'\n'* ]] || echo "${0##*/}: $why (log: $out/job$((job + 1)).log)" >&2
      reasons+=$why$'\n'
    fi
    ((status == 0 || worst == 2)) || worst=$((status == 75 ? 75 : 2))
  done
  trap stopped INT TERM USR1
  ((worst == 0)) || exit "$worst"
}
