# Functions that every recipe uses: arguments, checks, and stages that are skipped when their output exists. Source it.
#
# A recipe sets `recipes` to this folder's parent. With DRY_RUN=1 (the option --dry-run) commands are printed, not run.

source "$recipes/lib/jobs.sh"

fail() { echo "${0##*/}: $*" >&2; exit 2; }
# lacking MESSAGE: fail because of this machine; in a dry run only warn.
lacking() { if [[ ${DRY_RUN:-0} == 1 ]]; then echo "${0##*/}: warning: $*" >&2; else fail "$@"; fi; }
say() { [[ ${DRY_RUN:-0} == 1 ]] || printf '%s  %s\n' "$(date +%H:%M:%S)" "$*"; }

# --- arguments and checks -------------------------------------------------------------------------------------------

# parse_arguments NAMES "$@": set `arguments`, one for each name. Handle --help and --dry-run.
parse_arguments() {
  local names=$1 wanted argument
  shift
  if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" # the comment at the top of the recipe
    echo
    exec python3 "$recipes/lib/settings.py" --help "${0##*/}"
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

# check_settings: check the environment variables of the recipe, which exports its defaults first.
check_settings() {
  export DRY_RUN=${DRY_RUN:-0}
  python3 "$recipes/lib/settings.py" "${0##*/}" || exit 2
}

# check_out OUT_DIR: fail unless the folder is writable or can be created.
check_out() {
  local place=$1
  while [[ ! -e $place && ! -L $place ]]; do place=$(dirname "$place"); done
  [[ -d $place && -w $place && -x $place ]] || fail "OUT_DIR='$1' cannot be written: $place is $(
    [[ -d $place ]] && echo "a folder without write permission" || echo "not a folder"
  ); choose another folder"
}

# no_colon OUT_DIR: fairseq splits the path of its data at colons.
no_colon() { [[ $1 != *:* ]] || fail "OUT_DIR='$1' has a colon, which separates folders in fairseq: choose another name"; }

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

# layer_parameters: print the number of parameters of all layers of the model, by the settings of its size.
layer_parameters() {
  echo $((EMBED * (LAYERS * (4 * EMBED + 2 * FFN) + ${DECODER_LAYERS:-LAYERS} * (8 * EMBED + 2 * FFN))))
}

# need_space GB FOLDER: fail early if the disk is too full.
need_space() {
  local folder=$2 free
  while [[ ! -d $folder ]]; do folder=$(dirname "$folder"); done
  free=$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 { print int($4 / 1000000) }') || true
  [[ $free =~ ^[0-9]+$ ]] || return 0 # df gives no number
  ((free >= $1)) || lacking "$free GB are free on the disk of $2, and this recipe needs about $1 GB: free some, take another OUT_DIR, or set DISK_GB"
}

# has_text FILE: true if FILE or FILE.gz contains more than whitespace.
has_text() { LC_ALL=C grep -q '[^[:space:]]' < <(eval "$(reading "$1")" 2>/dev/null); }

# need_parallel RAW_DIR SRC TGT: fail early if a file of the text is missing.
need_parallel() {
  local split language
  for split in train valid test; do
    for language in "$2" "$3"; do
      [[ -f $1/$split.$language || -f $1/$split.$language.gz ]] ||
        fail "$1/$split.$language[.gz] is missing: RAW_DIR needs train, valid and test in $2 and $3"
    done
  done
}

