# The baseline, its controls, and the kinds of runs in RUNS, of any model. Source it after models.sh.
#
# Every function trains and evaluates one model in its folder, RUN_DIR, and skips what is complete. Variables of the
# recipe: `arch` and `gated_arch`, architectures without and with gates; `criterion`; `baseline_training` and
# `further_training`, options of fairseq-train for the baseline and for every training that starts from it;
# `baseline_checkpoint`, the result of a baseline without AVERAGE; `gates`, options of gated runs; `scoring`, data and
# options of `headgates score`; and `baseline`, the checkpoint that runs start from.

# before_baseline PLACE, after_baseline PLACE: further stages of a seed, which a recipe may define.
before_baseline() { :; }
after_baseline() { :; }

# start_from CHECKPOINT CONTROL: set `start`, the options of a training that continues from a checkpoint as the control
# does. With enc-self alone the decoder is frozen, so that it cannot take over functions of encoder heads (Voita et al.
# 2019, section 6.2).
start_from() {
  start=(--finetune-from-model "$1")
  [[ $2 != baseline+frozen ]] || start+=(--freeze-params '^decoder\.')
}

# baseline_run RUN_DIR: the result is the average of the last AVERAGE checkpoints, otherwise `baseline_checkpoint`.
baseline_run() {
  before_baseline "${1%/*}"
  train "$1" --arch "$arch" --criterion "$criterion" "${baseline_training[@]}"
  averaged "$1" "$baseline_checkpoint"
  baseline=$1/$checkpoint
  evaluate "$1" "$checkpoint"
  after_baseline "${1%/*}"
}

# control_run RUN_DIR CONTROL: train the baseline for as long as a run of RUNS, with the same schedule and order of the
# data, and without gates.
control_run() {
  local start architecture=$arch
  start_from "$baseline" "$2"
  [[ $2 == baseline+ ]] || architecture=$gated_arch
  train "$1" --arch "$architecture" --criterion "$criterion" "${start[@]}" "${further_training[@]}"
  averaged "$1" checkpoint_last.pt
  evaluate "$1" "$checkpoint"
}

# gated_run RUN_DIR CONTROL TYPES METHOD VALUE [SCALE]: train gates on the baseline, with lambda (method l0) or the number
# of heads to keep as VALUE, and remove the closed heads. SCALE is the --gate-lr-scale of this run.
gated_run() {
  local model=$1 types=$3 method=$4 value=$5 scale=${6:-} start sparsity
  start_from "$baseline" "$2"
  if [[ $method == l0 ]]; then
    sparsity=(--l0-weight "$value" ${L0_WARMUP:+--l0-warmup-updates "$L0_WARMUP"})
  else
    sparsity=(--sparsity-method "$method" --target-heads "$value"
      ${SPARSITY_WARMUP:+--sparsity-warmup-updates "$SPARSITY_WARMUP"})
  fi
  train "$model" --arch "$gated_arch" --gate-heads "$types" --criterion "${criterion}_l0" \
    "${sparsity[@]}" "${gates[@]}" ${scale:+--gate-lr-scale "$scale"} "${start[@]}" "${further_training[@]}"
  averaged "$model" checkpoint_last.pt
  finish "$model" "$checkpoint"
}

