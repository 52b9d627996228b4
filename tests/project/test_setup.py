"""The set-up script on machines that lack something: one line that gives the value, the rule and a hint.

Each test runs a copy of the script with a PATH that holds only the tools it uses and stubs of what it looks
for, so nothing is installed and no network is needed.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "awk bash cat chmod cksum cp cut df dirname env flock grep head ls mkdir mv rm sed sh tail touch uname".split()

# Answers what the script asks of an interpreter: its version, its compiler.
PYTHON_STUB = """#!/bin/sh
case "$2" in
  *version_info*) echo $VERSION ;;
  *get_config_var*) echo stub-cc ;;
esac
"""
# An interpreter that makes environments with a copy of itself. Its pip only writes what it was asked for to pip.log; a
# package can be imported once pip was asked for it. pip fails for $BROKEN.
WORKING_PYTHON = """#!/bin/sh
log=$HOME/pip.log
touch $log
for last; do :; done
case "$*" in
  *version_info*) echo 3.12 ;;
  "-m venv "*) mkdir -p "$last/bin" && cp "$0" "$last/bin/python" && echo "#!$last/bin/python3" >"$last/bin/pip" ;;
  "-m pip index "*) exit 1 ;;
  "-m pip uninstall "*) ;;
  "-m pip "*) case "$*" in *"${BROKEN:-nothing}"*) echo "ERROR: no $BROKEN"; exit 1 ;; esac
    echo "$@" >>$log
    case "$last" in ".["*) echo >"${0%/*}/headgates" && chmod +x "${0%/*}/headgates" ;; esac ;;
  *"environment.py shared-torch") ;;
  *"environment.py torch") grep -q torch== $log ;;
  *"environment.py fairseq "*) grep -q "$last" $log ;;
esac
"""


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path):
    """A checkout in `main`, and a folder `bin` that is all of its PATH."""
    for name in ("setup.py", "recipes/scripts/setup.sh"):
        (tmp_path / "main" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "main" / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def set_up(machine, **environment):
    return subprocess.run(
        [machine / "main/recipes/scripts/setup.sh"],
        env={"PATH": str(machine / "bin"), "HOME": str(machine), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def refusal(machine, **environment):
    """What the script says when it refuses: its only line."""
    run = set_up(machine, **environment)
    lines = run.stderr.splitlines()
    assert run.returncode == 1, run.stderr
    assert len(lines) == 1 and lines[0].startswith("setup: "), run.stderr
    assert run.stdout == ""
    return lines[0]


def test_no_python_says_what_was_tried(machine):
    put(machine / "bin/python3.12", "#!/bin/sh\necho 'not found' >&2\nexit 127\n")  # a version manager's shim
    put(machine / "bin/python3", PYTHON_STUB)
    line = refusal(machine, VERSION="3.14")
    assert "(python3.12 does not run, python3.11 is missing, python3 is 3.14)" in line


def test_no_compiler(machine):
    put(machine / "bin/python3.11", PYTHON_STUB)
    line = refusal(machine, VERSION="3.11")
    assert "'stub-cc' does not compile C++" in line and "apt-get install g++" in line


@pytest.fixture
def working(machine):
    """A machine on which everything works; `working()` is all that pip was asked for."""
    put(machine / "bin/python3.12", WORKING_PYTHON)
    for compiler in ("stub-cc", "c++"):
        put(machine / "bin" / compiler, "#!/bin/sh\n")
    (machine / "bin/df").unlink()  # the disk of this machine is no matter here
    return lambda: (machine / "pip.log").read_text().splitlines()


@pytest.mark.usefixtures("working")
def test_a_folder_that_is_not_a_virtual_environment_is_refused(machine):
    thesis = put(machine / "work/thesis.tex", "all of it")
    line = refusal(machine, VENV=str(machine / "work"))
    assert "something other than a virtual environment" in line and thesis.read_text() == "all of it"


def test_a_second_set_up_installs_nothing(machine, working):
    run = set_up(machine)
    assert run.returncode == 0, run.stderr
    steps = [line.split()[0] for line in run.stderr.splitlines() if line.startswith("[")]
    assert steps == ["[1/5]", "[2/5]", "[3/5]", "[4/5]", "[5/5]"]
    asked = working()
    assert any("torch==2.11.0" in line for line in asked) and any("-e .[recipes,plots,dev]" in line for line in asked)
    assert all("-c " in line for line in asked[1:])  # torch and numpy are pinned
    again = set_up(machine)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "") and working() == asked


def test_a_failed_set_up_resumes_at_the_failed_step(machine, working):
    run = set_up(machine, BROKEN="fairseq-fixed==")
    assert run.returncode == 1 and run.stderr.splitlines()[-1].startswith("setup: fairseq-fixed==")
    assert "ERROR: no fairseq-fixed==" in run.stderr and "setup.log" in run.stderr
    asked = working()
    run = set_up(machine)
    assert run.returncode == 0 and ".venv exists" in run.stderr and "torch is installed" in run.stderr
    assert not any("torch==" in line for line in working()[len(asked) :])
    (machine / "main/setup.py").write_text((machine / "main/setup.py").read_text() + "\n")  # another project
    assert "[5/5]" in set_up(machine).stderr


@pytest.mark.parametrize(
    ("version", "torch", "fairseq"),
    [
        ("3.10", "2.11.0", "fairseq==0.12.2"),
        ("3.11", "2.13.0", "fairseq-fixed==0.12.3.1"),
        ("3.13", "2.11.0", "fairseq-fixed==0.12.3.1"),
    ],
)
def test_each_python_version_gets_its_fairseq_version(version, torch, fairseq, machine, working):
    put(machine / "bin" / f"python{version}", WORKING_PYTHON.replace("3.12", version))
    run = set_up(machine, PYTHON=f"python{version}", CC="true", CXX="true")
    assert run.returncode == 0, run.stderr
    asked = "\n".join(working())
    assert f"torch=={torch}" in asked and f"{fairseq}\n" in asked
    old = fairseq == "fairseq==0.12.2"
    assert ("pip<24.1" in asked, "numpy<1.24" in asked) == (old, old)
    # If it saw torch, the build of 0.12.2 would fail: sources of its extensions with torch are missing.
    assert all(("--no-build-isolation" in line) != old for line in working() if line.endswith(fairseq))
    assert set_up(machine, PYTHON=f"python{version}", CC="true", CXX="true").stderr == ""
