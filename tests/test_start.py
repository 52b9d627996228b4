"""What the command needs to start: time, and modules."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import USER_DIR
from support.recipes import RECIPES

from fairseq_headgates.heads import SCORE_FORMAT

BARE = ["-c", "pass"]
START = "import sys, headgates_start; sys.argv[1:] = {!r}; headgates_start.main()"
QUICK = {
    "help": ["--help"],
    "version": ["--version"],
    "path": ["path"],
    "no command": [],
    "a wrong command": ["nothing"],
    "a wrong option": ["score", "--nothing-like-it"],
    "help of a command": ["curve", "--help"],
}


def seconds(*arguments):
    """Return the processor time of a Python process, which other processes change less than the time that passes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, cwd=USER_DIR.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("arguments", QUICK.values(), ids=QUICK)
def test_what_needs_no_model_starts_in_five_times_the_time_of_python(arguments):
    """The best of several runs, one beside the other: other work on the machine slows both."""
    bare, ours = [], []
    for _ in range(8):
        bare.append(seconds(*BARE))
        ours.append(seconds("-c", START.format(arguments)))
        if len(ours) > 2 and min(ours) <= 5 * min(bare):
            return
    pytest.fail(f"{min(ours):.3f} s, python itself {min(bare):.3f} s")


def test_the_best_of_several_runs_finds_a_slow_start():
    assert seconds("-c", "import torch") > 5 * min(seconds(*BARE) for _ in range(2))


def test_correlate_needs_neither_torch_nor_fairseq(tmp_path):
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    common = {"format": SCORE_FORMAT, "method": "gate", "signature": "gate"}
    for number, file in enumerate(files):
        Path(file).write_text(json.dumps({**common, "scores": {"enc-self": [[1, number, 3]]}}))
    code = START.format(["correlate", *files, "--any"]) + "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=USER_DIR.parent, check=True)
    *table, modules = done.stdout.splitlines()
    assert "enc-self      3 " in table[-1]
    assert "scipy" in modules.split() and not {"torch", "fairseq", "matplotlib"} & set(modules.split())


def test_scripts_of_recipes_that_need_no_model_import_neither_torch_nor_fairseq():
    scripts = "corpora, plan, classifier_results, clean, curves, labelled, language_model_results, pareto, perplexity, "
    scripts += "results, significance, subtitles"
    code = f"import sys; sys.path[:0] = {[str(RECIPES), str(RECIPES / 'lib')]}; import {scripts}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "fairseq_headgates.files" in modules and not {"torch", "fairseq"} & modules
