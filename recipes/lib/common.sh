# Functions that every recipe uses: arguments, checks, and stages that are skipped when their output exists. Source it.
#
# A recipe sets `recipes` to this folder's parent. With DRY_RUN=1 (the option --dry-run) commands are printed, not run.

source "$recipes/lib/jobs.sh"
export RECIPE=${0##*/} # programs print it before their errors
unset BASH_ENV PYTHONIOENCODING # they could write into the text, or read it in another encoding

fail() { echo "${0##*/}: $*" >&2; exit 2; }
# dry: true in a dry run.
dry() { [[ ${DRY_RUN:-0} == 1 ]]; }
# lacking MESSAGE: fail because of this machine; in a dry run only warn.
lacking() { if dry; then echo "${0##*/}: warning: $*" >&2; else fail "$@"; fi; }
say() { dry || printf '%s  %s\n' "$(date +%H:%M:%S)" "$*"; }

# --- arguments and checks -------------------------------------------------------------------------------------------

# configure [NAME=DEFAULT...] -- "$@": set `arguments`, export the settings, and print the help with --help. The defaults
# are those of the recipe; lib/settings has all settings.
configure() {
  local code
  code=$(python3 "$recipes/lib" settings.configure "$0" "$@") || exit 2
  eval "$code"
}

# check_out OUT_DIR: fail unless the folder is writable or can be created. fairseq splits the path of its data at colons.
check_out() {
  local place=$1
  while [[ ! -e $place && ! -L $place ]]; do place=$(dirname "$place"); done
  [[ -d $place && -w $place && -x $place ]] || fail "OUT_DIR='$1' cannot be written: $place is $(
    [[ -d $place ]] && echo "a folder without write permission" || echo "not a folder"
  ); choose another folder"
  [[ $1 != *:* ]] || fail "OUT_DIR='$1' has a colon, which separates folders in fairseq: choose another name"
}

# need PROGRAM...: fail early if a program is missing. In a dry run it may be, as the disk may be too small.
need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || lacking "'$program' is not on the PATH: activate the environment (README, Install)"
  done
}

need_plots() {
  python3 -c 'import matplotlib' 2>/dev/null || lacking "matplotlib is missing, and this recipe draws curves: pip install 'fairseq-headgates[plots]'"
}

# need_space GB FOLDER: fail early if the disk is too full.
need_space() {
  local folder=$2 free
  while [[ ! -d $folder ]]; do folder=$(dirname "$folder"); done
  free=$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 { print int($4 / 1000000) }') || true
  [[ $free =~ ^[0-9]+$ ]] || return 0 # df gives no number
  ((free >= $1)) || lacking "$free GB are free on the disk of $2, and this recipe needs about $1 GB: free some, take another OUT_DIR, or set DISK_GB"
}

# read_text RAW_DIR [NAME...] [--files FILE...]: set `raw_text`, the folder and names of the files of text, and other files
# that the results depend on, and check them.
read_text() {
  raw_text=("$1" "$out/text/raw.txt" "${@:2}")
  attended python3 "$recipes/lib" text.raw "${raw_text[@]}" || exit 2
}

# find_plugin: set `plugin`, the folder for --user-dir. With torch 2.6 or later the checkpoints of fairseq-train load
# only with the plugin, which allows the types of the options stored in them.
find_plugin() {
  plugin=${HEADGATES:-}
  [[ -n $plugin ]] || answer plugin headgates path
}

