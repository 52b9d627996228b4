#!/usr/bin/env bash
# WMT English-Russian as in Voita et al. 2019: from public archives to table 2, with the numbers of the paper.
#
#   recipes/wmt_en_ru.sh [--dry-run] OUT_DIR
#
# Common Crawl, News Commentary v13, the Yandex 1M corpus and the Wikipedia headlines of WMT15; the paper has 2.5 million
# pairs. Pre-norm base transformer; heads of the encoder pruned with the decoder frozen, heads of all types pruned, the
# same shapes trained from scratch. Needs a GPU and a download. Run the same command again to resume; --dry-run prints
# the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/published.sh"

# The paper does not say which sets it uses for validation and test.
configure "${published[@]}" PAPER=wmt DEV=wmt13 TEST=wmt14 DISK_GB=64 EXPECTED_PAIRS=2500000 -- "$@"
published_begin
get_corpora "wmt-en-ru:$DEV,$TEST" "$out"
for language in en ru; do
  into "$out/raw/train.$language" "cat $(quoted "$out"/corpora/{commoncrawl,news-commentary,yandex,wiki-titles}."$language")"
  for split in valid test; do into "$out/raw/$split.$language" "cat $(quoted "$out/corpora/$split.$language")"; done
done
expect_pairs "$out/raw/train.en"
published_end "$out/raw"
