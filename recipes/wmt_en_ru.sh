#!/usr/bin/env bash
# WMT English-Russian as in Voita et al. 2019: from public archives to table 2, the paper's numbers beside yours.
#
#   recipes/wmt_en_ru.sh [--dry-run] OUT_DIR
#
# Common Crawl, News Commentary v13, Yandex's million and wiki headlines, about 2.6 million pairs; pre-norm base
# transformer; encoder heads pruned with the decoder frozen, heads of all types pruned, the same shapes trained from
# scratch. Every stage is skipped when its output is there: run the same line again after any interruption. --dry-run
# prints the commands that are still to be run.
#
# Settings, from the environment:
#   DATA_DIR=PLACE        a folder that has (some of) the archives, or the address of a mirror (recipes/fetching.py)
#   DEV=wmt13 TEST=wmt14  development and test set, as sacrebleu names them (the paper does not say which)
#   PRECISION=fp16        amp or fp32; MAX_TOKENS= what fits into the GPU is estimated from its memory
#   CPU=1                 go on without a GPU; DISK_GB= how much room the disk must have
#   GPUS, HOSTS, LAUNCHER and WORKERS, see recipes/common.sh; everything in recipes/published.sh and translation.sh
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/common.sh"
source "$recipes/published.sh"

recipe_arguments OUT_DIR "$@"
out=${arguments[0]}
export PAPER=wmt DEV=${DEV:-wmt13} TEST=${TEST:-wmt14}
published_begin "$out" 15
keep_settings "$out" "DEV=$DEV TEST=$TEST" data.txt

get_corpora "wmt-en-ru:$DEV,$TEST" "$out"
for language in en ru; do
  into "$out/raw/train.$language" "cat $(quoted "$out"/corpora/{commoncrawl,news-commentary,yandex,wiki-titles}."$language")"
  for split in valid test; do into "$out/raw/$split.$language" "cat $(quoted "$out/corpora/$split.$language")"; done
done
published_end "$out/raw" "$out"
