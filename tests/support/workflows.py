"""Ways to run recipes, with Snakemake, in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("snakemake", reason="recipes need Snakemake, which needs Python 3.11")

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def snakemake(folder, family, configuration, *arguments, background=False, path=""):
    """Run a workflow in a folder, with a configuration: the path of a file, or its content."""
    if isinstance(configuration, dict):
        content, configuration = configuration, folder / "config.yaml"
        configuration.write_text(yaml.safe_dump(content))
    program = [sys.executable, "-m", "snakemake", "-s", RECIPES / "workflow" / f"{family}.smk"]
    command = [*program, "--configfile", configuration, "-c", "2", *arguments]
    env = os.environ | {"PATH": f"{path}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    if background:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(list(map(str, command)), cwd=folder, env=env, start_new_session=True, **quiet)
    return subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, check=False)


def commands_of(result):
    """Return the shell commands of a dry run, sorted: Snakemake prints them in no fixed order."""
    assert result.returncode == 0, result.stdout + result.stderr
    scripts = os.path.relpath(RECIPES / "scripts", result.args[result.args.index("--directory") + 1])
    found = [line.removeprefix("Shell command: ") for line in result.stderr.splitlines() if line.startswith("Shell")]
    return sorted({line.replace(scripts, "recipes/scripts") for line in found if line != "None"})
