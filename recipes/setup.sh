#!/usr/bin/env bash
# Makes the environment that the tests and the recipes run in: .venv with torch, fairseq-fixed and this package.
# `make test` and `make demo` call it; it takes no arguments and, when everything is there, no time.
# It can be stopped at any moment and run again: each step first looks whether its work is already done.
#
#   PYTHON=python3.12          the interpreter for a new environment (3.11 or 3.12; default: the first that runs)
#   VENV=.venv-3.12            where the environment lies (default: .venv in the checkout)
#   TORCH_SPEC='torch==2.5.1'  what to ask pip for instead of the torch chosen below
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)
venv=${VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
python=$venv/bin/python
log=$venv/setup.log
stamp=$venv/.headgates-ready   # written last: what the environment was made from
begun=$venv/.headgates-setup   # written first: the folder is ours, even when nothing else is in it yet

torch_spec=${TORCH_SPEC:-}
torch_cpu_index=https://download.pytorch.org/whl/cpu
# One place for the version: the extra [fairseq] of setup.py.
fairseq_spec=$(sed -n 's/.*"\(fairseq-fixed==[^"]*\)".*/\1/p' setup.py)

# The environment is self-contained; these would let other work leak into it, or pip's work leak out.
unset PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '%s\n' "$*" >&2; }
step() { say "[$1/5] ${*:2}"; }

# One line: the value, the rule, the cure.
die() {
  say "setup: $*"
  exit 1
}

# pip's noise goes to a file; of a failure its end is shown.
pip() { "$python" -m pip "$@" >>"$log" 2>&1; }
die_with_log() {
  say "--- the last lines of $log"
  { grep -v '^WARNING: ' "$log" | tail -n 12 | cut -c 1-240 >&2; } || true
  say "---"
  die "$* (see above; everything is in $log)."
}

# --- is there anything to do? -----------------------------------------------------------------------------

# The path is part of it: an environment that was moved or copied has the old path in all its commands.
fingerprint() { { cat setup.py recipes/setup.sh && printf '%s\n' "$venv"; } | cksum; }

# A venv gets its interpreter first and pip last: a whole one has a pip that starts the interpreter beside it
# (line 1; line 2 where the path is long or has blanks) and not that of a folder it was copied from.
venv_is_whole() {
  local started_by
  [[ -x $python && -f $venv/bin/pip ]] || return 1
  started_by=$(sed -nE '1,2s/^(#!|.*exec. "?)(\/.*\/bin)\/python[^\/]*$/\2/p' "$venv/bin/pip")
  [[ $started_by -ef $venv/bin ]]
}

is_ready() {
  [[ -f $stamp && -x $python ]] || return 1
  [[ $(head -n 1 "$stamp") == "$(fingerprint)" ]] || return 1
  [[ -z $torch_spec ]] || grep -qxF "torch: $torch_spec" "$stamp"
}

# --- what a machine must have -----------------------------------------------------------------------------

# Run it rather than look for it: version managers put commands on PATH that only say "not found".
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

is_supported() { [[ $1 == 3.11 || $1 == 3.12 ]]; }

install_hint='install one (Debian, Ubuntu: apt-get install python3.12-venv, or python3.11-venv python3.11-dev; conda: conda create -n py312 python=3.12), or name one: PYTHON=/path/to/python3.12 make test'

# Sets base_python and base_version.
find_python() {
  local tried=
  if [[ -n ${PYTHON:-} ]]; then
    base_python=$PYTHON
    base_version=$(version_of "$PYTHON") ||
      die "PYTHON=$PYTHON does not run; headgates needs Python 3.11 or 3.12: $install_hint."
    is_supported "$base_version" ||
      die "PYTHON=$PYTHON is Python $base_version; headgates needs 3.11 or 3.12: $install_hint."
    return
  fi
  for base_python in python3.12 python3.11 python3; do
    if base_version=$(version_of "$base_python"); then
      if is_supported "$base_version"; then return; fi
      tried+=", $base_python is $base_version"
    elif command -v "$base_python" >/dev/null; then
      tried+=", $base_python does not run"
    else
      tried+=", no $base_python"
    fi
  done
  die "no Python 3.11 or 3.12 on PATH (${tried#, }): $install_hint."
}

