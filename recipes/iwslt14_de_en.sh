#!/usr/bin/env bash
# Pruning over the course of training on IWSLT14 German-English: Michel et al. 2019, section 6.
#
#   recipes/iwslt14_de_en.sh [options of snakemake] [--config NAME=VALUE ...]      settings: recipes/config/iwslt14_de_en.yaml
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
command -v snakemake >/dev/null ||
  { echo "$0: snakemake is missing: pip install 'fairseq-headgates[recipes]' (Python 3.11 and later), else pipx install snakemake" >&2; exit 2; }
exec snakemake -s "$here/workflow/translation.smk" --configfile "$here/config/iwslt14_de_en.yaml" "$@"
