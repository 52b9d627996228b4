#!/usr/bin/env bash
# OpenSubtitles2018 English-Russian as in Voita et al. 2019: from OPUS to table 2.
#
#   recipes/opensubtitles_en_ru.sh [options of snakemake] [--config NAME=VALUE ...]      settings: recipes/config/opensubtitles_en_ru.yaml
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
command -v snakemake >/dev/null ||
  { echo "$0: snakemake is missing: pip install 'fairseq-headgates[recipes]' (Python 3.11 and later), else pipx install snakemake" >&2; exit 2; }
exec snakemake -s "$here/workflow/translation.smk" --configfile "$here/config/opensubtitles_en_ru.yaml" "$@"