# An environment that is already there decides the Python; PYTHON may only agree with it.
check_python_agrees() {
  local here asked
  [[ -n ${PYTHON:-} ]] || return 0
  find_python
  asked=$base_version
  here=$(version_of "$python")
  [[ $asked == "$here" ]] ||
    die "PYTHON=$PYTHON is Python $asked, but $venv holds Python $here: keep both with VENV=.venv-$asked, or remove the old one first with 'make distclean'."
}

need_venv_module() {
  "$base_python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$base_python (Python $base_version) cannot make virtual environments, the modules venv and ensurepip are missing: install them (Debian, Ubuntu: apt-get install python$base_version-venv)."
}

# fairseq-fixed is published ready-made for one platform only.
fairseq_is_compiled() { ! [[ $1 == 3.12 && $(uname -sm) == "Linux x86_64" ]]; }

# What distutils and torch's build helper will call: $CC or the one Python was built with, and $CXX or c++.
need_compiler() {
  local interpreter=$1 version=$2 reason compiler command include
  fairseq_is_compiled "$version" || return 0
  reason="fairseq-fixed has no wheel for Python $version on $(uname -sm) and is compiled"
  for compiler in "${CC:-$("$interpreter" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}" "${CXX:-c++}"; do
    read -r -a command <<<"$compiler"
    "${command[@]}" -x c++ -fsyntax-only - <<<'int main() { return 0; }' >/dev/null 2>&1 ||
      die "no C++ compiler, '$compiler' does not compile C++; $reason: install one (Debian, Ubuntu: apt-get install g++), name it in CC and CXX, or use Python 3.12 on Linux x86_64, which has a wheel."
  done
  include=$("$interpreter" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  "${command[@]}" -x c++ -fsyntax-only -I "$include" - <<<'#include <Python.h>' >/dev/null 2>&1 ||
    die "no Python headers, $include/Python.h cannot be used; $reason: install them (Debian, Ubuntu: apt-get install python$version-dev)."
}

# need_space GB FOLDER WHAT: a full disk shows itself in pip as anything but that.
need_space() {
  local free_kb
  free_kb=$(df -Pk "$2" 2>/dev/null | awk 'NR == 2 { print $4 }') || true
  [[ $free_kb =~ ^[0-9]+$ ]] || return 0 # a df that says nothing is no reason to stop
  ((free_kb >= $1 * 1024 * 1024)) ||
    die "$((free_kb / 1024)) MB free on the disk of $2; $3 needs $1 GB: free some, or put the $4."
}
need_space_for_venv() { need_space "$1" "$(dirname "$venv")" "$2" "environment elsewhere with VENV=/path/on/another/disk"; }
need_space_for_builds() { need_space 1 "${TMPDIR:-/tmp}" "unpacking and compiling" "temporary files elsewhere with TMPDIR=/path"; }

# --- the five steps ---------------------------------------------------------------------------------------

# The version of a torch that the interpreter already has and that a new environment may share; else nothing.
#
# Sharing (--system-site-packages) lets every package of that interpreter in, so it is done only where that is
# sound: torch imports, is new enough and works with the numpy beside it (both are pinned below); and no fairseq
# is there, because its folder would mix with fairseq-fixed's. Whatever else pip finds unfit there it installs
# into the environment, which comes first on the path. Worth it on a cluster or in a vendor's container, where
# that torch may be the only one that fits the driver. An interpreter inside a virtual environment is left out:
# --system-site-packages would give the packages of the Python behind it. TORCH_SPEC asks for a particular torch
# and so for an unshared one.
shared_torch() {
  [[ -z $torch_spec ]] || return 0
  "$base_python" -s - 2>/dev/null <<'PY' || true
import importlib.util, sys
assert sys.prefix == sys.base_prefix
assert importlib.util.find_spec("fairseq") is None
import torch
assert tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 1)
assert torch.zeros(1).numpy().sum() == 0
print(torch.__version__)
PY
}

