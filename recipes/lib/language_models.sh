# The models of language_model.sh: training, evaluation, and the kinds of runs. Source it after models.sh.
#
# Every function skips what is complete in the folder of the model, RUN_DIR. Variables of the recipe besides those of
# models.sh: `encoded` (the ending of the encoded text), `evaluation` (data and options of fairseq-eval-lm), `gates`
# (options of gated runs), `baseline_training` and `further_training` (options of fairseq-train), and `baseline`, the
# checkpoint that runs start from.

# blocks_of_update: set MAX_TOKENS and UPDATE_FREQ so that an update has TOKENS_PER_UPDATE tokens on all `workers`, or
# at most a block more for each batch. All blocks have the same size, so no data is read for this.
blocks_of_update() {
  local blocks=$(((TOKENS_PER_UPDATE + TOKENS_PER_SAMPLE - 1) / TOKENS_PER_SAMPLE))
  local most=$((workers * (MAX_TOKENS / TOKENS_PER_SAMPLE)))
  UPDATE_FREQ=$(((blocks + most - 1) / most))
  MAX_TOKENS=$(((blocks + workers * UPDATE_FREQ - 1) / (workers * UPDATE_FREQ) * TOKENS_PER_SAMPLE))
}

# evaluate_lm RUN_DIR CHECKPOINT: write the files that language_model_results.py reads: heads.json, valid.json and
# test.json.
evaluate_lm() {
  local subset
  into "$1/heads.json" "$(quoted headgates show "$1/$2" --json)"
  for subset in valid test; do
    [[ ! -s $1/$subset.json ]] || continue
    say "evaluating $(label "$1") on the $subset set"
    run "$1/eval.$subset.log" fairseq-eval-lm "${evaluation[@]}" --path "$1/$2" --gen-subset "$subset"
    into "$1/$subset.json" "$(quoted python3 "$recipes/lib/perplexity.py" "$1/eval.$subset.log" \
      --text "$text/$subset.words" --encoded "$text/$subset.$encoded" --dictionary "$bin/dict.txt")"
  done
}

# time_lm RUN_DIR CHECKPOINT: evaluate on the test set again, when no other model is trained or evaluated, and write the
# tokens per second to speed.json.
time_lm() {
  [[ -s $1/speed.json ]] || run "$1/speed.log" python3 "$recipes/lib/lm_speed.py" "$1/speed.json" \
    "${evaluation[@]}" --path "$1/$2" --gen-subset test
}

# lm_baseline RUN_DIR: the result is the checkpoint with the lowest loss on the validation set, and with a schedule that
# decays the last one.
lm_baseline() {
  train "$1" --arch "$ARCH" --criterion "$criterion" "${baseline_training[@]}"
  baseline=$1/checkpoint_last.pt
  [[ $SCHEDULE != inverse_sqrt ]] || baseline=$1/checkpoint_best.pt
  result "$1" "${baseline##*/}"
}

# lm_control RUN_DIR: train the baseline for as long as a gated run, with the same schedule and order of the data, and
# without gates.
lm_control() {
  train "$1" --arch "$ARCH" --criterion "$criterion" --finetune-from-model "$baseline" "${further_training[@]}"
  result "$1" checkpoint_last.pt
}

# lm_gated RUN_DIR LAMBDA: train the baseline with gates, and remove the closed heads.
lm_gated() {
  train "$1" --arch "$gated_arch" --criterion "${criterion}_l0" --finetune-from-model "$baseline" \
    --gate-heads dec-self --l0-weight "$2" "${gates[@]}" "${further_training[@]}"
  remove_closed "$1" checkpoint_last.pt
  result "$1" pruned.pt
}

# result RUN_DIR CHECKPOINT: evaluate a model, and append it to `folders` and `checkpoints`.
result() {
  evaluate_lm "$1" "$2"
  folders+=("$1") checkpoints+=("$2")
}
