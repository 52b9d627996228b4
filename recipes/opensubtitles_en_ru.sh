#!/usr/bin/env bash
# OpenSubtitles2018 English-Russian as in Voita et al. 2019: from OPUS to table 2, with the numbers of the paper.
#
#   recipes/opensubtitles_en_ru.sh [--dry-run] OUT_DIR
#
# Six million pairs whose subtitles overlap in time by at least 0.9; the development and test sets are films that are
# not in the training data. Models and stages are those of recipes/wmt_en_ru.sh. Needs a GPU and a download. Run the
# same command again to resume; --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/devices.sh"
export PAPER=opensubtitles OVERLAP=${OVERLAP:-0.9} PAIRS=${PAIRS:-6000000} HELD_OUT=${HELD_OUT:-10000}
source "$recipes/lib/published.sh"

parse_arguments OUT_DIR "$@"
out=${arguments[0]}
published_begin "$out" 30
own_text "$out"
keep_settings "$out" "OVERLAP=$OVERLAP PAIRS=$PAIRS HELD_OUT=$HELD_OUT" data.txt

get_files opensubtitles-en-ru "$out"
step_into "$out/selection.txt" python3 "$recipes/lib" corpora.subtitles \
  "$out"/downloads/opensubtitles-v2018.en-ru.{txt.zip,xml.gz} "$out/raw" en ru \
  --overlap "$OVERLAP" --pairs "$PAIRS" --held-out "$HELD_OUT"
[[ ${DRY_RUN:-0} == 1 ]] || cat "$out/selection.txt"
published_end "$out/raw" "$out"
