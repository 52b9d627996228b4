#!/usr/bin/env bash
# WikiText-103 with the all-attention model, as in Shim et al. 2021: heads and perplexity.
#
#   recipes/wikitext103.sh [options of snakemake] [--config NAME=VALUE ...]      settings: recipes/config/wikitext103.yaml
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
command -v snakemake >/dev/null ||
  { echo "$0: snakemake is missing: pip install 'fairseq-headgates[recipes]' (Python 3.11 and later), else pipx install snakemake" >&2; exit 2; }
exec snakemake -s "$here/workflow/language_model.smk" --configfile "$here/config/wikitext103.yaml" "$@"
