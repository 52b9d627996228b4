#!/usr/bin/env bash
# WikiText-103 with the all-attention model, as in Shim et al. 2021: from the archive to heads and perplexity.
#
#   recipes/wikitext103.sh [--dry-run] OUT_DIR
#
# 16 layers of 8 heads, 512 dimensions, 2048 persistent vectors, segments and memory of 192 tokens, words as tokens,
# adaptive input and softmax; gates with lambda 0.01, 0.015 and 0.02. The table has the heads that the paper keeps
# beside ours. The optimizer is Adam, in the paper LAMB (OPTIMIZER=lamb, which needs NVIDIA's apex). Needs a GPU and a
# download. Run the same command again to resume; --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"

# Comments mark what is from the authors' configuration (wt103_all_16l_train.json of their code) and what is from neither
# paper nor code.
published=(
  ARCH=transformer_lm_all_attention LAYERS=16 HEADS=8 EMBED=512
  TOKENS_PER_SAMPLE=192 DROPOUT=0.1          # dropout: of the configuration
  BPE=0 ADAPTIVE=20000,40000,200000          # of the configuration
  TOKENS_PER_UPDATE=36864 MAX_TOKENS=9216    # 192 segments in all
  # 20 epochs of 103 million tokens, one of them warm-up (of the configuration).
  SCHEDULE=cosine UPDATES=56000 WARMUP=2800
  # The paper prunes for up to 20 epochs, with one epoch of warm-up of lambda. Its gates have 10 times the rate.
  PRUNE_SCHEDULE=fixed PRUNE_LR=0.0001 PRUNE_WARMUP=0 PRUNE_UPDATES=56000 L0_WARMUP=2800
  RUNS="all:0.01 all:0.015 all:0.02" GATE_LR_SCALE=10 SAVE_EVERY=2800 PAPER=shim DISK_GB=17
)
[[ ${ARCH:-} == transformer_lm ]] || published+=(PERSISTENT_VECTORS=2048 MEM_LEN=192 GATE_OUTPUT_SCALE=1)
# Rates of LAMB: of the paper; of Adam: ours.
if [[ ${OPTIMIZER:-adam} == lamb ]]; then published+=(LR=0.01 MIN_LR=0.001); else published+=(LR=0.0003 MIN_LR=0.00003); fi
configure "${published[@]}" -- "$@"
out=${arguments[0]}
need_plots
begin_full_size "$out"
flags="--clip-norm 0.5 --attention-dropout 0.2" # of the configuration
[[ $PRECISION == fp32 ]] || flags+=" --$PRECISION"
export TRAIN_FLAGS="$flags $TRAIN_FLAGS"
get_corpora wikitext-103 "$out"
exec "$recipes/language_model.sh" "$out/corpora" "$out" # it inherits the lock
