# Training and evaluation of one model. Source it after common.sh.
#
# Every function skips what is complete in the folder of the model, RUN_DIR. Variables of the recipe: `out`, `bin` (the
# binarised data), `seed`, and `evaluation` (data and options of `headgates evaluate`).

source "$recipes/lib/devices.sh"
dev=() # of translation.sh

# label RUN_DIR: the name of a run in messages.
label() { echo "${1#"$out/"}"; }

# schedule NAME LR WARMUP UPDATES [MIN_LR]: set `scheduled`, the options of a learning rate schedule and of the length.
schedule() {
  scheduled=(--lr-scheduler "$1" --lr "$2" --warmup-updates "$3" --max-update "$4")
  case $1 in
    polynomial_decay) scheduled+=(--total-num-update "$4") ;;
    cosine) scheduled+=(--lr-period-updates "$(($4 - $3))" ${5:+--min-lr "$5"}) ;;
  esac
}

# saving NUMBER: print the options that save NUMBER checkpoints by updates, and none at the end of epochs.
saving() {
  [[ -z $SAVE_EVERY ]] || echo "--save-interval-updates $SAVE_EVERY --validate-interval-updates $SAVE_EVERY
    --keep-interval-updates $1 --save-interval 1000000 --validate-interval 1000000"
}

# train RUN_DIR ARGUMENTS...: run fairseq-train, or resume from the last checkpoint. SIGINT, SIGTERM or SIGUSR1 to the
# recipe, or the file RUN_DIR/stop, stop the training after the next update with a checkpoint; the recipe then exits with
# 75.
train() {
  local model=$1 job status told=0 before=0 why
  shift
  [[ -f $model/finished ]] && return
  local epochs=(--no-epoch-checkpoints)
  [[ $KEEP_EPOCHS == 1 ]] && epochs=()
  local command=("${launcher[@]}" "$recipes/train.py" "$bin" --user-dir "$plugin" --save-dir "$model"
    --tensorboard-logdir "$model/tensorboard" "${epochs[@]}" --log-format simple --log-interval 50
    --seed "$seed" "${distributed[@]}" "$@")
  printed "${command[@]}" && return
  say "training $(label "$model") (log: $model/train.log)"
  mkdir -p "$model"
  [[ ! -f $model/train.log ]] || before=$(wc -l <"$model/train.log")
  # torchrun must ignore Ctrl-C: it would end its workers before they save a checkpoint.
  PET_SIGNALS_TO_HANDLE=SIGTERM,SIGHUP,SIGQUIT "${command[@]}" >>"$model/train.log" 2>&1 &
  job=$!
  # A file reaches the processes on all machines, with any launcher.
  trap '((told)) || tell_to_stop "$model/stop" "$job" &
    told=1' INT TERM USR1
  ended "$job" && status=0 || status=$?
  trap stopped INT TERM USR1
  rm -f "$model/stop"
  if [[ -f $model/finished ]]; then
    ((told == 0)) || stopped # the signal came during the last update
    return
  fi
  if ((told && status == 0)) || tail -n "+$((before + 1))" "$model/train.log" | grep -q 'stopped at update'; then
    say "stopped: $(label "$model") has saved a checkpoint; run the same command again to resume"
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

# remove_closed RUN_DIR CHECKPOINT: write pruned.pt, without closed heads and optimizer state.
remove_closed() {
  stage "$1/pruned.pt" "$1/prune.log" headgates prune "$1/$2" "$1/pruned.pt" --no-optimizer
}

# averaged RUN_DIR OTHERWISE: set `checkpoint` to the average of the last AVERAGE checkpoints of a finished run, and
# remove those; without AVERAGE set it to OTHERWISE.
averaged() {
  checkpoint=$2
  ((${AVERAGE:-0})) || return 0
  checkpoint=averaged.pt
  stage "$1/averaged.pt" "$1/average.log" python3 "$recipes/lib" training.average "$1" "$1/averaged.pt" --last "$AVERAGE"
  dry || rm -f "$1"/checkpoint_*_*.pt "$1/checkpoint_best.pt"
}

# evaluate RUN_DIR CHECKPOINT: write evaluation.json, which the table is made from, and for translation test.hyp and the
# score of METRIC; with SPEED=1 also speed.json, an evaluation with the speed.
evaluate() {
  local options=()
  [[ -z ${TGT:-} ]] || options=(--hypotheses "$1/test.hyp")
  [[ -s $1/evaluation.json ]] || say "evaluating $(label "$1")"
  evaluated "$1" "$2" evaluation.json "${options[@]}"
  [[ $SPEED == 0 ]] || evaluated "$1" "$2" speed.json --speed
  translate_epochs "$1"
  [[ -z ${METRIC:-} ]] || into "$1/metric.$METRIC_NAME.json" \
    "$(quoted python3 "$recipes/lib" results.metric "$METRIC" "$text/source.$src" "$1/test.hyp" "$text/reference.$tgt")"
}

# translate_epochs RUN_DIR: evaluate the checkpoint of every epoch with the options `dev`, if there are any, into
# RUN_DIR/dev/EPOCH.json.
translate_epochs() {
  local epoch found=EPOCH
  [[ -n ${dev[*]} ]] || return 0
  if ! dry; then
    mkdir -p "$1/dev"
    found=$(find "$1" -maxdepth 1 -name 'checkpoint[0-9]*.pt' | sed 's/.*checkpoint//; s/\.pt$//' | sort -n)
  fi
  for epoch in $found; do
    stage "$1/dev/$epoch.json" "$1/evaluate.log" headgates evaluate "${dev[@]}" \
      --path "$1/checkpoint$epoch.pt" --out "$1/dev/$epoch.json" --force
  done
}

# evaluated RUN_DIR CHECKPOINT NAME OPTIONS...: write an evaluation, RUN_DIR/NAME.
evaluated() {
  stage "$1/$3" "$1/evaluate.log" headgates evaluate "${evaluation[@]}" --path "$1/$2" "${@:4}" --out "$1/$3" --force
}
