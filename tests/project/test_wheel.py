"""The built packages: what they hold, and the wheel in an environment of its own, outside of the checkout."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.commands import GATED, USER_DIR, train_arguments
from support.recipes import ROOT, copy_checkout

from fairseq_headgates import __version__


def run(*command, folder):
    """Run a command in `folder`, with nothing of the checkout or of this process on the path; return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The source distribution, and the wheel that is built from it: as `make wheel`, on a copy of the checkout."""
    source, out = tmp_path_factory.mktemp("source") / "checkout", tmp_path_factory.mktemp("dist")
    copy_checkout(source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, folder=source)
    return out


@pytest.fixture(scope="module")
def wheel(packages):
    (wheel,) = packages.glob("*.whl")
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


@pytest.mark.rehearsal
def test_the_wheel_holds_the_whole_package(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in USER_DIR.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= held
    assert {"fairseq_headgates/py.typed", "headgates_start.py"} <= held
    assert not [name for name in held if name.startswith(("tests", "recipes", "docs", "benchmarks"))]


@pytest.mark.rehearsal
def test_the_source_distribution_holds_every_file_of_the_repository(packages):
    """Every file of the repository except those of its host."""
    (path,) = packages.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not in a clone")
    assert {name for name in listed.stdout.splitlines() if not name.startswith(".ci/")} - held == set()
    assert not [name for name in held if name.endswith((".pyc", ".pt")) and not name.startswith("tests/fixtures/")]


@pytest.mark.rehearsal
def test_the_packages_can_be_uploaded(packages):
    files = sorted(packages.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files, folder=packages)
    assert [name for name in files if f"-{__version__}" not in name.name] == []


def test_the_citation_is_of_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {__version__}" in lines and "cff-version: 1.2.0" in lines
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()[2].startswith(f"## {__version__}")


def fairseq(environment, program, *arguments):
    """Run a program of fairseq by the new interpreter; return its output and the file of the plugin that it loaded."""
    start = f"import sys; from fairseq_cli.{program} import cli_main; cli_main()"
    modules = "; print('plugin:', sys.modules['fairseq_headgates'].__file__)"
    out = run(environment / "bin" / "python", "-c", start + modules, *arguments, folder=environment)
    (plugin,) = (line for line in out.splitlines() if line.startswith("plugin:"))
    return out, Path(plugin.split(": ")[1])


@pytest.mark.release
def test_quick_start_with_the_wheel(environment, checkpoints, toy, tmp_path):
    """The three steps of "Your own checkpoint" in the README."""
    headgates = environment / "bin" / "headgates"
    assert run(headgates, "--version", folder=environment).split()[0] == "headgates"
    path = Path(run(headgates, "path", folder=environment).strip())
    assert path.is_relative_to(environment.resolve()) and (path / "__init__.py").exists()

    start = ["--finetune-from-model", checkpoints["baseline"], *GATED, "--user-dir", path]
    _, plugin = fairseq(environment, "train", *train_arguments(toy, tmp_path / "gated", *start))
    assert plugin == path / "__init__.py"
    gated = tmp_path / "gated" / "checkpoint_last.pt"
    pruned = tmp_path / "pruned.pt"
    run(
        headgates,
        "prune",
        "--path",
        gated,
        "--out",
        pruned,
        "--alive",
        '{"enc-self": [[1, 0, 1, 1], [1, 1, 1, 0]]}',
        folder=environment,
    )
    assert "in total 22 of 24 heads open" in run(headgates, "show", "--path", pruned, folder=environment)
    options = ["--user-dir", path, "--path", pruned, "--gen-subset", "test", "--cpu", "--num-workers", "0"]
    out, plugin = fairseq(environment, "generate", toy.data, *options, "--required-batch-size-multiple", "1")
    assert sum(line.startswith("H-") for line in out.splitlines()) == 10
    assert plugin == path / "__init__.py"
