# The experiment of Voita et al. 2019 for translation.sh: sourced by the recipes of its two data sets. Comments mark what
# the paper does not say.

source "$recipes/lib/devices.sh"
published=(
  LOWERCASE=1 CLEAN="--max-length 200 --max-ratio 9 --unique" # the ratio is the default of Moses
  BPE=32000 JOINT=0 UNTIED=1
  EMBED=512 FFN=2048 LAYERS=6 HEADS=8 DROPOUT=0.1
  TOKENS_PER_UPDATE=16000 MAX_TOKENS=4000 LR=0.00139754 WARMUP=16000
  SCHEDULE=inverse_sqrt UPDATES=100000 # not in the paper: "until it has converged"
  SAVE_EVERY=2048 AVERAGE=10
  # A gated run has a new optimizer and schedule. Its length and lambda are not in the paper, where gates are never fixed.
  # With --gate-lr-scale 50, the default, gates can close in the warm-up of the learning rate already; with 10 later.
  FIX_AFTER=0 PRUNE_SCHEDULE=inverse_sqrt PRUNE_UPDATES=60000 # with the WARMUP of the baseline
  # With gates of all types the same shapes are trained from scratch, too.
  RUNS="enc-self:0.01 enc-self:0.02 all:0.002 all:0.005 all:0.01 all:0.02 all:0.02@10 all:0.03"
  # The paper divides by ((5 + length) / 6)^0.6; fairseq, with this option, by length^0.6.
  BEAM=4 LENPEN=0.6
)
# Adam's second beta is 0.998 in the authors' scripts, 0.98 in the paper.
published_flags="--attention-dropout 0.1 --activation-dropout 0.1 --adam-betas (0.9,0.998) --adam-eps 1e-9 --clip-norm 0"

# published_begin: check what can be checked before days of work. With RAW_DIR run translation.sh on the user's text.
published_begin() {
  out=${arguments[0]}
  begin_full_size "$out"
  [[ $PRECISION == fp32 ]] || published_flags+=" --$PRECISION"
  export TRAIN_FLAGS="$published_flags $TRAIN_FLAGS"
  if [[ -n ${RAW_DIR:-} ]]; then
    read_text "$RAW_DIR" {train,valid,test}.{en,ru}
    record_data="RAW_DIR=given" keep_settings "$out" data
    published_end "$RAW_DIR"
  fi
  keep_settings "$out" data
}

# expect_pairs FILE: fail if the number of pairs for training differs from EXPECTED_PAIRS by more than a tenth (0: do not
# check). Other corpora would give other results than the paper's.
expect_pairs() {
  local pairs
  dry && return
  pairs=$(wc -l <"$1")
  ((EXPECTED_PAIRS)) || { say "$pairs pairs before cleaning"; return 0; }
  say "$pairs pairs before cleaning; in the paper $EXPECTED_PAIRS"
  ((pairs * 10 >= EXPECTED_PAIRS * 9 && pairs * 10 <= EXPECTED_PAIRS * 11)) ||
    fail "$1 has $pairs pairs, more than a tenth away from EXPECTED_PAIRS=$EXPECTED_PAIRS: check the counts above, or set EXPECTED_PAIRS=0 to train on this text"
}

# published_end RAW_DIR: run translation.sh on the raw text. It inherits the lock.
published_end() { exec "$recipes/translation.sh" "$1" "$out" en ru; }
