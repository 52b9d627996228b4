# Shared by the recipes: sourced, not run. Each function wraps one of fairseq's own commands and
# skips it when its output is there, so that a recipe can be stopped at any point and run again. The recipe sets
# `plugin`, the folder for --user-dir: with torch 2.6 or later the checkpoints of fairseq-train load only with the plugin,
# which allows the options stored in them.
#
# With DRY_RUN=1 (the option --dry-run of a recipe) commands are printed instead of run.

source "$recipes/jobs.sh"

fail() { echo "${0##*/}: $*" >&2; exit 2; }
say() { [[ ${DRY_RUN:-0} == 1 ]] || printf '%s  %s\n' "$(date +%H:%M:%S)" "$*"; }

# recipe_arguments NAMES "$@": --dry-run, and as many arguments as there are names, which are left in `arguments`.
recipe_arguments() {
  local names=$1 wanted argument
  shift
  if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" # the comment at the top
    exit 0
  fi
  if [[ ${1:-} == --dry-run ]]; then
    DRY_RUN=1
    shift
  fi
  wanted=$(wc -w <<<"$names")
  for argument in "$@"; do
    [[ $argument != -* ]] || fail "unknown option '$argument': ${0##*/} [--dry-run] $names (write ./$argument for a file)"
  done
  (($# == wanted)) || fail "got $# arguments, needs $wanted: ${0##*/} [--dry-run] $names"
  for argument in "$@"; do
    [[ -n $argument ]] || fail "an argument is empty: ${0##*/} [--dry-run] $names"
  done
  arguments=("$@")
}

# check_settings: settings.py has the rules for all settings of a recipe; it reads the environment, so that a recipe
# exports its defaults first.
check_settings() {
  export DRY_RUN=${DRY_RUN:-0}
  python3 "$recipes/settings.py" "${0##*/}" || exit 2
}

# check_out OUT_DIR: a folder that can be written to, or that can be made.
check_out() {
  local place=$1
  while [[ ! -e $place && ! -L $place ]]; do place=$(dirname "$place"); done
  [[ -d $place && -w $place && -x $place ]] || fail "OUT_DIR='$1' cannot be written: $place is $(
    [[ -d $place ]] && echo "a folder without the permission to write" || echo "not a folder"
  ); choose another folder"
}

# no_colon OUT_DIR: fairseq would read the names of two folders of data.
no_colon() { [[ $1 != *:* ]] || fail "OUT_DIR='$1' has a colon, which separates folders for fairseq: choose another name"; }

# A program that is missing is found before the work begins, not in the middle of it.
need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || fail "'$program' is not on the PATH: activate the environment (README, Install)"
  done
}

need_plots() {
  python3 -c 'import matplotlib' 2>/dev/null || fail "matplotlib is not there, and this draws curves: pip install 'fairseq-headgates[plots]'"
}

# need_space GB FOLDER: a full disk is found before the work begins, too.
need_space() {
  local folder=$2 free
  while [[ ! -d $folder ]]; do folder=$(dirname "$folder"); done
  free=$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 { print int($4 / 1000000) }') || true
  [[ $free =~ ^[0-9]+$ ]] || return 0 # a df that says nothing is no reason to stop
  ((free >= $1)) || fail "$free GB are free on the disk of $2, and it needs about $1 GB: free some, take another OUT_DIR, or set DISK_GB if you know better"
}

# Sets `plugin`.
find_plugin() {
  plugin=${HEADGATES:-}
  [[ -n $plugin ]] || answer plugin headgates path
}

# only_run OUT_DIR: two runs in one folder would write to the same files. Children keep the lock as long as they live;
# a recipe that one of these has called knows that it is its own.
only_run() {
  [[ ${DRY_RUN:-0} == 1 || ${RECIPE_LOCK:-} == "$1" ]] && return
  mkdir -p "$1" 2>/dev/null || fail "OUT_DIR='$1' cannot be made: choose another folder"
  exec 8>"$1/.lock"
  command -v flock >/dev/null || return 0 # not everywhere
  # Of a run that was killed, the processes that read its data end some seconds later.
  flock -w 15 8 || fail "another run is at work in $1 (or one of its programs still is): wait for its end, or stop it"
  export RECIPE_LOCK=$1
  find "$1" -maxdepth 2 -type f -name '*.[0-9]*.part' -delete # NAME.PID.part of a run that was killed
}

quoted() { printf '%q ' "$@"; }

# dry_run COMMAND...: in a dry run prints the command; else it is false, and the command remains to be run.
dry_run() {
  [[ ${DRY_RUN:-0} == 1 ]] || return 1
  quoted "$@"
  echo
}

