"""Ways to run recipes, with Snakemake, in tests."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile

import pytest
import yaml

from support.commands import Finished

pytest.importorskip("snakemake", reason="recipes need Snakemake, which needs Python 3.11")

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
# The workflow of each configuration.
FAMILIES = {
    **dict.fromkeys(("small", "multi30k", "after_compression"), "translation"),
    **dict.fromkeys(("wmt_en_ru", "opensubtitles_en_ru", "iwslt14_de_en"), "translation"),
    **dict.fromkeys(("language_model", "all_attention", "wikitext103"), "language_model"),
    **dict.fromkeys(("classification", "mnli"), "classification"),
    "prune_pretrained": "pretrained",
}


def configuration(name):
    """Return the content of a configuration of recipes/config."""
    return yaml.safe_load((RECIPES / "config" / f"{name}.yaml").read_text())


def snakemake(folder, family, config, *arguments, first_on_path="", code=0):
    """Run a workflow in a folder, with the content of its configuration, and return what it printed.

    `first_on_path` is a folder of programs that come before the installed ones.
    """
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    words = ["-s", RECIPES / "workflow" / f"{family}.smk", "--configfile", "config.yaml", "-c", 2, *arguments]
    return run_snakemake(folder, *words, first_on_path=first_on_path).expect(code).text


def run_snakemake(folder, *words, first_on_path=""):
    """Run Snakemake in a folder, in a child of this process, which has imported it."""
    from snakemake.cli import main

    path = os.pathsep.join([str(first_on_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            try:
                _run_child(main, folder, list(map(str, words)), path, out, err)
            finally:
                os._exit(70)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for stream in (out, err):
            stream.seek(0)
        return Finished(code, out.read(), err.read())


def _run_child(main, folder, words, path, *streams):
    shell = importlib.import_module("snakemake.shell")  # the name is that of a class, too

    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    shell.STDOUT = None  # that of its import
    os.chdir(folder)
    os.environ["PATH"] = path
    for descriptor, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    try:
        main(words)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if isinstance(error.code, str) else error.code or 0)
