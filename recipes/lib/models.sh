# Training, translation and scoring of one model. Source it after common.sh and devices.sh.
#
# Every function skips what is complete in the folder of the run, RUN_DIR.

source "$recipes/lib/devices.sh"
sacrebleu_flags=()

# train RUN_DIR DATA_BIN ARGUMENTS...: run fairseq-train, or resume from the last checkpoint. SIGINT, SIGTERM or SIGUSR1
# to the recipe stop the training after the next update with a checkpoint; the recipe then exits with 75.
train() {
  local model=$1 data=$2 job status told=0 before=0 why
  shift 2
  [[ -f $model/finished ]] && return
  local epochs=(--no-epoch-checkpoints)
  [[ $KEEP_EPOCHS == 1 ]] && epochs=()
  local command=("${launcher[@]}" "$recipes/train.py" "$data" --user-dir "$plugin" --save-dir "$model"
    --tensorboard-logdir "$model/tensorboard" "${epochs[@]}" --log-format simple --log-interval 50
    --seed "$SEED" "${distributed[@]}" "$@")
  dry_run "${command[@]}" && return
  say "training $(basename "$model") (log: $model/train.log)"
  mkdir -p "$model"
  [[ ! -f $model/train.log ]] || before=$(wc -l <"$model/train.log")
  # torchrun must ignore Ctrl-C: it would end its workers before they save a checkpoint.
  PET_SIGNALS_TO_HANDLE=SIGTERM,SIGHUP,SIGQUIT "${command[@]}" >>"$model/train.log" 2>&1 &
  job=$!
  # A file reaches the processes on all machines, with any launcher.
  trap '((told)) || tell_to_stop "$model/stop" "$job" &
    told=1' INT TERM USR1
  while kill -0 "$job" 2>/dev/null; do wait "$job" || true; done # a signal interrupts a wait
  wait "$job" && status=0 || status=$?
  trap stopped INT TERM USR1
  rm -f "$model/stop"
  if [[ -f $model/finished ]]; then
    ((told == 0)) || stopped # the signal came during the last update
    return
  fi
  if ((told)) && { ((status == 0)) || tail -n "+$((before + 1))" "$model/train.log" | grep -q 'stopped at update'; }; then
    say "stopped: $(basename "$model") has saved a checkpoint; run the same command again to resume"
    exit 75
  fi
  why=$(last_line "$model/train.log")
  fail "training of $model failed: ${why:-no reason given} (log: $model/train.log)"
}

# tell_to_stop FILE PID: create the file while the process lives. It is repeated because train.py removes an old file
# when it starts.
tell_to_stop() {
  while kill -0 "$2" 2>/dev/null; do
    touch "$1"
    sleep 1
  done
}

# averaged RUN_DIR OTHERWISE: set `checkpoint` to the average of the last AVERAGE checkpoints of a finished run, and
# remove those; with AVERAGE=0 set it to OTHERWISE.
averaged() {
  checkpoint=$2
  ((AVERAGE)) || return 0
  checkpoint=averaged.pt
  [[ -f $1/averaged.pt ]] || run "$1/average.log" python3 "$recipes/lib/average.py" "$1" "$1/averaged.pt" --last "$AVERAGE"
  [[ ${DRY_RUN:-0} == 1 ]] || rm -f "$1"/checkpoint_*_*.pt "$1/checkpoint_best.pt"
}

# translate RUN_DIR CHECKPOINT DATA_BIN TARGET_LANGUAGE: write detokenised translations of the test set to
# RUN_DIR/test.hyp. fairseq-fixed 0.12.3.1 drops the last sentences where they do not fill a batch of
# --required-batch-size-multiple (8 by default), hence 1.
translate() {
  local model=$1 checkpoint=$2 data=$3 target=$4
  [[ -s $model/test.hyp ]] && return
  local command=(fairseq-generate "$data" --user-dir "$plugin" --path "$model/$checkpoint" --gen-subset test --remove-bpe
    --beam "$BEAM" --lenpen "$LENPEN" --max-tokens "$GENERATION_TOKENS"
    --required-batch-size-multiple 1 "${device[@]}")
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    printf '%s> %q\n' "$(quoted "${command[@]}")" "$model/generate.log"
  else
    say "translating the test set with $(basename "$model")"
    attended "${command[@]}" >"$model/generate.log" 2>&1 ||
      fail "translation with $model failed: $(last_line "$model/generate.log")"
  fi
  into "$model/test.hyp" "grep '^D-' $(quoted "$model/generate.log")| sort -t- -k2 -n | cut -f3 | sacremoses -q -l $target detokenize"
}

# evaluate RUN_DIR CHECKPOINT DATA_BIN REFERENCE TARGET_LANGUAGE: translate, and write the files that results.py reads:
# BLEU and chrF with sacrebleu's signatures, and the number of heads.
evaluate() {
  local model=$1 checkpoint=$2 data=$3 reference=$4 target=$5
  translate "$model" "$checkpoint" "$data" "$target"
  into "$model/scores.json" "$(quoted sacrebleu "$reference" -i "$model/test.hyp" -m bleu chrf -w 2 "${sacrebleu_flags[@]}" --format json)"
  into "$model/heads.json" "$(quoted headgates show "$model/$checkpoint" --json)"
}

# gated_run RUN_DIR DATA_BIN REFERENCE TARGET_LANGUAGE TYPES LAMBDA BASELINE_CHECKPOINT ARGUMENTS...: start from the
# baseline, train the gates, remove the closed heads, and evaluate. With gates in the encoder alone the decoder is
# frozen, so that it cannot take over functions of encoder heads (Voita et al. 2019, section 6.2).
gated_run() {
  local model=$1 data=$2 reference=$3 target=$4 types=$5 lambda=$6 baseline=$7 checkpoint
  shift 7
  local frozen=()
  [[ $types == enc-self ]] && frozen=(--freeze-params '^decoder\.' --freeze-dropout)
  train "$model" "$data" --arch transformer_head_gates --finetune-from-model "$baseline" \
    --gate-heads "$types" --criterion label_smoothed_cross_entropy_l0 --l0-weight "$lambda" "${frozen[@]}" "$@"
  averaged "$model" checkpoint_last.pt
  [[ -f $model/pruned.pt ]] ||
    run "$model/prune.log" headgates prune "$model/$checkpoint" "$model/pruned.pt" --no-optimizer
  evaluate "$model" pruned.pt "$data" "$reference" "$target"
}

# scratch_run RUN_DIR DATA_BIN REFERENCE TARGET_LANGUAGE PRUNED_CHECKPOINT ARGUMENTS...: train a model with the heads of
# a pruned one from random weights (Voita et al. 2019, table 2), and evaluate.
scratch_run() {
  local model=$1 data=$2 reference=$3 target=$4 pruned=$5 checkpoint
  shift 5
  [[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$model"
  [[ -f $model/mask.json ]] || run "$model/mask.log" headgates show "$pruned" --out "$model/mask.json"
  train "$model" "$data" --arch transformer_head_gates --alive-heads "$model/mask.json" --remove-heads \
    --criterion label_smoothed_cross_entropy "$@"
  averaged "$model" checkpoint_best.pt
  evaluate "$model" "$checkpoint" "$data" "$reference" "$target"
}