# step WHAT COMMAND...: a command that shows its progress, and says itself what is wrong.
step() {
  local what=$1
  shift
  dry_run "$@" && return
  say "$what"
  attended "$@" || exit 2
}

# last_table OUTPUT COMMAND...: what a recipe ends with, printed and kept.
last_table() {
  local output=$1
  shift
  dry_run "$@" && return
  echo
  attended "$@" >"$output.part" || exit 2 # it has said why
  mv "$output.part" "$output"
  cat "$output"
}

# reading FILE: the command that reads FILE, or FILE.gz where that alone is there.
reading() { if [[ ! -f $1 && -f $1.gz ]]; then echo "gzip -dc $(quoted "$1.gz")"; else echo "cat $(quoted "$1")"; fi; }

# has_text FILE: FILE, or FILE.gz, has more than blanks and ends of lines.
has_text() { LC_ALL=C grep -q '[^[:space:]]' < <(eval "$(reading "$1")" 2>/dev/null); }

# need_text RAW_DIR LANGUAGE SPLIT...: fail early if a file of text is empty or holds blanks only.
need_text() {
  local raw=$1 language=$2 split
  shift 2
  for split in "$@"; do
    [[ ! -f $raw/$split.$language && ! -f $raw/$split.$language.gz ]] || has_text "$raw/$split.$language" ||
      fail "$raw/$split.$language[.gz] has no text, or cannot be read: give one sentence per line"
  done
}

# aligned SPLIT PREFIX SRC TGT: PREFIX.SRC and PREFIX.TGT have as many lines. Otherwise they are removed, so that they
# are made again from text that has been corrected.
aligned() {
  local lines other language
  [[ ${DRY_RUN:-0} == 1 ]] && return
  for language in "$3" "$4"; do
    [[ -z $(tail -c 1 "$2.$language" | tr '\0' x) ]] || echo >>"$2.$language" # the end of the last line is missing
  done
  lines=$(wc -l <"$2.$3") other=$(wc -l <"$2.$4")
  [[ $lines == "$other" ]] || {
    rm -f "$2.$3" "$2.$4"
    fail "$1 has $lines lines in $3 but $other in $4: the two sides must be aligned"
  }
}

# last_line LOG: without what a progress bar has overwritten.
last_line() { tail -n 1 "$1" | tr '\r' '\n' | tail -n 1; }

# run LOG COMMAND...: what it says goes to LOG, of a failure the last line.
run() {
  local log=$1
  shift
  dry_run "$@" && return
  attended "$@" >>"$log" 2>&1 || fail "$(basename "$1") failed: $(last_line "$log") (all of it: $log)"
}

# into OUTPUT PIPELINE: OUTPUT is written whole or not at all, and only when it is missing. PIPELINE is one string
# of shell, so that it can be shown as it is. Of what it says, the last line is shown, and that only if it fails.
into() {
  local output=$1 pipeline=$2 said=$1.log why
  [[ -s $output ]] && return
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    printf '%s > %q\n' "$pipeline" "$output"
    return
  fi
  attended bash -c "set -euo pipefail; $pipeline" >"$output.part" 2>"$said" || {
    why=$(last_line "$said")
    fail "$output cannot be made: ${why:-$pipeline} (all of it: $said)"
  }
  rm -f "$said"
  mv "$output.part" "$output"
}

# step_into OUTPUT COMMAND...: the same for a command that shows its progress, and says itself what is wrong.
step_into() {
  local output=$1
  shift
  [[ -s $output ]] && return
  if [[ ${DRY_RUN:-0} == 1 ]]; then
    printf '%s > %q\n' "$(quoted "$@")" "$output"
    return
  fi
  attended "$@" >"$output.part" || exit 2
  mv "$output.part" "$output"
}

# keep_settings OUT_DIR SETTINGS [FILE]: what a folder was made with; other settings would silently mix two experiments.
keep_settings() {
  local file=$1/${3:-settings.txt} current=$2
  if [[ -f $file && $(<"$file") != "$current" ]]; then
    fail "$1 was made with other settings ($(diff <(tr ' ' '\n' <<<"$current") <(tr ' ' '\n' <"$file") | sed -n 's/^> //p' | tr '\n' ' ' | sed 's/ $//')): take another folder or remove it"
  fi
  [[ ${DRY_RUN:-0} == 1 ]] && return
  mkdir -p "$1"
  [[ -f $file ]] && return
  printf '%s\n' "$current" >"$file.part"
  mv "$file.part" "$file"
}

