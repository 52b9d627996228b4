# Training and evaluation of one model. Source it after common.sh.
#
# Every function skips what is complete in the folder of the run, RUN_DIR. Variables of the recipe: `out`, `bin` (the
# binarised data), `text`, `src`, `tgt`, `seed`, and `generate` (fairseq-generate with its options but for the checkpoint).

source "$recipes/lib/devices.sh"
lowercase=() # --lowercase if the text is lowercased

# label RUN_DIR: the name of a run in messages.
label() { echo "${1#"$out/"}"; }

# batch_settings: print the settings of the batches of an update. With TOKENS_PER_UPDATE the batches depend on the machine,
# and are not part of the experiment.
batch_settings() {
  [[ -z $TOKENS_PER_UPDATE ]] || { echo "TOKENS_PER_UPDATE=$TOKENS_PER_UPDATE"; return; }
  echo "MAX_TOKENS=$MAX_TOKENS UPDATE_FREQ=$UPDATE_FREQ"
}

# seeds_setting: print SEEDS as a setting: to several seeds more can be added.
seeds_setting() { ((${#seeds[@]} == 1)) && echo "SEEDS=$SEEDS" || echo "SEEDS=several"; }

# place_of SEED: set `place`, the folder of the models of a seed.
place_of() {
  place=$out
  ((${#seeds[@]} == 1)) || place=$out/seed$1
}

# schedule NAME LR WARMUP UPDATES: set `scheduled`, the options of a learning rate schedule and of the length.
schedule() {
  scheduled=(--lr-scheduler "$1" --lr "$2" --warmup-updates "$3" --max-update "$4")
  case $1 in
    polynomial_decay) scheduled+=(--total-num-update "$4") ;;
    cosine) scheduled+=(--lr-period-updates "$(($4 - $3))" ${MIN_LR:+--min-lr "$MIN_LR"}) ;;
  esac
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
  dry_run "${command[@]}" && return
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

# lines_of NAME COMMAND...: read the lines that a command prints into the array NAME; fail if the command fails.
lines_of() {
  local -n lines_read=$1
  local printed
  shift
  printed=$("$@")
  lines_read=()
  [[ -z $printed ]] || mapfile -t lines_read <<<"$printed"
}

# remove_closed RUN_DIR CHECKPOINT: write pruned.pt, without closed heads and optimizer state.
remove_closed() {
  [[ -f $1/pruned.pt ]] || run "$1/prune.log" headgates prune "$1/$2" "$1/pruned.pt" --no-optimizer
}

# need_short_lines SIDE LANGUAGE: fail if a line of the validation or the test set is too long for the model: generation
# would fail after the training. SIDE is source or target.
need_short_lines() {
  local option=--max-$1-positions most=1024 split found i # fairseq's default
  [[ ${DRY_RUN:-0} != 1 ]] || return 0
  for ((i = 0; i < ${#train_flags[@]}; i++)); do
    [[ ${train_flags[i]} != "$option" ]] || most=${train_flags[i + 1]:-$most}
    [[ ${train_flags[i]} != "$option="* ]] || most=${train_flags[i]#*=}
  done
  for split in valid test; do
    # The end of the sentence counts, too.
    found=$(awk -v most="$most" -v name="$split" 'NF > longest { longest = NF; line = NR }
      END { if (longest >= most) print longest + 1, "line " line " of the " name " set has " longest " tokens" }' \
      <"$text/$split.bpe.$2")
    [[ -z $found ]] ||
      fail "${found#* } in $2, and the model takes $((most - 1)): shorten it, or add $option ${found%% *} to TRAIN_FLAGS; in both cases take another OUT_DIR"
  done
}

# averaged RUN_DIR OTHERWISE: set `checkpoint` to the average of the last AVERAGE checkpoints of a finished run, and
# remove those; with AVERAGE=0 set it to OTHERWISE.
averaged() {
  checkpoint=$2
  ((AVERAGE)) || return 0
  checkpoint=averaged.pt
  [[ -f $1/averaged.pt ]] || run "$1/average.log" python3 "$recipes/lib" training.average "$1" "$1/averaged.pt" --last "$AVERAGE"
  [[ ${DRY_RUN:-0} == 1 ]] || rm -f "$1"/checkpoint_*_*.pt "$1/checkpoint_best.pt"
}

# translate RUN_DIR CHECKPOINT: write detokenised translations of the test set to RUN_DIR/test.hyp. fairseq-fixed
# 0.12.3.1 drops the last sentences where they do not fill a batch of --required-batch-size-multiple (8 by default),
# hence 1.
translate() {
  local model=$1 checkpoint=$2
  [[ -s $model/test.hyp ]] && return
  local command=("${generate[@]}" --path "$model/$checkpoint")
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    printf '%s> %q\n' "$(quoted "${command[@]}")" "$model/generate.log"
  else
    say "translating the test set with $(label "$model")"
    attended "${command[@]}" >"$model/generate.log" 2>&1 ||
      fail "translation with $model failed: $(last_line "$model/generate.log")"
  fi
  into "$model/test.hyp" "grep '^D-' $(quoted "$model/generate.log")| sort -t- -k2 -n | cut -f3 | sacremoses -q -l $tgt detokenize"
}

# time_translation RUN_DIR CHECKPOINT: translate again, while no other model is trained, and write the words per second to
# RUN_DIR/speed.json.
time_translation() {
  local model=$1 checkpoint=$2
  [[ -s $model/speed.json ]] && return
  run "$model/speed.log" "${generate[@]}" --path "$model/$checkpoint"
  into "$model/speed.json" "$(quoted python3 "$recipes/lib/speed.py" "$model/speed.log" "$model/test.hyp")"
}

# validate RUN_DIR CHECKPOINT: write the loss per token on the validation set to RUN_DIR/nll.json. In training fairseq
# stores --eval-bleu in the checkpoint; here it would only take time.
validate() {
  local model=$1 checkpoint=$2
  [[ -s $model/nll.json ]] && return
  run "$model/validate.log" fairseq-validate "$bin" --user-dir "$plugin" --path "$model/$checkpoint" --task translation \
    --valid-subset valid --max-tokens "$GENERATION_TOKENS" --required-batch-size-multiple 1 \
    --log-format json --model-overrides "{'eval_bleu': False}" "${device[@]}"
  into "$model/nll.json" "$(quoted python3 "$recipes/lib/nll.py" "$model/validate.log")"
}

# evaluate RUN_DIR CHECKPOINT: translate, and write the files that results.py reads: BLEU and chrF with sacrebleu's
# signatures, the number of heads, the loss on the validation set, and the score of METRIC.
evaluate() {
  local model=$1 checkpoint=$2
  translate "$model" "$checkpoint"
  into "$model/scores.json" "$(quoted sacrebleu "$text/reference.$tgt" -i "$model/test.hyp" -m bleu chrf -w 6 \
    "${lowercase[@]}" ${lowercase:+--chrf-lowercase} --format json)"
  into "$model/heads.json" "$(quoted headgates show "$model/$checkpoint" --json)"
  validate "$model" "$checkpoint"
  [[ $SPEED == 0 ]] || time_translation "$model" "$checkpoint"
  [[ -z $METRIC ]] || into "$model/metric.$METRIC_NAME.json" \
    "$(quoted python3 "$recipes/lib/metric.py" "$METRIC" "$text/source.$src" "$model/test.hyp" "$text/reference.$tgt")"
}

# keep_metric OUT_DIR: record METRIC. Fail if the folder has the scores of another METRIC under this METRIC_NAME.
keep_metric() {
  local file=$1/metric.$METRIC_NAME.txt
  [[ ! -f $file || $(<"$file") == "$METRIC" ]] ||
    fail "METRIC_NAME='$METRIC_NAME' is the name of another METRIC in $1 ($(<"$file")): choose another METRIC_NAME"
  keep_settings "$1" "$METRIC" "${file##*/}"
}

# compare RUN_DIR CONTROL_DIR: test whether a run differs from its control, with paired bootstrap. The control of the
# baseline can change with RUNS.
compare() {
  if [[ ${DRY_RUN:-0} != 1 && -f $1/significance.json ]]; then
    grep -qF "\"control\": \"$(basename "$2")\"" "$1/significance.json" || rm "$1/significance.json"
  fi
  into "$1/significance.json" \
    "$(quoted python3 "$recipes/lib/significance.py" "$text/reference.$tgt" "$2" "$1" "${lowercase[@]}")"
}
