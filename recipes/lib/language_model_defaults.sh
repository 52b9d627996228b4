# Default settings of language_model.sh: sourced by it and by the recipes that run it, after their own defaults.
# lib/settings_table.py documents every setting; `recipes/language_model.sh --help` lists them.

set -a # settings.py and the programs read the settings from the environment
: "${BPE:=2000}" "${VOCABULARY:=0}" "${ARCH:=transformer_lm}" "${EMBED:=64}" "${FFN:=256}" "${LAYERS:=4}" "${HEADS:=4}"
: "${PRE_NORM:=1}" "${DROPOUT:=0.1}" "${ADAPTIVE:=}"
: "${MAX_TOKENS:=2048}" "${UPDATE_FREQ:=1}" "${TOKENS_PER_UPDATE:=}"
: "${OPTIMIZER:=adam}" "${SCHEDULE:=inverse_sqrt}" "${UPDATES:=2000}" "${LR:=0.004}" "${MIN_LR:=}" "${WARMUP:=300}"
: "${SAVE_EVERY:=}" "${TRAIN_FLAGS:=}" "${SEED:=}" "${SEEDS:=${SEED:-1}}"
: "${PRUNE_SCHEDULE:=inverse_sqrt}" "${PRUNE_UPDATES:=1500}" "${PRUNE_LR:=0.001}" "${PRUNE_WARMUP:=100}"
: "${GATE_LR_SCALE:=}" "${FIX_AFTER:=}" "${EVAL_TOKENS:=4096}" "${SPEED:=1}" "${PAPER:=none}"
if [[ $ARCH == transformer_lm ]]; then
  : "${TOKENS_PER_SAMPLE:=128}" "${MEM_LEN:=}" "${PERSISTENT_VECTORS:=}" "${STREAM_BLOCKS:=}"
  : "${LAMBDAS:=0.02 0.04}" "${L0_WARMUP:=}" "${GATE_INIT:=}" "${GATE_HARD:=0}" "${GATE_OUTPUT_SCALE:=0}"
else # with the three techniques of Shim et al. 2021: warm-up of the penalty, initial log alpha, scaled outputs
  : "${TOKENS_PER_SAMPLE:=64}" "${MEM_LEN:=$TOKENS_PER_SAMPLE}" "${STREAM_BLOCKS:=64}"
  if [[ $EMBED =~ ^[1-9][0-9]{,8}$ && $PRUNE_UPDATES =~ ^[1-9][0-9]{,8}$ ]]; then # settings.py reports other values
    : "${PERSISTENT_VECTORS:=$((4 * EMBED))}" "${L0_WARMUP:=$((PRUNE_UPDATES * 2 / 5))}"
  else
    : "${PERSISTENT_VECTORS:=}" "${L0_WARMUP:=}"
  fi
  : "${LAMBDAS:=0.05 0.1}" "${GATE_INIT:=2}" "${GATE_HARD:=1}" "${GATE_OUTPUT_SCALE:=1}"
fi
KEEP_EPOCHS=0 # no checkpoint of every epoch
set +a
