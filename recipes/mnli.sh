#!/usr/bin/env bash
# Pruning of a pre-trained encoder fine-tuned on MNLI, as in Michel et al. 2019, section 4, and with gates.
#
#   recipes/mnli.sh [--dry-run] OUT_DIR
#
# fairseq's roberta.base (in the paper BERT base) is fine-tuned on MNLI with the settings of fairseq's example. Then its
# heads are removed step by step without training, in the order of their gradient score on the training set, and gates are
# trained on it with the penalty 0.0015 (the setting of Golden Stick). Accuracy is measured on the matched validation set.
# Data, BPE and model are downloaded, or found in DATA_DIR. The stages and the table are those of
# recipes/classification.sh. Needs a GPU. Run the same command again to resume; --dry-run prints the commands that are
# still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

published=(
  MODEL=roberta.base
  EMBED=768 FFN=3072 LAYERS=12 HEADS=12 MAX_POSITIONS=512 DROPOUT=0.1
  # fairseq's example of fine-tuning RoBERTa; the papers fine-tune BERT, with settings that they do not give.
  UPDATES=123873 LR=1e-5 WARMUP=7432 BATCH=32
  # Gates: lambda, the learning rate of the gates (0.1) and 1 to 3 epochs are those of Golden Stick. Not in the paper: the
  # learning rate and the schedule of the model in this training, and that gates are never fixed.
  RUNS=all:0.0015 PRUNE_UPDATES=36816 GATE_LR_SCALE=10000 FIX_AFTER=0
  # Michel et al. remove 10% of the heads at a time, by the gradient score on the training set (here all of it).
  CURVES=gradient STEPS=10,20,30,40,50,60,70,80,90 SENTENCES=392702 DISK_GB=13
)
configure "${published[@]}" -- "$@"
out=${arguments[0]}
need_plots
begin_full_size "$out"
keep_settings "$out" data
flags="--weight-decay 0.1 --clip-norm 0.0 --pooler-dropout 0.0"
case $PRECISION in
  fp16) flags+=" --fp16 --fp16-no-flatten-grads --fp16-init-scale 4 --threshold-loss-scale 1 --fp16-scale-window 128" ;;
  amp) flags+=" --amp" ;;
esac

get_files mnli "$out"
if [[ -z $PRETRAINED ]]; then
  PRETRAINED=$out/model/model.pt
  PRETRAINED_DICT=
  get_model "$MODEL" "$out"
fi
show_into "$out/mnli.txt" python3 "$recipes/lib" corpora.mnli "$out/downloads" "$out/raw"
PRETRAINED_CODES= # the text is BPE
export PRETRAINED INPUTS=2 ENCODED=1 TRAIN_FLAGS="$flags $TRAIN_FLAGS"
exec "$recipes/classification.sh" "$out/raw" "$out"
