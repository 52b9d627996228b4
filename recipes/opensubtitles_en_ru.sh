#!/usr/bin/env bash
# OpenSubtitles2018 English-Russian as in Voita et al. 2019: from OPUS to table 2, the paper's numbers beside yours.
#
#   recipes/opensubtitles_en_ru.sh [--dry-run] OUT_DIR
#
# Six million pairs whose subtitles overlap in time by at least 0.9, development and test set from films of their own.
# Models, stages and --dry-run are those of recipes/wmt_en_ru.sh.
#
# Settings, from the environment, besides those of recipes/wmt_en_ru.sh (without DEV and TEST):
#   OVERLAP=0.9 PAIRS=6000000 HELD_OUT=10000      pairs for training, and for each of dev and test set
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/common.sh"
source "$recipes/published.sh"

recipe_arguments OUT_DIR "$@"
out=${arguments[0]}
export PAPER=opensubtitles OVERLAP=${OVERLAP:-0.9} PAIRS=${PAIRS:-6000000} HELD_OUT=${HELD_OUT:-10000}
published_begin "$out" 30
keep_settings "$out" "OVERLAP=$OVERLAP PAIRS=$PAIRS HELD_OUT=$HELD_OUT" data.txt

get_files opensubtitles-en-ru "$out"
step_into "$out/selection.txt" python3 "$recipes/subtitles.py" \
  "$out"/downloads/opensubtitles-v2018.en-ru.{txt.zip,xml.gz} "$out/raw" en ru \
  --overlap "$OVERLAP" --pairs "$PAIRS" --held-out "$HELD_OUT"
[[ ${DRY_RUN:-0} == 1 ]] || cat "$out/selection.txt"
published_end "$out/raw" "$out"
