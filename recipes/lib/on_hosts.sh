#!/usr/bin/env bash
# Run a script with torchrun on several machines that share this folder.
#
#   on_hosts.sh HOST [HOST ...] -- SCRIPT ARGUMENTS...
#
# The first host is this machine; the others are reached by ssh (SSH="ssh -p 2222": another command). Each starts
# NPROC_PER_NODE processes (default 1) in this folder, with this PATH and CUDA_VISIBLE_DEVICES. PORT (29500) must be free
# on the first host.
set -euo pipefail

hosts=()
while [[ $# -gt 0 && $1 != -- ]]; do
  hosts+=("$1")
  shift
done
shift || true
[[ ${#hosts[@]} -gt 0 && $# -gt 0 ]] || { echo "on_hosts.sh: give HOST ... -- SCRIPT ARGUMENTS" >&2; exit 2; }
read -ra ssh <<<"${SSH:-ssh}"
surroundings="PATH=$(printf '%q' "$PATH")"
[[ ! -v CUDA_VISIBLE_DEVICES ]] || surroundings+=" CUDA_VISIBLE_DEVICES=$(printf '%q' "$CUDA_VISIBLE_DEVICES")"

for rank in "${!hosts[@]}"; do
  command=(torchrun --nnodes "${#hosts[@]}" --node_rank "$rank" --nproc_per_node "${NPROC_PER_NODE:-1}"
    --master_addr "${hosts[0]}" --master_port "${PORT:-29500}" "$@")
  if ((rank == 0)); then
    "${command[@]}" &
  else
    "${ssh[@]}" "${hosts[rank]}" "cd $(printf '%q' "$PWD") && $surroundings $(printf '%q ' "${command[@]}")" &
  fi
  jobs[rank]=$!
done
# If one machine fails, the others would wait for it: end them.
status=0
for _ in "${jobs[@]}"; do wait -n || { status=$?; kill "${jobs[@]}" 2>/dev/null || true; }; done
exit "$status"
