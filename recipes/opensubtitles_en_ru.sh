#!/usr/bin/env bash
# OpenSubtitles2018 English-Russian as in Voita et al. 2019: from OPUS to table 2, with the numbers of the paper.
#
#   recipes/opensubtitles_en_ru.sh [--dry-run] OUT_DIR
#
# Six million pairs whose subtitles overlap in time by at least 0.9; the development and test sets are films that are
# not in the training data. Models and stages are those of recipes/wmt_en_ru.sh. Needs a GPU and a download. Run the
# same command again to resume; --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/published.sh"

configure "${published[@]}" PAPER=opensubtitles OVERLAP=0.9 PAIRS=6000000 HELD_OUT=10000 DISK_GB=79 -- "$@"
published_begin
get_files opensubtitles-en-ru "$out"
show_into "$out/selection.txt" python3 "$recipes/lib" corpora.subtitles \
  "$out"/downloads/opensubtitles-v2018.en-ru.{txt.zip,xml.gz} "$out/raw" en ru \
  --overlap "$OVERLAP" --pairs "$PAIRS" --held-out "$HELD_OUT"
published_end "$out/raw"
