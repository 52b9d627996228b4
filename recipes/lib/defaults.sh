# Default settings of translation.sh: sourced by it and by the recipes that run it, after their own defaults.
# lib/settings_table.py documents every setting; `recipes/translation.sh --help` lists them.

set -a # settings.py and the programs read the settings from the environment
: "${LOWERCASE:=0}" "${PRETOKENIZED:=0}" "${CLEAN:=}" "${BPE:=6000}" "${JOINT:=1}" "${UNTIED:=0}"
: "${ARCH:=transformer}" "${EMBED:=128}" "${FFN:=512}" "${LAYERS:=3}" "${DECODER_LAYERS:=}" "${HEADS:=8}"
: "${PRE_NORM:=1}" "${DROPOUT:=0.1}"
: "${MAX_TOKENS:=2500}" "${UPDATE_FREQ:=1}" "${TOKENS_PER_UPDATE:=}"
: "${SCHEDULE:=polynomial_decay}" "${EPOCHS:=}" "${UPDATES:=}" "${LR:=0.004}" "${WARMUP:=600}"
if [[ $SCHEDULE == inverse_sqrt ]]; then : "${EPOCHS:=16}"; elif [[ -z $EPOCHS ]]; then : "${UPDATES:=6000}"; fi
: "${SAVE_EVERY:=}" "${AVERAGE:=0}" "${SELECTION:=bleu}" "${KEEP_EPOCHS:=0}" "${TRAIN_FLAGS:=}" "${SEED:=}" "${SEEDS:=${SEED:-1}}"
: "${RUNS=all=0.5 enc-self=0.25}" "${SCRATCH:=}"
: "${PRUNE_UPDATES:=2000}" "${PRUNE_LR:=$LR}" "${GATE_LR_SCALE:=}"
: "${PRUNE_SCHEDULE:=polynomial_decay}" "${SPARSITY_METHOD:=lagrangian}"
if [[ $PRUNE_UPDATES =~ ^[1-9][0-9]{,8}$ ]]; then # settings.py reports other values
  : "${PRUNE_WARMUP:=$((PRUNE_UPDATES / 20))}" "${SPARSITY_WARMUP:=$((PRUNE_UPDATES / 5))}" "${FIX_AFTER:=$((PRUNE_UPDATES * 3 / 10))}"
else
  : "${PRUNE_WARMUP:=}" "${SPARSITY_WARMUP:=}" "${FIX_AFTER:=}"
fi
: "${L0_WARMUP:=}" "${SENTENCES:=2000}" "${ITERATIONS:=4}"
: "${BEAM:=4}" "${LENPEN:=1}" "${GENERATION_TOKENS:=4000}" "${PAPER:=}" "${PORT:=29500}" "${METRIC:=}" "${METRIC_NAME:=metric}"
: "${SHARE:=}" "${SPEED:=0}"
set +a
