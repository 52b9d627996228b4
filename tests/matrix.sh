#!/usr/bin/env bash
# Run the tests of every change, and the demo, with each supported combination of Python, fairseq and torch.
#
#   tests/matrix.sh [CELL ...]        or: make matrix CELLS="3.10 3.12"
#
# A cell is a version of Python, for which recipes/setup.sh chooses fairseq and torch, or PYTHON-TORCH (3.11-2.4.1). Each
# has its environment, .venv-CELL, some GB of downloads. Each cell appends a line to matrix.tsv, which is printed as a table
# at the end. The logs are .venv-CELL/test.log and demo.log. Exit code 1 if a cell failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cells=("$@")
((${#cells[@]})) || cells=(3.10-2.4.1 3.10 3.11-2.4.1 3.11 3.12)
failed=0

# passed LOG COMMAND...: run tests; print pytest's counts ("12 passed"), or "failed".
passed() {
  local log=$1 counts
  shift
  "$@" >"$log" 2>&1 || failed=1
  counts=$(grep -oE '[0-9]+ (passed|failed|skipped|errors?)' <<<"$(tail -n 1 "$log")" | paste -sd, | sed 's/,/, /g')
  echo "${counts:-failed}"
}

for cell in "${cells[@]}"; do
  python=${cell%%-*} torch=${cell#"$python"} venv=$PWD/.venv-$cell
  echo "== $cell" >&2
  VENV=$venv PYTHON=python$python TORCH_SPEC=${torch:+"torch==${torch#-} numpy<1.24"} recipes/setup.sh
  export PATH="$venv/bin:${PATH#"$PWD"/.venv-*/bin:}"
  versions=$("$venv/bin/python" -c '
from importlib.metadata import distributions
found = {d.name.replace("_", "-"): d.version for d in distributions()}
print(*(f"{n} {found[n]}" for n in ("fairseq", "fairseq-fixed", "torch", "numpy") if n in found), sep="\t")')
  tests=$(passed "$venv/test.log" python -m pytest -n 2 --dist worksteal -m "not rehearsal")
  demo=$(passed "$venv/demo.log" python -m pytest -m rehearsal tests/test_demo.py -k small)
  printf '%s\t%s\t%s\t%s\t%s\n' "$(date +%F)" "Python $python" "$versions" "tests: $tests" "demo: $demo" >>matrix.tsv
done
column -t -s $'\t' matrix.tsv
exit "$failed"