# scored_run RUN_DIR CONTROL TYPES SCORES STEPS...: remove the heads with the lowest scores until as many are left as a
# step says, then train for an equal part of PRUNE_UPDATES, and so on for every step.
# All steps are one training of PRUNE_UPDATES updates: the checkpoint with which a step begins has the number of updates,
# the state of the optimizer and the position in the data with which the step before it ended. The learning rate has one
# warm-up and one decay; the second of four steps trains at the rates of the second quarter of the schedule.
scored_run() {
  local model=$1 control=$2 types=$3 scores=$4 from=$baseline step=0 heads folder start options=(--no-optimizer)
  shift 4
  for heads in "$@"; do
    folder=$model
    ((++step == $#)) || folder=$model/step$step
    cut_by_score "$from" "$folder" start.pt "$types" "$scores" "$heads" "${options[@]}"
    start_from "$folder/start.pt" "$control"
    # With this file fairseq resumes, and ignores --finetune-from-model.
    if ((step > 1)) && [[ ! -f $folder/checkpoint_last.pt ]]; then
      run "$folder/prune.log" cp "$folder/start.pt" "$folder/start.pt.$$.part"
      run "$folder/prune.log" mv "$folder/start.pt.$$.part" "$folder/checkpoint_last.pt"
    fi
    train "$folder" --arch "$gated_arch" --alive-heads "$folder/start.pt" --remove-heads \
      --criterion "$criterion" "${start[@]}" "${further_training[@]}" \
      --max-update "$((PRUNE_UPDATES * step / $#))"
    from=$folder/checkpoint_last.pt options=()
  done
  averaged "$model" checkpoint_last.pt
  finish "$model" "$checkpoint"
}

# untrained_run RUN_DIR METHOD TYPES SCORES N: remove heads of the baseline by their scores, without training. METHODs
# that end in "refit" refit the model, on the sentences of the scores.
untrained_run() {
  local options=(--no-optimizer)
  [[ $2 != *refit ]] || options+=(--refit "${scoring[@]}" --refit-sentences "$SENTENCES")
  cut_by_score "$baseline" "$1" pruned.pt "$3" "$4" "$5" "${options[@]}"
  evaluate "$1" pruned.pt
}

# cut_by_score CHECKPOINT FOLDER NAME TYPES SCORES N OPTIONS...: score the heads of a checkpoint on the beginning of
# the training set, which is not the data of the evaluation, and write FOLDER/NAME with the best N of them.
cut_by_score() {
  local from=$1 folder=$2 name=$3 types=$4 scores=$5 heads=$6
  shift 6
  stage "$folder/head_scores.json" "$folder/score.log" headgates score "${scoring[@]}" --path "$from" --gen-subset train \
    --sentences "$SENTENCES" --method "$scores" --seed "$seed" --out "$folder/head_scores.json" --force
  stage "$folder/$name" "$folder/prune.log" headgates prune "$from" "$folder/$name" --scores "$folder/head_scores.json" \
    --types "$types" --keep "$heads" "$@"
}

# compressed_run RUN_DIR CONTROL BUDGET VALUE: remove heads and neurons of the baseline until a budget is met, params or
# speed, then train.
compressed_run() {
  local start
  compress "$1" start.pt "$3" "$4"
  start_from "$1/start.pt" "$2"
  train "$1" --arch "$gated_arch" --alive-heads "$1/start.pt" --remove-heads --criterion "$criterion" "${start[@]}" \
    "${further_training[@]}"
  averaged "$1" checkpoint_last.pt
  finish "$1" "$checkpoint"
}

# compressed_only_run RUN_DIR BUDGET VALUE: the same without training.
compressed_only_run() {
  compress "$1" pruned.pt "$2" "$3"
  evaluate "$1" pruned.pt
}

# compress FOLDER NAME BUDGET VALUE: write FOLDER/NAME, the compressed baseline.
compress() {
  local option=--params
  [[ $3 == params ]] || option=--speedup
  stage "$1/$2" "$1/compress.log" headgates compress "${scoring[@]}" --path "$baseline" "$option" "$4" --fit-subset train \
    --fit-sentences "$SENTENCES" --gen-subset valid --out "$1/$2"
}

# scratch_run RUN_DIR PRUNED_DIR: train a model with the heads (and neurons) of a pruned one from random weights
# (Voita et al. 2019, table 2): as the baseline, then as baseline+, so that its training is as long as that of the pruned
# model.
scratch_run() {
  local model=$1 pruned=$2/pruned.pt start options
  stage "$model/mask.json" "$model/mask.log" headgates show "$pruned" --out "$model/mask.json"
  options=(--arch "$gated_arch" --alive-heads "$model/mask.json" --remove-heads --ffn-dims "$pruned"
    --criterion "$criterion")
  train "$model/first" "${options[@]}" "${baseline_training[@]}"
  averaged "$model/first" "$baseline_checkpoint"
  start_from "$model/first/$checkpoint" baseline+
  train "$model" "${options[@]}" "${start[@]}" "${further_training[@]}"
  averaged "$model" checkpoint_last.pt
  evaluate "$model" "$checkpoint"
}

# finish RUN_DIR CHECKPOINT: write pruned.pt, without closed heads and optimizer state, and evaluate it.
finish() {
  remove_closed "$1" "$2"
  evaluate "$1" pruned.pt
}

# exclusively RUN_DIR COMMAND...: run a function for a model. With SHARE another share of the recipe may be at work on the
# same model: wait for it; the function then finds everything complete.
exclusively() {
  local folder=$1 lock
  shift
  if [[ -z $SHARE ]] || dry; then
    "$@"
    return
  fi
  mkdir -p "$folder"
  exec {lock}>"$folder/.lock"
  flock -n "$lock" || {
    say "waiting for $(label "$folder"), which another process trains"
    attended flock "$lock"
  }
  "$@"
  exec {lock}>&-
}

declare -A complete=() # by folder: the models that are complete; for a baseline its checkpoint

# from_baseline PLACE: train the baseline of one seed, and set `baseline` to its checkpoint.
from_baseline() {
  [[ -n ${complete[$1/baseline]:-} ]] || exclusively "$1/baseline" baseline_run "$1/baseline"
  complete[$1/baseline]=${complete[$1/baseline]:-$baseline}
  baseline=${complete[$1/baseline]}
}

# one_run PLACE NAME: the model NAME of one seed, by its line of the plan, and first the models that it needs.
one_run() {
  local place=$1 line name method control types value steps
  [[ -z ${complete[$1/$2]:-} ]] || return 0
  for line in "${plan_of_runs[@]}"; do
    [[ ${line%% *} != "$2" ]] || break
  done
  read -r name method control types value steps <<<"$line"
  from_baseline "$place"
  [[ $method != scratch ]] || one_run "$place" "$value"
  # shellcheck disable=SC2086 # several numbers
  case $method in
    control) exclusively "$place/$name" control_run "$place/$name" "$control" ;;
    l0 | lagrangian | subset*) exclusively "$place/$name" gated_run "$place/$name" "$control" "$types" "$method" "$value" $steps ;;
    compress-only) exclusively "$place/$name" compressed_only_run "$place/$name" "$value" "$steps" ;;
    *-only | *refit) exclusively "$place/$name" untrained_run "$place/$name" "$method" "$types" "$value" "$steps" ;;
    compress) exclusively "$place/$name" compressed_run "$place/$name" "$control" "$value" "$steps" ;;
    scratch) exclusively "$place/$name" scratch_run "$place/$name" "$place/$value" ;;
    *) exclusively "$place/$name" scored_run "$place/$name" "$control" "$types" "$value" $steps ;;
  esac
  complete[$place/$name]=1
}

# all_models: the models of all seeds, or those of this share, in the order of the plan. Shares begin with different
# seeds, so that they do not wait for the same baseline.
all_models() {
  local share=${SHARE:-1/1} line turn position number place
  for ((turn = 0; turn < ${#seeds[@]}; turn++)); do
    position=$(((${share%/*} - 1 + turn) % ${#seeds[@]}))
    seed=${seeds[position]} place=${places[position]}
    [[ -n $SHARE ]] || from_baseline "$place"
    number=$((position * ${#plan_of_runs[@]}))
    for line in "${plan_of_runs[@]}"; do
      ((number++ % ${share#*/} != ${share%/*} - 1)) || one_run "$place" "${line%% *}"
    done
  done
  if [[ -n $SHARE ]]; then
    say "part $SHARE of the models is complete"
    exit
  fi
}

# table FAMILY OPTIONS...: write and print the table of all models.
table() {
  last_table "$out/results.txt" python3 "$recipes/lib" results.table "$1" "${places[@]}" "${options_of_runs[@]}" \
    --seed "${seeds[0]}" --tsv "$out/results.tsv" "${@:2}"
}