# lock_out OUT_DIR: fail if another run uses the folder; with SHARE, if a run that is no share uses it. Child processes
# inherit the lock; a recipe that was started by another one shares its lock.
lock_out() {
  local kind=--exclusive
  ! dry && [[ ${RECIPE_LOCK:-} != "$1" ]] || return 0
  mkdir -p "$1" 2>/dev/null || fail "OUT_DIR='$1' cannot be created: choose another folder"
  if [[ -n ${SHARE:-} ]]; then
    need flock
    kind=--shared
  fi
  command -v flock >/dev/null || return 0
  exec 8<>"$1/.lock"
  # The data loaders of a killed run end some seconds after it.
  flock "$kind" -w 15 8 || fail "another run uses $1 (or one of its programs still runs): wait until it ends, or stop it"
  if [[ -n ${SHARE:-} ]]; then
    exec 6<>"$1/.lock.text" # the text is made by one share
    attended flock 6
    return
  fi
  export RECIPE_LOCK=$1
  # NAME.PID.part of a killed run; a part of a download is resumed.
  find "$1" -maxdepth 4 -type f -name '*.[0-9]*.part' -not -path "$1/downloads/*" -delete
}

# begin_text: record the files of read_text, and make the folder of the text. What was begun from other files is removed.
begin_text() {
  dry && return
  [[ -f $out/text/raw.txt ]] || attended python3 "$recipes/lib" text.raw "${raw_text[@]}" --begin || exit 2
}

# record_text: from here on other files than those of read_text are refused.
record_text() { dry || [[ -f $out/text/raw.txt ]] || mv "$out/text/raw.txt.begun" "$out/text/raw.txt"; }

# text_is_made: let other shares of the recipe continue.
text_is_made() { dry || [[ -z ${SHARE:-} ]] || exec 6>&-; }

# keep_settings OUT_DIR NAME...: record settings in OUT_DIR/NAME.txt. Fail if they differ from the recorded ones.
keep_settings() {
  local name current pairs=()
  for name in "${@:2}"; do
    current=record_$name
    pairs+=("$name" "${!current}")
  done
  if dry; then pairs+=(--check); else mkdir -p "$1"; fi
  python3 "$recipes/lib" settings.record "$1" "${pairs[@]}" || exit 2
}

# --- commands -------------------------------------------------------------------------------------------------------

quoted() { printf '%q ' "$@"; }

# printed COMMAND...: in a dry run print the command and return true.
printed() {
  dry || return 1
  quoted "$@"
  echo
}

# last_line LOG: the last line, without the overwritten states of a progress bar.
last_line() { tail -n 1 "$1" | tr '\r' '\n' | tail -n 1; }

# step WHAT COMMAND...: run a command that shows its own progress and errors.
step() {
  local what=$1
  shift
  printed "$@" && return
  say "$what"
  attended "$@" || exit 2
}

# run LOG COMMAND...: run a command with its output in LOG; on failure print its last line.
run() {
  local log=$1
  shift
  printed "$@" && return
  attended "$@" >>"$log" 2>&1 || fail "$(basename "$1") failed: $(last_line "$log") (log: $log)"
}

