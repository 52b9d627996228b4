#!/usr/bin/env bash
# Run the tests of every change, and a small demo, with several versions of Python, fairseq and torch.
#
#   tests/matrix.sh [CELL ...]        or: make matrix CELLS="3.10 3.12"
#
# A cell is a version of Python, for which recipes/scripts/setup.sh chooses fairseq and torch, or PYTHON-TORCH (3.11-2.4.1), or
# PYTHON-main: fairseq's main branch. FAIRSEQ_MAIN sets what pip installs for it: a folder, or a git+https://... address.
#
# Needs python3.10 to python3.13 on the PATH, a C++ compiler and git. Each cell has its environment, .venv-CELL, some GB of
# downloads, and appends a line to matrix.tsv, which is printed as a table at the end. The logs are .venv-CELL/test.log and
# demo.log. Exit code 1 if a test failed; a set-up that fails stops the run.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
cells=("$@")
((${#cells[@]})) || cells=(3.10-2.4.1 3.10 3.10-main 3.11-2.4.1 3.11 3.12 3.13)
failed=0 demo=
trap '[[ -z $demo ]] || kill "$demo" 2>/dev/null' EXIT

# counts LOG: pytest's counts ("12 passed"), or "failed".
counts() {
  local found
  found=$(grep -oE '[0-9]+ (passed|failed|skipped|errors?)' <<<"$(tail -n 1 "$1")" | paste -sd, | sed 's/,/, /g')
  echo "${found:-failed}"
}

for cell in "${cells[@]}"; do
  IFS=- read -r python variant <<<"$cell"
  venv=$PWD/.venv-$cell torch=
  [[ -z $variant || $variant == main ]] || torch=torch==$variant
  echo "== $cell" >&2
  VENV=$venv PYTHON=python$python TORCH_SPEC=$torch recipes/scripts/setup.sh
  if [[ $variant == main && ! -f $venv/main ]]; then
    "$venv/bin/python" -m pip uninstall --quiet --yes fairseq
    "$venv/bin/python" -m pip install --quiet --no-build-isolation -c "$venv/constraints.txt" \
      "${FAIRSEQ_MAIN:-git+https://github.com/facebookresearch/fairseq}"
    touch "$venv/main"
  fi
  versions=$("$venv/bin/python" -c '
from importlib.metadata import distributions
found = {d.name.replace("_", "-"): d.version for d in distributions()}
print(*(f"{n} {found[n]}" for n in ("fairseq", "fairseq-fixed", "torch", "numpy") if n in found), sep="\t")')
  [[ $variant != main ]] || versions="main branch, $versions"
  export PATH="$venv/bin:${PATH#"$PWD"/.venv-*/bin:}"
  python -m pytest -m rehearsal tests/recipes/test_demo.py >"$venv/demo.log" 2>&1 &
  demo=$!
  python -m pytest -n "${WORKERS:-2}" --dist loadfile -m "not rehearsal and not release" >"$venv/test.log" 2>&1 || failed=1
  wait "$demo" || failed=1
  demo=
  printf '%s\t%s\t%s\t%s\t%s\n' "$(date +%F)" "Python $python" "$versions" \
    "tests: $(counts "$venv/test.log")" "demo: $(counts "$venv/demo.log")" >>matrix.tsv
done
column -t -s $'\t' matrix.tsv
exit "$failed"
