#!/usr/bin/env bash
# Make the environment of the tests and the recipes: .venv with torch, fairseq and this package. On Python 3.10 fairseq is
# fairseq 0.12.2, on later versions its fork fairseq-fixed.
#
# `make test` and `make demo` run it. It takes no arguments, and exits at once if the environment is complete. After an
# interruption it resumes: every step first checks whether its work is done.
#
#   PYTHON=python3.12          the interpreter of a new environment (3.10 to 3.13; default: 3.12, 3.11, or python3)
#   VENV=.venv-3.12            the folder of the environment (default: .venv in the checkout)
#   TORCH_SPEC='torch==2.5.1'  the requirement for pip instead of the torch chosen below
#   EXTRAS=fairseq,recipes     the extras of setup.py to install (default: fairseq,recipes,plots,dev)
set -euo pipefail
case $* in
  '') ;;
  --help | -h) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;;
  *) echo "setup: got the arguments '$*', takes none" >&2; exit 2 ;;
esac
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$(pwd -P)
venv=${VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
python=$venv/bin/python
log=$venv/setup.log
stamp=$venv/.headgates-ready # written last: what the environment was made from
begun=$venv/.headgates-setup # written first: the folder belongs to this script
torch_spec=${TORCH_SPEC:-}
extras=${EXTRAS:-fairseq,recipes,plots,dev}
torch_cpu_index=https://download.pytorch.org/whl/cpu
# The environment is self-contained.
unset PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# Most modules are never imported: pip does not compile them in advance. Of its options with "no", no switches them on.
export PIP_NO_COMPILE=no

say() { echo "$*" >&2; }
step() { say "[$1/5] ${*:2}"; }
die() { say "setup: $*"; exit 1; }
pip() { "$python" -m pip "$@" >>"$log" 2>&1; }
check() { "$python" recipes/scripts/environment.py "$@" >>"$log" 2>&1; }
die_with_log() {
  { grep -v '^WARNING: ' "$log" | tail -n 12 | cut -c 1-240 >&2; } || true
  die "$* (see above; log: $log)."
}

# A moved environment has the old path in its commands.
fingerprint() { { cat setup.py recipes/scripts/setup.sh && printf '%s\n' "$venv"; } | cksum; }
# has_extras INSTALLED: true if all of `extras` are in a list that is installed.
has_extras() {
  local extra
  for extra in ${extras//,/ }; do [[ ,$1, == *,$extra,* ]] || return 1; done
}
is_ready() {
  [[ -f $stamp && -x $python && $(head -n 1 "$stamp") == "$(fingerprint)" ]] || return 1
  has_extras "$(sed -n 's/^extras: //p' "$stamp")" || return 1
  [[ -z $torch_spec ]] || grep -qxF "torch: $torch_spec" "$stamp"
}
# pip is installed last, and starts the interpreter of this folder unless the folder was moved or copied.
venv_is_whole() { [[ -x $python && -f $venv/bin/pip ]] && head -n 2 "$venv/bin/pip" | grep -qF "$venv/bin/python"; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Set base_python and base_version.
find_python() {
  local candidates=(python3.12 python3.11 python3) tried='' name
  [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
  for base_python in "${candidates[@]}"; do
    name=${PYTHON:+PYTHON=}$base_python
    if base_version=$(version_of "$base_python"); then
      [[ $base_version != 3.1[0123] ]] || return 0
      tried+=", $name is $base_version"
    elif command -v "$base_python" >/dev/null; then # for example a version manager's shim
      tried+=", $name does not run"
    else
      tried+=", $name is missing"
    fi
  done
  die "no Python 3.10, 3.11, 3.12 or 3.13 (${tried#, }): install one (Debian, Ubuntu: apt-get install python3.12-venv, or python3.11-venv python3.11-dev; conda: conda create -n py312 python=3.12), or name one: PYTHON=/path/to/python3.12 make test."
}

# PYTHON must agree with an existing environment.
check_python_agrees() {
  local existing
  [[ -n ${PYTHON:-} ]] || return 0
  find_python
  existing=$(version_of "$python")
  [[ $base_version == "$existing" ]] ||
    die "PYTHON=$PYTHON is Python $base_version, but $venv holds Python $existing: keep both with VENV=.venv-$base_version, or remove it first with 'make distclean'."
}

# choose_fairseq VERSION: set the requirements for this version of Python.
choose_fairseq() {
  local package=fairseq-fixed
  numpy_spec="numpy<2" # fairseq uses numpy.compat, among others to read text by sentence
  case $1 in
    3.10) package=fairseq numpy_spec="numpy<1.24" torch_version=2.11.0 ;; # fairseq 0.12.2 uses numpy.float
    3.11) torch_version=2.13.0 ;;
    3.13) numpy_spec=numpy torch_version=2.11.0 ;; # which has no package of an older numpy
    *) torch_version=2.11.0 ;;
  esac
  # Of the extra [fairseq].
  fairseq_spec=$(sed -n "s/.*\"\($package==[0-9.]*\)[^0-9.].*/\1/p" setup.py)
}

