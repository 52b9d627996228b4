"""The built wheel, installed in an environment of its own, outside of the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from support.commands import USER_DIR

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.rehearsal


def run(*command, folder):
    """Run a command in `folder`, with nothing of the checkout or of this process on the path; return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the files that a wheel is made from: building writes beside them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("setup.py", "pyproject.toml", "headgates_start.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(USER_DIR, source / "fairseq_headgates", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, folder=source)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new environment with the wheel. It also finds the packages of the running one, except an editable install."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q"]
    run(*pip, "--disable-pip-version-check", wheel, folder=folder)
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    # A line of a .pth file appends a folder to the path, and leaves the .pth files in that folder alone.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *map(str, _system_packages())}
    (own / "others.pth").write_text("".join(f"{place}\n" for place in sorted(places)))
    return folder


def _system_packages():
    """Folders of packages on the path of this process, such as those of the system that the environment shares."""
    return [path for path in map(Path, sys.path) if path.name in ("site-packages", "dist-packages")]


def test_the_wheel_holds_the_whole_package(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in USER_DIR.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= held
    assert {"fairseq_headgates/py.typed", "headgates_start.py"} <= held
    assert not [name for name in held if name.startswith(("tests", "recipes", "docs", "benchmarks"))]


def test_commands_of_the_wheel(environment, gated_checkpoint, toy):
    headgates = environment / "bin" / "headgates"
    assert run(headgates, "--version", folder=environment).split()[0] == "headgates"
    path = Path(run(headgates, "path", folder=environment).strip())
    assert path.is_relative_to(environment.resolve()) and (path / "__init__.py").exists()
    assert "in total 24 of 24 heads open" in run(headgates, "show", gated_checkpoint, folder=environment)
    # fairseq's program is that of the running environment, started by the new interpreter.
    start = "import sys; from fairseq_cli.generate import cli_main; cli_main()"
    modules = "; print('plugin:', sys.modules['fairseq_headgates'].__file__)"
    options = ["--user-dir", path, "--path", gated_checkpoint, "--gen-subset", "test", "--cpu", "--num-workers", "0"]
    command = [environment / "bin" / "python", "-c", start + modules, toy.data, *options]
    generated = run(*command, "--required-batch-size-multiple", "1", folder=environment)
    assert sum(line.startswith("H-") for line in generated.splitlines()) == 10
    (plugin,) = (line for line in generated.splitlines() if line.startswith("plugin:"))
    assert plugin == f"plugin: {path / '__init__.py'}"
