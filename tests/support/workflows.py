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
# The workflow of each configuration.
FAMILIES = {
    **dict.fromkeys(("small", "wmt_en_ru", "opensubtitles_en_ru", "iwslt14_de_en"), "translation"),
    **dict.fromkeys(("language_model", "all_attention", "wikitext103"), "language_model"),
    **dict.fromkeys(("classification", "mnli"), "classification"),
}


def configuration(name):
    """Return the content of a configuration of recipes/config."""
    return yaml.safe_load((RECIPES / "config" / f"{name}.yaml").read_text())


def snakemake(folder, family, config, *arguments, first_on_path="", code=0):
    """Run a workflow in a folder, with the content of its configuration, and return what it printed.

    `first_on_path` is a folder of programs that come before the installed ones.
    """
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    program = [sys.executable, "-m", "snakemake", "-s", str(RECIPES / "workflow" / f"{family}.smk")]
    command = [*program, "--configfile", "config.yaml", "-c", "2", *map(str, arguments)]
    path = os.pathsep.join([str(first_on_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr
