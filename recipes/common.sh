# Shared by the recipes: sourced, not run. Each function wraps one of fairseq's own commands and
# skips it when its output is there, so that a recipe can be stopped at any point and run again. The recipe sets
# `plugin`, the folder for --user-dir: with torch 2.6 or later even a stock checkpoint loads only with the plugin,
# which allows the options stored in it.

fail() { echo "${0##*/}: $*" >&2; exit 2; }
say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*"; }

# A program that is missing is found before the work begins, not in the middle of it.
need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || fail "'$program' is not on the PATH: activate the environment (README, Install)"
  done
}

# into OUTPUT COMMAND...: OUTPUT is written whole or not at all, and only when it is missing.
into() {
  local output=$1
  shift
  [[ -s $output ]] && return
  "$@" >"$output.part"
  mv "$output.part" "$output"
}

# The settings a folder was made with: other settings would silently mix two experiments.
keep_settings() {
  local file=$1/settings.txt current=$2
  mkdir -p "$1"
  if [[ ! -f $file ]]; then
    printf '%s\n' "$current" >"$file"
  elif [[ $(<"$file") != "$current" ]]; then
    fail "$1 was made with other settings ($(diff <(printf '%s\n' "$current") "$file" | grep '^>' | tr -d '>\n')): take another folder or remove it"
  fi
}

# train MODEL_DIR DATA_BIN ARGUMENTS...: fairseq-train; an interrupted run goes on from its last checkpoint.
train() {
  local model=$1 data=$2
  shift 2
  [[ -f $model/finished ]] && return
  say "training $(basename "$model") (log: $model/train.log)"
  mkdir -p "$model"
  fairseq-train "$data" --user-dir "$plugin" --save-dir "$model" --tensorboard-logdir "$model/tensorboard" \
    --no-epoch-checkpoints --log-format simple --log-interval 50 --seed "${SEED:-1}" "${device[@]}" "$@" \
    >>"$model/train.log" 2>&1 || fail "training of $model failed: $(tail -n 1 "$model/train.log")"
  touch "$model/finished"
}

# translate MODEL_DIR CHECKPOINT DATA_BIN TARGET_LANGUAGE: detokenised translations of the test
# set, in the order of the test set, as MODEL_DIR/test.hyp. (fairseq-fixed 0.12.3.1 silently drops the last few
# sentences where they fill no batch of --required-batch-size-multiple, 8 by default: hence 1.)
translate() {
  local model=$1 checkpoint=$2 data=$3 target=$4
  [[ -s $model/test.hyp ]] && return
  say "translating the test set with $(basename "$model")"
  fairseq-generate "$data" --user-dir "$plugin" --path "$model/$checkpoint" --gen-subset test --remove-bpe \
    --beam "${BEAM:-4}" --lenpen "${LENPEN:-1}" --max-tokens "${GENERATION_TOKENS:-4000}" \
    --required-batch-size-multiple 1 "${device[@]}" \
    >"$model/generate.log" 2>&1 || fail "translation with $model failed: $(tail -n 1 "$model/generate.log")"
  into "$model/test.hyp" detokenised "$target" "$model/generate.log"
}

detokenised() { grep '^D-' "$2" | sort -t- -k2 -n | cut -f3 | sacremoses -q -l "$1" detokenize; }

# score MODEL_DIR REFERENCE: BLEU and chrF of test.hyp against detokenised text, with sacrebleu's signature.
score() {
  into "$1/scores.json" sacrebleu "$2" -i "$1/test.hyp" -m bleu chrf -w 2 "${sacrebleu_flags[@]}" --format json
}

# gated_run RUN_DIR DATA_BIN REFERENCE TARGET_LANGUAGE TYPES LAMBDA BASELINE_CHECKPOINT ARGUMENTS...: starts from the
# baseline, learns the gates, takes the closed heads out, translates with what is left and scores. With encoder gates alone the decoder is frozen, so that
# functions cannot move there (Voita et al. 2019, section 6.2).
gated_run() {
  local model=$1 data=$2 reference=$3 target=$4 types=$5 lambda=$6 baseline=$7
  shift 7
  local frozen=()
  [[ $types == enc-self ]] && frozen=(--freeze-params '^decoder\.' --freeze-dropout)
  train "$model" "$data" --arch transformer_head_gates --finetune-from-model "$baseline" \
    --gate-heads "$types" --criterion label_smoothed_cross_entropy_l0 --l0-weight "$lambda" "${frozen[@]}" "$@"
  [[ -f $model/pruned.pt ]] ||
    headgates prune "$model/checkpoint_last.pt" "$model/pruned.pt" --no-optimizer >"$model/prune.log" 2>&1 ||
    fail "pruning of $model failed: $(tail -n 1 "$model/prune.log")"
  evaluate "$model" pruned.pt "$data" "$reference" "$target"
}

# evaluate RUN_DIR CHECKPOINT DATA_BIN REFERENCE TARGET_LANGUAGE: what results.py reads.
evaluate() {
  local model=$1 checkpoint=$2 data=$3 reference=$4 target=$5
  translate "$model" "$checkpoint" "$data" "$target"
  score "$model" "$reference"
  into "$model/heads.json" headgates show "$model/$checkpoint" --json
}

# No GPU: say so to fairseq, and leave the number of threads to the caller (OMP_NUM_THREADS).
device=()
if ! { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
  device=(--cpu)
  # glibc would hand every large buffer back to the kernel after use, and get it anew a moment later.
  export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}
fi
sacrebleu_flags=()