# fairseq-fixed has a wheel for one platform only.
fairseq_is_compiled() { ! [[ $1 == 3.12 && $(uname -sm) == "Linux x86_64" ]]; }

# need_compiler PYTHON: check the compilers that building fairseq calls, and Python's headers.
need_compiler() {
  local version reason compiler command include
  version=$(version_of "$1")
  fairseq_is_compiled "$version" || return 0
  choose_fairseq "$version"
  reason="${fairseq_spec%==*} has no wheel for Python $version on $(uname -sm) and is compiled"
  for compiler in "${CC:-$("$1" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}" "${CXX:-c++}"; do
    read -r -a command <<<"$compiler"
    "${command[@]}" -x c++ -fsyntax-only - <<<'int main() { return 0; }' >/dev/null 2>&1 ||
      die "no C++ compiler, '$compiler' does not compile C++; $reason: install one (Debian, Ubuntu: apt-get install g++), name it in CC and CXX, or use Python 3.12 on Linux x86_64."
  done
  include=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  "${command[@]}" -x c++ -fsyntax-only -I "$include" - <<<'#include <Python.h>' >/dev/null 2>&1 ||
    die "no Python headers, $include/Python.h cannot be used; $reason: install them (Debian, Ubuntu: apt-get install python$version-dev)."
}

make_venv() {
  local shared free_kb
  find_python
  "$base_python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$base_python (Python $base_version) cannot make virtual environments, the modules venv and ensurepip are missing: install them (Debian, Ubuntu: apt-get install python$base_version-venv)."
  need_compiler "$base_python"
  free_kb=$(df -Pk "$(dirname "$venv")" 2>/dev/null | awk 'NR == 2 { print $4 }') || true
  [[ ! $free_kb =~ ^[0-9]+$ ]] || ((free_kb >= 4 * 1024 * 1024)) ||
    die "$((free_kb / 1024)) MB free on the disk of $venv; the environment needs 4 GB: free some, or choose another disk with VENV=/path."
  if [[ -e $venv ]]; then
    [[ -f $venv/pyvenv.cfg || -f $begun || -z $(ls -A "$venv") ]] ||
      die "VENV=$venv is a folder that holds something other than a virtual environment: name another, or an empty one."
    rm -rf "$venv" # incomplete, or made in another place
  fi
  mkdir -p "$venv" && touch "$begun"
  # A torch that the interpreter has, for example in a vendor's container, may be the only one that fits the driver.
  shared=$([[ -n $torch_spec ]] || "$base_python" -s recipes/scripts/environment.py shared-torch 2>/dev/null || true)
  step 1 "making ${venv#"$root"/} with $base_python (Python $base_version)${shared:+, with its torch $shared}"
  "$base_python" -m venv ${shared:+--system-site-packages} "$venv" >>"$log" 2>&1 && venv_is_whole ||
    die_with_log "$base_python -m venv failed; use another interpreter: PYTHON=/path/to/python3.12"
}

install_torch() {
  local words
  if [[ -n $torch_spec ]]; then
    step 2 "installing $torch_spec (TORCH_SPEC)"
    read -r -a words <<<"$torch_spec" # it may contain options of pip
    pip install "${words[@]}" "$numpy_spec" && check torch && return
    die_with_log "TORCH_SPEC='$torch_spec' cannot be installed, or gives no torch >= 2.4 that works with its numpy; it must be an argument of pip install, such as 'torch==2.13.0'"
  fi
  ! check torch || { step 2 "torch is installed"; return; }
  step 2 "installing torch $torch_version" # with which this project is tested
  if [[ $(uname -s) == Linux ]] && ! nvidia-smi -L >/dev/null 2>&1; then
    # The CPU build is gigabytes smaller. PyTorch's index is asked without retries first: if it is unreachable, pip
    # would retry for minutes.
    pip install "torch==$torch_version+cpu" "$numpy_spec" && return
    "$python" -m pip index versions torch --index-url "$torch_cpu_index" --retries 0 --timeout 10 2>>"$log" | grep -qF "$torch_version+cpu" &&
      pip install "torch==$torch_version+cpu" "$numpy_spec" --extra-index-url "$torch_cpu_index" && return
    say "      no CPU build of torch $torch_version found ($torch_cpu_index); installing the build with CUDA, some GB"
  fi
  pip install "torch==$torch_version" "$numpy_spec" || die_with_log "torch $torch_version cannot be installed; check the network, or name another: TORCH_SPEC='torch==2.11.0' make test"
}