# report_updates OUT_DIR [SECONDS]: once a minute, print how far every training is, until this process is ended.
report_updates() {
  local pause log updates all
  exec {pause}<> <(:) # nothing is ever written to it
  while ! read -rt "${2:-60}" -u "$pause" && kill -0 $$ 2>/dev/null; do
    for log in "$1"/{,seed*/}*/train.log; do
      [[ -f $log && ! -f ${log%/*}/finished ]] || continue
      updates=$(grep -oE 'num_updates[= ][0-9]+' "$log" | tail -n 1) || true
      all=$(grep -oEm 1 "'max_update': [1-9][0-9]*" "$log") || true
      log=${log%/*} updates=${updates##*[= ]}
      say "training ${log#"$1/"}: ${updates:-0}${all:+ of ${all##* }} updates"
    done
  done
}

# stage OUTPUT LOG COMMAND...: run a command that makes OUTPUT, unless it exists, in a folder that is made.
stage() {
  [[ ! -s $1 ]] || return 0
  dry || mkdir -p "${1%/*}"
  run "${@:2}"
}

# into OUTPUT PIPELINE: write the output of a pipeline (one string of shell code) unless OUTPUT exists. The file appears
# when it is complete. On failure print the last line of the error output.
into() {
  local output=$1 pipeline=$2 said=$1.log why
  [[ -s $output ]] && return
  if dry; then
    printf '%s > %q\n' "$pipeline" "$output"
    return
  fi
  attended bash -c "set -euo pipefail; $pipeline" >"$output.part" 2>"$said" || {
    why=$(last_line "$said")
    fail "$output cannot be made: ${why:-$pipeline} (log: $said)"
  }
  rm -f "$said"
  mv "$output.part" "$output"
}

# step_into OUTPUT COMMAND...: as `into`, for a command that shows its own progress and errors.
step_into() {
  local output=$1
  shift
  [[ -s $output ]] && return
  if dry; then
    printf '%s > %q\n' "$(quoted "$@")" "$output"
    return
  fi
  attended "$@" >"$output.part" || exit 2
  mv "$output.part" "$output"
}

# by_lines INPUT OUTPUT COMMAND: write the output of a shell command that prints a line for each line of INPUT, or of
# INPUT.gz if only that exists. It runs on all cores.
by_lines() {
  local input=$1
  [[ -f $1 || ! -f $1.gz ]] || input+=.gz
  step_into "$2" python3 "$recipes/lib" text.in_blocks "$input" "$3"
}

# show_into OUTPUT COMMAND...: the same, and print OUTPUT.
show_into() {
  step_into "$@"
  dry || cat "$1"
}

# last_table OUTPUT COMMAND...: write and print the table at the end of a recipe.
last_table() {
  printed "${@:2}" && return
  rm -f "$1"
  echo
  show_into "$@"
}

# --- text -----------------------------------------------------------------------------------------------------------

# reading FILE: the command that reads FILE, or FILE.gz if only that exists, without a byte order mark and with the line
# ends of Unix.
reading() {
  local command
  if [[ ! -f $1 && -f $1.gz ]]; then command="gzip -dc $(quoted "$1.gz")"; else command="cat $(quoted "$1")"; fi
  echo "$command| LC_ALL=C sed '1s/^\xef\xbb\xbf//; s/\r\$//'"
}

# binarise ARGUMENTS...: make $bin, the folder of fairseq-preprocess.
binarise() {
  record_text
  [[ ! -d $bin ]] || return 0
  dry || rm -rf "$bin.part"
  run "$out/preprocess.log" fairseq-preprocess "$@" --destdir "$bin.part" --workers "$(nproc)"
  run "$out/preprocess.log" mv "$bin.part" "$bin"
}

# aligned SPLIT PREFIX SRC TGT: fail unless PREFIX.SRC and PREFIX.TGT have the same number of lines.
aligned() {
  local lines other language
  dry && return
  for language in "$3" "$4"; do
    [[ -z $(tail -c 1 "$2.$language" | tr '\0' x) ]] || echo >>"$2.$language" # the last line has no end
  done
  lines=$(wc -l <"$2.$3") other=$(wc -l <"$2.$4")
  [[ $lines == "$other" ]] || fail "$1 has $lines lines in $3 but $other in $4: the two sides must be aligned"
}

# get_files COLLECTION OUT_DIR: download the files of a collection, or find them in DATA_DIR.
get_files() {
  dry || mkdir -p "$2/raw"
  step "getting the files of $1" \
    python3 "$recipes/lib" corpora.get fetch "$1" "$2/downloads" ${DATA_DIR:+--data-dir "$DATA_DIR"}
}

# get_corpora COLLECTION OUT_DIR: the same, then unpack them to OUT_DIR/corpora.
get_corpora() {
  get_files "$1" "$2"
  show_into "$2/corpora.txt" python3 "$recipes/lib" corpora.get unpack "$1" "$2/downloads" "$2/corpora"
}

# get_model NAME OUT_DIR: download a trained model of fairseq to OUT_DIR/model, or find it in DATA_DIR.
get_model() {
  [[ -f $2/model/model.pt ]] || step "getting $1" \
    python3 "$recipes/lib" corpora.pretrained "$1" "$2" ${DATA_DIR:+--data-dir "$DATA_DIR"}
}