# train MODEL_DIR DATA_BIN ARGUMENTS...: fairseq-train; an interrupted run goes on from its last checkpoint. SIGINT,
# SIGTERM or SIGUSR1 to the recipe stop it after the next update, with a checkpoint; then the recipe exits with 75.
train() {
  local model=$1 data=$2 job status told=0 before=0 why
  shift 2
  [[ -f $model/finished ]] && return
  local epochs=(--no-epoch-checkpoints)
  [[ ${KEEP_EPOCHS:-0} == 1 ]] && epochs=()
  local command=("${launcher[@]}" "$recipes/train.py" "$data" --user-dir "$plugin" --save-dir "$model"
    --tensorboard-logdir "$model/tensorboard" "${epochs[@]}" --log-format simple --log-interval 50
    --seed "${SEED:-1}" "${distributed[@]}" "$@")
  dry_run "${command[@]}" && return
  say "training $(basename "$model") (log: $model/train.log)"
  mkdir -p "$model"
  [[ ! -f $model/train.log ]] || before=$(wc -l <"$model/train.log")
  # torchrun is not to heed Ctrl-C: it would end its workers without waiting for their checkpoint.
  PET_SIGNALS_TO_HANDLE=SIGTERM,SIGHUP,SIGQUIT "${command[@]}" >>"$model/train.log" 2>&1 &
  job=$!
  # A file tells all processes on all machines, however they were started.
  trap '((told)) || tell_to_stop "$model/stop" "$job" &
    told=1' INT TERM USR1
  while kill -0 "$job" 2>/dev/null; do wait "$job" || true; done # a signal ends a wait, too
  wait "$job" && status=0 || status=$?
  trap stopped INT TERM USR1
  rm -f "$model/stop"
  if [[ -f $model/finished ]]; then
    ((told == 0)) || stopped # it came with the last update
    return
  fi
  if ((told)) && { ((status == 0)) || tail -n "+$((before + 1))" "$model/train.log" | grep -q 'stopped at update'; }; then
    say "told to stop: $(basename "$model") has saved a checkpoint, run this again and it goes on"
    exit 75
  fi
  why=$(last_line "$model/train.log")
  fail "training of $model failed: ${why:-no reason given} (log: $model/train.log)"
}

# tell_to_stop FILE PID: makes the file again and again as long as the process lives, because train.py removes a file that
# it finds when it starts.
tell_to_stop() {
  while kill -0 "$2" 2>/dev/null; do
    touch "$1"
    sleep 1
  done
}