install_fairseq() {
  ! check fairseq "$fairseq_spec" || { step 3 "$fairseq_spec is installed"; return; }
  need_compiler "$python"
  step 3 "installing $fairseq_spec$(! fairseq_is_compiled "$(version_of "$python")" || echo " (compiled: some minutes)")"
  pip install -c "$venv/constraints.txt" "setuptools>=64" wheel cython ||
    die_with_log "setuptools, wheel and cython cannot be installed; check the network and run this again"
  pip uninstall -y fairseq fairseq-fixed # both use the folder fairseq/
  # Build isolation would download a second torch for fairseq-fixed; fairseq 0.12.2 must not see torch, because it then
  # builds extensions whose sources PyPI's package lacks.
  local isolation=--no-build-isolation
  [[ $fairseq_spec != fairseq==* ]] || isolation=
  # Its extensions are compiled side by side, without debugging information, and those with torch's headers, which only
  # edit distances and monotonic attention use, without optimisation. That takes less than half of the time. Not with
  # ninja: torch would write one build.ninja for all of them.
  local build=$venv/build
  rm -rf "$build" && mkdir -p "$build"
  printf '[build_ext]\nparallel = %s\n' "$(nproc)" >"$build/parallel.cfg"
  printf '#!/bin/sh\nexit 1\n' >"$build/ninja"
  chmod +x "$build/ninja"
  # The tools are installed meanwhile. If that fails, the next step tries again.
  local tools
  (log=$venv/tools.log && [[ $extras == fairseq,* ]] && install_checkout "${extras#fairseq,}") & tools=$!
  PATH=$build:$PATH DIST_EXTRA_CONFIG=$build/parallel.cfg CFLAGS="-O0 -g0 ${CFLAGS:-}" CXXFLAGS="-O0 -g0 ${CXXFLAGS:-}" \
    pip wheel $isolation --no-deps -c "$venv/constraints.txt" -w "$build" "$fairseq_spec" &&
    { ! wait "$tools" || tools_installed=1; } &&
    pip install $isolation -c "$venv/constraints.txt" "$build"/fairseq*.whl ||
    die_with_log "$fairseq_spec cannot be installed; check the network and the compiler, and run this again"
}

# install_checkout EXTRAS
install_checkout() {
  pip install --no-build-isolation -c "$venv/constraints.txt" -e ".[$1]"
}

started=$SECONDS
trap 'say "setup: interrupted; run it again to resume"; exit 130' INT TERM
# Two at once would install over each other. The lock is on this file.
exec 9<recipes/scripts/setup.sh
! command -v flock >/dev/null || flock -n 9 || { say "setup: waiting for another set-up of this checkout" && flock 9; }
if is_ready; then check_python_agrees; exit; fi
if venv_is_whole; then
  check_python_agrees
  : >"$log"
  step 1 "${venv#"$root"/} exists (Python $(version_of "$python"))"
else
  make_venv
fi
choose_fairseq "$(version_of "$python")"
rm -f "$stamp"
for info in "$venv"/lib/python3.*/site-packages/*.dist-info; do
  [[ ! -d $info || -e $info/INSTALLER ]] || rm -rf "$info" # pip was interrupted: it writes INSTALLER last
done
install_torch
# Later versions of pip refuse the requirements of fairseq 0.12.2.
[[ $fairseq_spec != fairseq==* ]] || pip install "pip<24.1" "$numpy_spec" ||
  die_with_log "pip<24.1 cannot be installed; check the network and run this again"
# From here on pip must not change torch and its numpy.
"$python" recipes/scripts/environment.py pins >"$venv/constraints.txt" 2>>"$log" || die_with_log "torch or numpy is incomplete; run 'make distclean' and this again"
# Resolving the requirements of the tools takes the pip of Python 3.11 twice as long.
[[ $fairseq_spec == fairseq==* ]] || pip install -c "$venv/constraints.txt" --upgrade pip || true
tools_installed=
install_fairseq
step 4 "installing this checkout (editable) and its tools"
[[ -n $tools_installed ]] || install_checkout "$extras" ||
  die_with_log "the packages in setup.py cannot be installed; check the network and run this again"
step 5 "checking" # not the project itself, whose errors the tests show
check tools "$root" "$extras" && check fairseq "$fairseq_spec" && [[ -x $venv/bin/headgates ]] ||
  die_with_log "the environment does not work; run 'make distclean' and this again"
{ fingerprint && printf 'torch: %s\nextras: %s\n' "$torch_spec" "$extras"; } >"$stamp.part"
mv "$stamp.part" "$stamp"
say "setup: ready after $((SECONDS - started)) s"
