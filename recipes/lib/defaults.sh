# Default settings of translation.sh: sourced by it and by the recipes that run it, after their own defaults.
# lib/settings.py documents and checks every setting; `recipes/translation.sh --help` lists them.

set -a # settings.py and the programs read the settings from the environment
: "${LOWERCASE:=0}" "${PRETOKENIZED:=0}" "${CLEAN:=}" "${BPE:=6000}" "${JOINT:=1}"
: "${ARCH:=transformer}" "${EMBED:=128}" "${FFN:=512}" "${LAYERS:=3}" "${HEADS:=8}" "${PRE_NORM:=1}" "${DROPOUT:=0.1}"
: "${MAX_TOKENS:=2500}" "${UPDATE_FREQ:=1}" "${TOKENS_PER_UPDATE:=}"
: "${SCHEDULE:=polynomial_decay}" "${EPOCHS:=}" "${UPDATES:=}" "${LR:=0.004}" "${WARMUP:=600}"
if [[ $SCHEDULE == inverse_sqrt ]]; then : "${EPOCHS:=16}"; elif [[ -z $EPOCHS ]]; then : "${UPDATES:=6000}"; fi
: "${SAVE_EVERY:=}" "${AVERAGE:=0}" "${KEEP_EPOCHS:=0}" "${TRAIN_FLAGS:=}" "${SEED:=}" "${SEEDS:=${SEED:-1}}"
: "${RUNS=enc-self:0.01 enc-self:0.02 all:0.02 all:0.03}" "${SCRATCH:=}"
: "${PRUNE_UPDATES:=1260}" "${PRUNE_LR:=0.0015}" "${PRUNE_WARMUP:=100}" "${GATE_LR_SCALE:=}"
: "${PRUNE_SCHEDULE:=polynomial_decay}" "${SPARSITY_METHOD:=lagrangian}" "${SPARSITY_WARMUP:=}" "${FIX_AFTER:=}"
: "${L0_WARMUP:=}" "${SENTENCES:=2000}" "${ITERATIONS:=4}"
: "${BEAM:=4}" "${LENPEN:=1}" "${GENERATION_TOKENS:=4000}" "${PAPER:=}" "${PORT:=29500}" "${METRIC:=}" "${METRIC_NAME:=metric}"
: "${SHARE:=}" "${SPEED:=0}"
set +a