# need_text RAW_DIR LANGUAGE SPLIT...: fail early if an existing file has no text.
need_text() {
  local raw=$1 language=$2 split
  shift 2
  for split in "$@"; do
    [[ ! -f $raw/$split.$language && ! -f $raw/$split.$language.gz ]] || has_text "$raw/$split.$language" ||
      fail "$raw/$split.$language[.gz] has no text, or cannot be read: give one sentence per line"
  done
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
  [[ ${DRY_RUN:-0} == 1 || ${RECIPE_LOCK:-} == "$1" ]] && return
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

# text_is_made: let other shares of the recipe continue.
text_is_made() { [[ ${DRY_RUN:-0} == 1 || -z ${SHARE:-} ]] || exec 6>&-; }

# other_settings SETTINGS FILE: print the settings of the file that differ, and the names of those that it lacks.
other_settings() {
  local name setting old=() new=()
  mapfile -t old < <(diff <(tr ' ' '\n' <<<"$1") <(tr ' ' '\n' <"$2") | sed -n 's/^> //p')
  for setting in $1; do
    name=${setting%%=*}
    [[ " $(<"$2")" == *" $name="* ]] || new+=("without $name")
  done
  echo "${old[@]}" "${new[@]}"
}

# keep_settings OUT_DIR SETTINGS [FILE]: record the settings of a folder. Fail if they differ from the recorded ones.
keep_settings() {
  local file=$1/${3:-settings.txt} current=$2
  if [[ -f $file && $(<"$file") != "$current" ]]; then
    fail "$1 was made with other settings ($(other_settings "$current" "$file")): take another folder or remove it"
  fi
  [[ ${DRY_RUN:-0} == 1 ]] && return
  mkdir -p "$1"
  [[ -f $file ]] && return
  printf "%s\n" "$current" >"$file.$$.part"
  mv "$file.$$.part" "$file"
}

# --- commands -------------------------------------------------------------------------------------------------------

quoted() { printf '%q ' "$@"; }

# dry_run COMMAND...: in a dry run print the command and return true.
dry_run() {
  [[ ${DRY_RUN:-0} == 1 ]] || return 1
  quoted "$@"
  echo
}

# last_line LOG: the last line, without the overwritten states of a progress bar.
last_line() { tail -n 1 "$1" | tr '\r' '\n' | tail -n 1; }

# step WHAT COMMAND...: run a command that shows its own progress and errors.
step() {
  local what=$1
  shift
  dry_run "$@" && return
  say "$what"
  attended "$@" || exit 2
}

# run LOG COMMAND...: run a command with its output in LOG; on failure print its last line.
run() {
  local log=$1
  shift
  dry_run "$@" && return
  attended "$@" >>"$log" 2>&1 || fail "$(basename "$1") failed: $(last_line "$log") (log: $log)"
}

# into OUTPUT PIPELINE: write the output of a pipeline (one string of shell code) unless OUTPUT exists. The file appears
# when it is complete. On failure print the last line of the error output.
into() {
  local output=$1 pipeline=$2 said=$1.log why
  [[ -s $output ]] && return
  if [[ ${DRY_RUN:-0} == 1 ]]; then
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
  if [[ ${DRY_RUN:-0} == 1 ]]; then
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

# last_table OUTPUT COMMAND...: write and print the table at the end of a recipe.
last_table() {
  local output=$1
  shift
  dry_run "$@" && return
  echo
  attended "$@" >"$output.part" || exit 2
  mv "$output.part" "$output"
  cat "$output"
}

# --- text -----------------------------------------------------------------------------------------------------------

# reading FILE: the command that reads FILE, or FILE.gz if only that exists, without a byte order mark and with the line
# ends of Unix.
reading() {
  local command
  if [[ ! -f $1 && -f $1.gz ]]; then command="gzip -dc $(quoted "$1.gz")"; else command="cat $(quoted "$1")"; fi
  echo "$command| LC_ALL=C sed '1s/^\xef\xbb\xbf//; s/\r\$//'"
}

# need_utf8 FILE: fail unless FILE or FILE.gz is UTF-8.
need_utf8() {
  iconv -f UTF-8 -t UTF-8 < <(eval "$(reading "$1")") >/dev/null 2>&1 ||
    fail "$1[.gz] is not UTF-8: convert it, for example with iconv -f latin1 -t utf8 (or -f UTF-16), and run the recipe again"
}

# same_text RAW_DIR OUT_DIR LANGUAGE...: fail if the text in OUT_DIR was made from files of other sizes.
same_text() {
  local raw=$1 made=$2/text/raw.txt other
  shift 2
  [[ ${DRY_RUN:-0} != 1 && -f $made ]] || return 0
  other=$(diff <(sizes_of "$raw" "$@") "$made" | sed -n 's/^> //p' | tr '\n' ',' | sed 's/,$//; s/,/, /g') || true # diff: they differ
  [[ -z $other ]] || fail "OUT_DIR was made from other text ($other), and RAW_DIR=$raw is not read again: take another OUT_DIR"
}

# record_text RAW_DIR OUT_DIR LANGUAGE...: record the sizes of the files that the text in OUT_DIR was made from.
record_text() {
  local raw=$1 made=$2/text/raw.txt
  shift 2
  [[ ${DRY_RUN:-0} != 1 && ! -f $made ]] || return 0
  sizes_of "$raw" "$@" >"$made.$$.part"
  mv "$made.$$.part" "$made"
}

# sizes_of RAW_DIR LANGUAGE...: print names and sizes of the text files, those of `splits` if it is set.
sizes_of() {
  local raw=$1 split language file
  shift
  for split in ${splits:-train valid test}; do
    for language in "$@"; do
      file=$raw/$split.$language
      [[ -f $file ]] || file+=.gz
      echo "${file##*/}: $(stat -L -c %s "$file") bytes"
    done
  done
}

# aligned SPLIT PREFIX SRC TGT: fail unless PREFIX.SRC and PREFIX.TGT have the same number of lines. On failure remove
# them, so that the next run makes them from corrected text.
aligned() {
  local lines other language
  [[ ${DRY_RUN:-0} == 1 ]] && return
  for language in "$3" "$4"; do
    [[ -z $(tail -c 1 "$2.$language" | tr '\0' x) ]] || echo >>"$2.$language" # the last line has no end
  done
  lines=$(wc -l <"$2.$3") other=$(wc -l <"$2.$4")
  [[ $lines == "$other" ]] || {
    rm -f "$2.$3" "$2.$4"
    fail "$1 has $lines lines in $3 but $other in $4: the two sides must be aligned"
  }
}

# get_files COLLECTION OUT_DIR: download the files of a collection, or find them in DATA_DIR (recipes/corpora.py).
get_files() {
  [[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$2/raw"
  step "getting the files of $1" \
    python3 "$recipes/lib" corpora.get fetch "$1" "$2/downloads" ${DATA_DIR:+--data-dir "$DATA_DIR"}
}

# get_corpora COLLECTION OUT_DIR: the same, then unpack them to OUT_DIR/corpora.
get_corpora() {
  get_files "$1" "$2"
  step_into "$2/corpora.txt" python3 "$recipes/lib" corpora.get unpack "$1" "$2/downloads" "$2/corpora"
  [[ ${DRY_RUN:-0} == 1 ]] || cat "$2/corpora.txt"
}
