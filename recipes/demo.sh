#!/usr/bin/env bash
# The whole path in under ten minutes on two CPU cores: a small artificial English-to-Russian corpus, a baseline
# transformer, encoder heads pruned with the decoder frozen, heads of all types pruned, and one table.
#
#   recipes/demo.sh [--dry-run] [OUT_DIR, default demo-out]
#
# It is recipes/translation.sh with small sizes; stop it whenever you like and run it again. `make demo` makes
# the environment first.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/common.sh"

if (($# == 0)) || [[ $# == 1 && $1 == --dry-run ]]; then set -- "$@" demo-out; fi
recipe_arguments OUT_DIR "$@"
out=${arguments[0]}
export PRETOKENIZED=1 JOINT=0 BPE=1000
export EMBED=64 FFN=128 LAYERS=2 HEADS=4 DROPOUT=0.1
export MAX_TOKENS=2500 EPOCHS=${EPOCHS:-14} LR=0.008 WARMUP=150
export PRUNE_UPDATES=${PRUNE_UPDATES:-450} PRUNE_LR=0.003 PRUNE_WARMUP=40 RUNS=${RUNS-"enc-self:0.05 all:0.08"}
need fairseq-preprocess fairseq-train fairseq-generate headgates sacremoses subword-nmt sacrebleu
check_settings
check_out "$out"
no_colon "$out"

[[ -d $out/corpus ]] || step "making the corpus" python3 "$recipes/make_corpus.py" "$out/corpus"
exec "$recipes/translation.sh" "$out/corpus" "$out" en ru
