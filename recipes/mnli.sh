#!/usr/bin/env bash
# Pruning of a RoBERTa fine-tuned on MNLI, as in Michel et al. 2019, section 4, and with gates.
#
#   recipes/mnli.sh [options of snakemake] [--config NAME=VALUE ...]      settings: recipes/config/mnli.yaml
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
command -v snakemake >/dev/null ||
  { echo "$0: snakemake is missing: pip install 'fairseq-headgates[recipes]' (Python 3.11 and later), else pipx install snakemake" >&2; exit 2; }
exec snakemake -s "$here/workflow/classification.smk" --configfile "$here/config/mnli.yaml" "$@"
