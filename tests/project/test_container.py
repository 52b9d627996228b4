"""The container: its file is linted, and its steps are run in a folder of their own, without a container engine."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.recipes import ROOT, copy_checkout

# What the steps of the system do is left to an engine: packages, users.
SYSTEM = re.compile(r"apt-get|useradd")


def instructions():
    """[(instruction, its arguments)] of the Dockerfile, with continued lines joined."""
    text = "".join(line for line in (ROOT / "Dockerfile").open() if not line.startswith("#"))
    return [tuple(line.split(None, 1)) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_the_dockerfile_passes_hadolint():
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint has no package for this machine")
    done = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout, done.stdout


def test_the_image_holds_no_ignored_files(tmp_path):
    copy_checkout(tmp_path / "context")
    found = {str(path.relative_to(tmp_path / "context")) for path in (tmp_path / "context").rglob("*")}
    assert {"setup.py", "recipes/demo.sh", "fairseq_headgates/__init__.py", "docs/install.md"} <= found
    patterns = (ROOT / ".gitignore").read_text().splitlines()
    for pattern in (line.strip("/") for line in patterns if line and line[0] != "#"):
        assert not [name for name in found if fnmatch(name, pattern) or fnmatch(Path(name).name, pattern)], pattern


@pytest.mark.release
def test_the_build_steps_of_the_dockerfile_succeed(tmp_path):
    """In a folder instead of /opt/fairseq-headgates, with this interpreter as that of the base image."""
    root = tmp_path / "opt" / "fairseq-headgates"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": os.path.realpath(sys.executable)}
    environment |= {name: os.environ[name] for name in ("PIP_INDEX_URL", "PIP_CACHE_DIR") if name in os.environ}
    environment.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))

    def run(command):
        done = subprocess.run(["bash", "-c", command], cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    for name, value in instructions():
        value = value.replace("/opt/fairseq-headgates", str(root))
        if name == "COPY" and not value.startswith("--from"):
            assert value == ". ."
            copy_checkout(root)
        elif name == "RUN" and not SYSTEM.search(value):
            run(value)
        elif name == "ENV":
            for setting in shlex.split(value):
                key, _, text = setting.partition("=")
                environment[key] = text.replace("${PATH}", environment["PATH"])
    assert run("headgates path").strip() == str(root / "fairseq_headgates")
    assert "make demo" in run("make help")
    assert run("make setup") == ""  # it is complete: a container needs no network
    run("python -c 'import sacremoses, subword_nmt, matplotlib, ctranslate2, fairseq.libbleu'")
    installed = run("python -m pip list --format freeze")
    assert "pytest" not in installed and "sphinx" not in installed