# translate MODEL_DIR CHECKPOINT DATA_BIN TARGET_LANGUAGE: detokenised translations of the test
# set, in the order of the test set, as MODEL_DIR/test.hyp. (fairseq-fixed 0.12.3.1 silently drops the last few
# sentences where they fill no batch of --required-batch-size-multiple, 8 by default: hence 1.)
translate() {
  local model=$1 checkpoint=$2 data=$3 target=$4
  [[ -s $model/test.hyp ]] && return
  local command=(fairseq-generate "$data" --user-dir "$plugin" --path "$model/$checkpoint" --gen-subset test --remove-bpe
    --beam "${BEAM:-4}" --lenpen "${LENPEN:-1}" --max-tokens "${GENERATION_TOKENS:-4000}"
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

# score MODEL_DIR REFERENCE: BLEU and chrF of test.hyp against detokenised text, with sacrebleu's signature.
score() {
  into "$1/scores.json" "$(quoted sacrebleu "$2" -i "$1/test.hyp" -m bleu chrf -w 2 "${sacrebleu_flags[@]}" --format json)"
}

# averaged MODEL_DIR OTHERWISE: sets `checkpoint` to the mean of the last AVERAGE checkpoints of a finished run, which
# then go; or with AVERAGE=0 to OTHERWISE.
averaged() {
  checkpoint=$2
  ((${AVERAGE:-0})) || return 0
  checkpoint=averaged.pt
  [[ -f $1/averaged.pt ]] || run "$1/average.log" python3 "$recipes/average.py" "$1" "$1/averaged.pt" --last "$AVERAGE"
  [[ ${DRY_RUN:-0} == 1 ]] || rm -f "$1"/checkpoint_*_*.pt "$1/checkpoint_best.pt"
}

# gated_run RUN_DIR DATA_BIN REFERENCE TARGET_LANGUAGE TYPES LAMBDA BASELINE_CHECKPOINT ARGUMENTS...: starts from the
# baseline, learns the gates, takes the closed heads out, translates with what is left and scores. With encoder gates
# alone the decoder is frozen, so that functions cannot move there (Voita et al. 2019, section 6.2).
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

# scratch_run RUN_DIR DATA_BIN REFERENCE TARGET_LANGUAGE PRUNED_CHECKPOINT ARGUMENTS...: the heads of a pruned model,
# trained from nothing (Voita et al. 2019, table 2).
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

# evaluate RUN_DIR CHECKPOINT DATA_BIN REFERENCE TARGET_LANGUAGE: what results.py reads.
evaluate() {
  local model=$1 checkpoint=$2 data=$3 reference=$4 target=$5
  translate "$model" "$checkpoint" "$data" "$target"
  score "$model" "$reference"
  into "$model/heads.json" "$(quoted headgates show "$model/$checkpoint" --json)"
}

# get_files COLLECTION OUT_DIR, get_corpora COLLECTION OUT_DIR: see corpora.py. DATA_DIR: files that are there, or a
# mirror.
get_files() {
  [[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$2/raw"
  step "getting the files of $1" \
    python3 "$recipes/corpora.py" fetch "$1" "$2/downloads" ${DATA_DIR:+--data-dir "$DATA_DIR"}
}
get_corpora() {
  get_files "$1" "$2"
  step_into "$2/corpora.txt" python3 "$recipes/corpora.py" unpack "$1" "$2/downloads" "$2/corpora"
  [[ ${DRY_RUN:-0} == 1 ]] || cat "$2/corpora.txt"
}

# --- where it runs --------------------------------------------------------------------------------------------------

# Sets `gpus` (of this machine, 0: none), `launcher` (what train.py is started with), `workers` (its processes in all) and
# options: `device` for what runs here, `distributed` for training.
#   GPUS=N           how many of this machine (default: all that nvidia-smi shows, or CUDA_VISIBLE_DEVICES)
#   HOSTS="a b c"    machines that share this folder: torchrun is started on each, by ssh; the first is this one
#   LAUNCHER="..." WORKERS=N    anything else that starts N processes of a Python script, one for each GPU: "srun python3"
find_devices() {
  local hosts visible
  gpus=0 device=() distributed=() launcher=(python3) workers=1
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    visible=$(if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"; else nvidia-smi -L; fi | wc -l)
    gpus=${GPUS:-$visible}
    ((gpus <= visible)) || fail "GPUS=$gpus must be at most $visible, the number of GPUs that this machine shows"
  fi
  if ((gpus == 0)); then
    device=(--cpu)
    # glibc would hand every large buffer back to the kernel after use, and get it anew a moment later.
    export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-8589934592} MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-8589934592}
  fi
  if [[ -n ${LAUNCHER:-} ]]; then
    read -ra launcher <<<"$LAUNCHER"
    [[ ${DRY_RUN:-0} == 1 ]] || command -v "${launcher[0]}" >/dev/null || fail "LAUNCHER='$LAUNCHER': '${launcher[0]}' is not on the PATH"
    workers=$WORKERS
  elif [[ -n ${HOSTS:-} ]]; then
    read -ra hosts <<<"$HOSTS"
    launcher=("$recipes/on_hosts.sh" "${hosts[@]}" --)
    export NPROC_PER_NODE=$((gpus ? gpus : 1))
    workers=$((${#hosts[@]} * NPROC_PER_NODE))
  elif ((gpus > 1)); then
    launcher=(torchrun --standalone --nproc_per_node "$gpus")
    workers=$gpus
  fi
  # The machines of a launcher may have GPUs where this one has none.
  if ((gpus == 0)) && [[ -z ${LAUNCHER:-} || ${CPU:-0} == 1 ]]; then
    distributed=(--cpu)
    ((workers == 1)) || distributed+=(--distributed-backend gloo --ddp-backend legacy_ddp)
  fi
  # fairseq finds ranks and the first machine in SLURM's environment, if it is told how many and where to meet.
  [[ -z ${LAUNCHER:-} || -z ${SLURM_JOB_ID:-} ]] ||
    distributed+=(--distributed-world-size "$workers" --distributed-port "${PORT:-29500}")
}

# Recipes of full size go no further without a GPU, unless they are only tried.
need_gpu() {
  ((gpus)) || [[ ${CPU:-0} == 1 || -n ${LAUNCHER:-} || ${DRY_RUN:-0} == 1 ]] ||
    fail "no GPU is to be seen (nvidia-smi -L): this recipe trains for days on one; CPU=1 runs it all the same, for trying it with small sizes"
}

sacrebleu_flags=()
