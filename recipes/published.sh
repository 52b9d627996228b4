# The set-up of Voita et al. 2019 for translation.sh: sourced by the recipes of its two data sets, which may be given
# any of these settings to change them. What the paper does not say is marked.

set -a
: "${LOWERCASE:=1}" "${CLEAN:=--max-length 200 --max-ratio 9 --unique}" # the ratio is the default of Moses
: "${BPE:=32000}" "${JOINT:=0}"
: "${EMBED:=512}" "${FFN:=2048}" "${LAYERS:=6}" "${HEADS:=8}" "${DROPOUT:=0.1}"
: "${TOKENS_PER_UPDATE:=16000}" "${LR:=0.00139754}" "${WARMUP:=16000}"
: "${UPDATES:=100000}" # not in the paper: "until it has converged"
: "${SAVE_EVERY:=2048}" "${AVERAGE:=10}"
# A gated run has a fresh optimizer and schedule. Its length and lambda are not in the paper.
: "${PRUNE_SCHEDULE:=inverse_sqrt}" "${PRUNE_LR:=$LR}" "${PRUNE_WARMUP:=$WARMUP}" "${PRUNE_UPDATES:=60000}"
: "${RUNS=enc-self:0.01 enc-self:0.02 all:0.005 all:0.01 all:0.02 all:0.03}" "${SCRATCH=$([[ " $RUNS" != *" all:"* ]] || echo all)}"
# The paper divides by ((5 + length) / 6)^0.6; fairseq, with this option, by length^0.6.
: "${BEAM:=4}" "${LENPEN:=0.6}"
set +a
# Adam's second beta is 0.998 in the authors' scripts, 0.98 in the paper.
published_flags="--attention-dropout 0.1 --activation-dropout 0.1 --adam-betas (0.9,0.998) --adam-eps 1e-9"

# published_begin OUT_DIR TEXT_GB: what can be known to be missing before days of work is said now.
published_begin() {
  local out=$1 text=$2 memory parameters
  need curl fairseq-preprocess fairseq-train fairseq-generate headgates sacremoses subword-nmt sacrebleu
  check_settings
  check_out "$out"
  no_colon "$out"
  find_devices
  need_gpu
  only_run "$out"
  # Without a GPU here, but with a launcher, the GPUs are elsewhere.
  if ((gpus)) || [[ -n ${LAUNCHER:-} && ${CPU:-0} != 1 ]]; then
    : "${PRECISION:=fp16}"
  fi
  if ((gpus)); then
    memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -n 1)
    [[ -n ${MAX_TOKENS:-} ]] || answer MAX_TOKENS python3 "$recipes/batches.py" --fit "${memory}e6" --dim "$EMBED" --ffn "$FFN" \
      --layers "$LAYERS" --vocabulary "$BPE" $([[ $PRECISION != fp32 ]] || echo --full-precision)
  fi
  : "${PRECISION:=fp32}" "${MAX_TOKENS:=4000}"
  [[ $PRECISION == fp32 ]] || published_flags+=" --$PRECISION"
  TRAIN_FLAGS="$published_flags ${TRAIN_FLAGS:-}"
  # A checkpoint has weights and two moments, 12 bytes for each parameter; one run at a time keeps several.
  parameters=$((2 * BPE * EMBED + LAYERS * (12 * EMBED * EMBED + 4 * EMBED * FFN)))
  DISK_GB=${DISK_GB:-$((text + parameters * (12 * (AVERAGE + 3) + 20 * 2 * $(wc -w <<<"$RUNS")) / 1000000000 + 1))}
  need_space "$DISK_GB" "$out"
}

# published_end RAW_DIR OUT_DIR: everything from raw text on. Where a run goes on, the lock goes along.
published_end() {
  export MAX_TOKENS TRAIN_FLAGS
  exec "$recipes/translation.sh" "$1" "$2" en ru
}