make_venv() {
  local shared
  find_python
  need_venv_module
  need_compiler "$base_python" "$base_version"
  need_space_for_venv 4 "a new environment"
  need_space_for_builds

  if [[ -e $venv ]]; then
    # Never empty a folder that is not an environment: VENV may have been mistyped.
    [[ -f $venv/pyvenv.cfg || -f $begun || -z $(ls -A "$venv") ]] ||
      die "VENV=$venv is a folder that holds something other than a virtual environment: name another, or an empty one."
    say "setup: $venv is incomplete or was made in another place; making it anew"
    rm -rf "$venv"
  fi
  mkdir -p "$venv"
  touch "$begun"

  shared=$(shared_torch)
  step 1 "making ${venv#"$root"/} with $base_python (Python $base_version)${shared:+, sharing its torch $shared}"
  "$base_python" -m venv ${shared:+--system-site-packages} "$venv" >>"$log" 2>&1 ||
    die_with_log "$base_python -m venv failed; a virtual environment is needed"
  venv_is_whole || die_with_log "$base_python -m venv left no pip in $venv; use another interpreter: PYTHON=/path/to/python3.12"
}

# A pip that was killed can leave a package whose description is there but whose commands are not; pip would take
# it for installed. pip signs a package (INSTALLER) after all else; without its description one that is not
# signed is installed again.
drop_half_installed() {
  local info
  for info in "$venv"/lib/python3.*/site-packages/*.dist-info; do
    if [[ -d $info && ! -e $info/INSTALLER ]]; then rm -rf "$info"; fi
  done
}

has_torch() {
  "$python" - >>"$log" 2>&1 <<'PY'
from importlib.metadata import version
import torch
version("torch"), version("numpy")  # half installed, they have none
assert tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 1), torch.__version__
torch.zeros(1).numpy()
PY
}

# Does PyTorch's own index answer and have this build? Asked first and briefly: without a route to it, pip would
# spend minutes on retries; with one, the download itself keeps pip's patient defaults.
cpu_index_has() {
  "$python" -m pip index versions torch --index-url "$torch_cpu_index" --retries 0 --timeout 10 2>>"$log" |
    grep -qF "$1"
}

# The CPU build where there is no GPU: the ordinary one brings gigabytes of CUDA libraries.
install_torch_for_cpu() {
  local build=$1+cpu
  pip install "torch==$build" numpy && return # a local folder or an index that pip is configured for
  cpu_index_has "$build" && pip install "torch==$build" numpy --extra-index-url "$torch_cpu_index" && return
  say "      no CPU build of torch $1 can be reached ($torch_cpu_index); taking PyPI's, with CUDA: some GB"
  return 1
}

install_torch() {
  local version tested words
  if [[ -n $torch_spec ]]; then
    step 2 "installing $torch_spec (TORCH_SPEC)"
    read -r -a words <<<"$torch_spec" # words, so that it may hold options of pip too
    pip install "${words[@]}" numpy || die_with_log "TORCH_SPEC='$torch_spec' cannot be installed; it must be something that 'pip install' takes, such as 'torch==2.13.0' or 'torch==2.2.2 numpy<2'"
    has_torch || die_with_log "TORCH_SPEC='$torch_spec' gave no torch >= 2.1 that imports and works with its numpy; name others, such as 'torch==2.2.2 numpy<2'"
    return
  fi
  if has_torch; then
    step 2 "torch is there"
    return
  fi
  # The versions this project is tested with; any torch >= 2.1 that is already there counts too.
  version=$(version_of "$python")
  if [[ $version == 3.11 ]]; then tested=2.13.0; else tested=2.11.0; fi
  step 2 "installing torch $tested"
  if [[ $(uname -s) == Linux ]] && ! nvidia-smi -L >/dev/null 2>&1; then
    if install_torch_for_cpu "$tested"; then return; fi
  fi
  if [[ $(uname -s) == Linux ]]; then need_space_for_venv 9 "torch with CUDA"; fi
  pip install "torch==$tested" numpy || die_with_log "torch $tested cannot be installed; check the network, or name another: TORCH_SPEC='torch==2.11.0' make test"
}

# From here on pip may not touch torch, nor the numpy that it works with.
pin_torch() {
  "$python" - >"$venv/constraints.txt" 2>>"$log" <<'PY' || die_with_log "torch or numpy is half installed; make the environment anew with 'make distclean' and this again"
from importlib.metadata import version
for name in ("torch", "numpy"):
    print(f"{name}=={version(name)}")
PY
}

has_fairseq() {
  "$python" - "${fairseq_spec#*==}" >>"$log" 2>&1 <<'PY'
import importlib.metadata as metadata, sys
assert metadata.version("fairseq-fixed") == sys.argv[1], metadata.version("fairseq-fixed")
assert not any(d.name == "fairseq" for d in metadata.distributions()), "fairseq and fairseq-fixed share a folder"
import fairseq.libbleu, fairseq.data.data_utils_fast, fairseq.data.token_block_utils_fast
PY
}

install_fairseq() {
  local version
  if has_fairseq; then
    step 3 "$fairseq_spec is there"
    return
  fi
  version=$(version_of "$python")
  need_compiler "$python" "$version"
  need_space_for_venv 1 "$fairseq_spec"
  need_space_for_builds
  if fairseq_is_compiled "$version"; then
    step 3 "installing $fairseq_spec (compiled from source: some minutes)"
    # Without build isolation, which would download a second torch; so what it builds with must be here.
    pip install -c "$venv/constraints.txt" "setuptools>=64" wheel cython ||
      die_with_log "setuptools, wheel and cython cannot be installed; fairseq-fixed is built with them: check the network and run this again"
  else
    step 3 "installing $fairseq_spec"
    pip install -c "$venv/constraints.txt" "setuptools>=64" wheel ||
      die_with_log "setuptools and wheel cannot be installed; check the network and run this again"
  fi
  pip uninstall -y fairseq fairseq-fixed # the vanilla package owns the same folder, and a half one is none
  pip install --no-build-isolation -c "$venv/constraints.txt" "$fairseq_spec" ||
    die_with_log "$fairseq_spec cannot be installed; check the network and the compiler, and run this again"
}

install_headgates() {
  step 4 "installing this checkout (editable) and its tools"
  pip install --no-build-isolation -c "$venv/constraints.txt" -e '.[fairseq,recipes,plots,dev]' ||
    die_with_log "the packages that setup.py names cannot be installed; check the network and run this again"
}

# Imports everything but the project itself: a mistake in its code is for the tests to show, not for the set-up.
check_environment() {
  step 5 "checking"
  (cd / && "$python" - "$root") >>"$log" 2>&1 <<'PY' ||
import importlib, importlib.util, os, sys
for name in "torch numpy sacrebleu tensorboardX sacremoses subword_nmt matplotlib conllu hypothesis pytest".split():
    importlib.import_module(name)
spec = importlib.util.find_spec("fairseq_headgates")
assert spec and spec.origin, "fairseq_headgates cannot be found"
assert os.path.realpath(spec.origin).startswith(sys.argv[1] + os.sep), spec.origin
PY
    die_with_log "the environment does not work; make it anew with 'make distclean' and this again"
  has_fairseq || die_with_log "$fairseq_spec does not import; make the environment anew with 'make distclean' and this again"
  [[ -x $venv/bin/headgates ]] || die_with_log "the command headgates is missing from $venv/bin; run this again"
}

main() {
  local started=$SECONDS
  if is_ready; then
    check_python_agrees
    return
  fi

  # Two at once (make test and make demo) would install over each other. The lock is on this file and goes
  # with its processes, so nothing stale can remain; a system without flock does without.
  exec 9<recipes/setup.sh
  if command -v flock >/dev/null && ! flock -n 9; then
    say "setup: waiting for another set-up of this checkout to end"
    flock 9
    if is_ready; then return; fi
  fi

  if venv_is_whole; then
    check_python_agrees
    : >"$log" # of this run only: an old failure would only mislead
    step 1 "${venv#"$root"/} is there (Python $(version_of "$python"))"
  else
    make_venv
  fi
  rm -f "$stamp"
  drop_half_installed
  install_torch
  pin_torch
  install_fairseq
  install_headgates
  check_environment
  { fingerprint && printf 'torch: %s\n' "$torch_spec"; } >"$stamp.part"
  mv "$stamp.part" "$stamp"
  say "setup: ready after $((SECONDS - started)) s"
}

trap 'say "setup: interrupted; run it again and it goes on from here"; exit 130' INT TERM
main
