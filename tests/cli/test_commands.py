"""The `headgates` command as a user runs it: path, show, wrong command lines, signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.commands import TYPES, USER_DIR, run_program
from support.training import assert_one_line_error

from fairseq_headgates import gate_values
from fairseq_headgates.cli.command import Options, command
from fairseq_headgates.cli.main import find_commands
from fairseq_headgates.cli.options import Data
from fairseq_headgates.cli.output import then_evaluate
from fairseq_headgates.plugin.options.declared import DEFAULTS


def test_path_prints_the_user_dir(tmp_path):
    assert Path(run_program(tmp_path, "headgates", "path").out.rstrip("\n")) == USER_DIR.resolve()


def test_options_has_those_of_the_model_and_the_criterion(run):
    text = run("headgates", "options").out
    assert all(f"  --{name.replace('_', '-')}" in text for name in (*DEFAULTS, "l0_weight", "l0_warmup_updates"))
    assert "--encoder-layers" not in text and "--label-smoothing" not in text  # fairseq's


def test_show_prints_a_table_of_every_type(gated_checkpoint, run):
    lines = run("headgates", "show", "--path", gated_checkpoint).out.splitlines()
    for attention_type in TYPES.split(","):
        (title,) = (i for i, line in enumerate(lines) if line.startswith(attention_type))
        assert lines[title].endswith("8 of 8 heads open")
        assert [line.split()[:2] for line in lines[title + 3 : title + 5]] == [["layer", "0"], ["layer", "1"]]
    assert lines[-1] == "in total 24 of 24 heads open"


def test_show_json_holds_the_gates_of_the_model(checkpoints, run):
    shown = json.loads(run("headgates", "show", "--path", checkpoints["mixed"], "--json").out)
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoints["mixed"])])
    assert shown["gated"] == ["dec-self", "dec-enc"]
    assert shown["heads"] == {"enc-self": [3, 8], "dec-self": [8, 8], "dec-enc": [8, 8], "total": [19, 24]}
    for attention_type, values in gate_values(model).items():
        torch.testing.assert_close(torch.tensor(shown["gate"][attention_type]).float(), values, atol=1e-6, rtol=0)


def test_show_prints_the_mask_alone(gated_checkpoint, tmp_path, run):
    printed = run("headgates", "show", "--path", gated_checkpoint, "--out", "-").out
    done = run("headgates", "show", "--path", gated_checkpoint, "--out", tmp_path / "heads.json")
    assert printed == (tmp_path / "heads.json").read_text() and done.err == f"written: {tmp_path / 'heads.json'}\n"
    both = run("headgates", "show", "--path", gated_checkpoint, "--out", "-", "--json", code=2)
    assert_one_line_error(both, ["--json", "--out -"])


def test_the_command_that_comes_next_has_the_options_of_this_one():
    words = ["my data", "--path=a.pt", "--beam", "4", "--gen-subset", "valid", "--cpu"]
    options = Data(rest=words, arch="transformer", trust=True)
    begin = "headgates evaluate 'my data' --beam 4 --cpu"
    assert then_evaluate(options, "a.pt", "b.pt") == f"{begin} --arch transformer --trust --path a.pt:b.pt"


def test_without_arguments_the_help_is_printed(run):
    assert run("headgates") == run("headgates", "--help")


def test_the_help_lists_the_main_commands_first_each_in_a_line(headgates):
    found = re.fullmatch(
        r"usage: .+\n\n.+\n\ncommands:\n(.+)\n\nalso:\n(.+)\n\noptions:\n.+", headgates("--help"), re.DOTALL
    )
    first, others = ([line.split()[0] for line in lines.splitlines()] for lines in found.groups())
    assert " ".join(first) == "compress evaluate prune score curve explain convert"
    assert others == sorted(set(find_commands()) - set(first))
    assert max(map(len, headgates("--help").splitlines())) < 80


START = (
    f"import sys; sys.argv[1:] = ['show', '--path', {__file__!r}]; import headgates_start; "
    "print('begins', flush=True); headgates_start.main()"
)


def test_ctrl_c_while_the_command_starts():
    """Importing fairseq and torch takes seconds."""
    environment = {**os.environ, "PYTHONPATH": str(USER_DIR.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "headgates: stopped\n")


def test_missing_checkpoint(either):
    assert_one_line_error(either("headgates", "show", "--path", "no.pt", code=None), ["'no.pt'", "No such file"])


def test_two_commands_cannot_have_one_name():
    with pytest.raises(ValueError, match="two commands are called show: .*cli.commands.show, "):
        command("show")(type("Other", (Options,), {}))
    assert find_commands()["show"].__name__ == "Show"
