# Default settings of classification.sh: sourced by it and by mnli.sh, after its own defaults.
# lib/classifier_settings.py documents every setting; `recipes/classification.sh --help` lists them.

set -a # settings.py and the programs read the settings from the environment
: "${TOKENIZE=-l en tokenize}" "${LOWERCASE:=0}" "${ENCODED:=0}" "${BPE:=6000}"
: "${PRETRAINED:=}" "${PRETRAINED_DICT:=}" "${PRETRAINED_CODES:=}"
: "${EMBED:=128}" "${FFN:=512}" "${LAYERS:=4}" "${HEADS:=8}" "${MAX_POSITIONS:=128}" "${DROPOUT:=0.1}"
: "${MLM_UPDATES:=4000}" "${MLM_LR:=0.001}" "${MLM_WARMUP:=300}" "${MLM_TOKENS:=4096}"
: "${UPDATES:=1000}" "${LR:=0.0003}" "${WARMUP:=60}" "${BATCH:=32}" "${UPDATE_FREQ:=1}" "${TRAIN_FLAGS:=}"
: "${SEED:=}" "${SEEDS:=${SEED:-1}}"
: "${GATES=0.8 0.6 0.4 0.2}" "${FINETUNE:=0}" "${PRUNE_UPDATES:=$UPDATES}" "${PRUNE_LR:=$LR}" "${GATE_LR_SCALE:=}"
if [[ $PRUNE_UPDATES =~ ^[1-9][0-9]{,8}$ ]]; then # settings.py reports other values
  : "${PRUNE_WARMUP:=$((PRUNE_UPDATES * 6 / 100))}" "${SPARSITY_WARMUP:=$((PRUNE_UPDATES / 5))}" "${FIX_AFTER:=$((PRUNE_UPDATES * 3 / 10))}"
else
  : "${PRUNE_WARMUP:=}" "${SPARSITY_WARMUP:=}" "${FIX_AFTER:=}"
fi
: "${L0_WARMUP:=}" "${CURVES=gradient ablation random}" "${STEPS:=20,40,60,80}" "${SENTENCES:=2000}"
: "${EVALUATION_TOKENS:=8000}" "${PORT:=29500}"
set +a
