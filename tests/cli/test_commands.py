"""The `headgates` command as a user runs it: path, show, wrong command lines, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.commands import GATED, TYPES, USER_DIR, logged, run_program
from support.training import assert_one_line_error, read

from fairseq_headgates import gate_values
from fairseq_headgates.cli.main import main
from fairseq_headgates.plugin.options.declared import DEFAULTS

# Of torch's data loader, about machines without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")


# The `headgates` command


def test_path_prints_the_user_dir(tmp_path):
    assert Path(run_program(tmp_path, "headgates", "path").out.rstrip("\n")) == USER_DIR.resolve()


def test_options_has_those_of_the_model_and_the_criterion(run):
    text = run("headgates", "options").out
    for name in (*DEFAULTS, "l0_weight", "l0_reduction", "l0_warmup_updates", "l0_start_update"):
        assert f"  --{name.replace('_', '-')}" in text
    assert "--encoder-layers" not in text and "--label-smoothing" not in text  # fairseq's


def test_show_prints_a_table_of_every_type(gated_checkpoint, run):
    lines = run("headgates", "show", gated_checkpoint).out.splitlines()
    for attention_type in TYPES.split(","):
        (title,) = (i for i, line in enumerate(lines) if line.startswith(attention_type))
        assert lines[title].endswith("8 of 8 heads open")
        assert [line.split()[:2] for line in lines[title + 3 : title + 5]] == [["layer", "0"], ["layer", "1"]]
    assert lines[-1] == "in total 24 of 24 heads open"


def test_show_json_holds_the_gates_of_the_model(checkpoints, run):
    shown = json.loads(run("headgates", "show", checkpoints["mixed"], "--json").out)
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoints["mixed"])])
    assert shown["gated"] == ["dec-self", "dec-enc"]
    assert shown["heads"] == {"enc-self": [3, 8], "dec-self": [8, 8], "dec-enc": [8, 8], "total": [19, 24]}
    for attention_type, values in gate_values(model).items():
        torch.testing.assert_close(torch.tensor(shown["gate"][attention_type]).float(), values, atol=1e-6, rtol=0)


def test_heads_from_show_are_accepted_by_alive_heads(stock_checkpoint, tmp_path, train, run):
    options = ["--gate-heads", "dec-enc", "--gate-init=-3", "--dropout", 0]
    closed = train(tmp_path / "gated", *GATED, *options, updates=1)
    assert logged(closed, "heads_open")[0] == 0
    heads = tmp_path / "heads.json"
    run("headgates", "show", tmp_path / "gated" / "checkpoint_last.pt", "--out", heads)
    assert json.loads(heads.read_text())["dec-enc"] == [[0] * 4] * 2
    train(tmp_path / "fixed", "--alive-heads", heads, "--finetune-from-model", stock_checkpoint, updates=1)
    shown = json.loads(run("headgates", "show", tmp_path / "fixed" / "checkpoint_last.pt", "--json").out)
    assert shown["heads"] == {"enc-self": [8, 8], "dec-self": [8, 8], "dec-enc": [0, 8], "total": [16, 24]}


def test_show_overwrites_only_with_force(gated_checkpoint, tmp_path, run):
    heads = tmp_path / "heads.json"
    heads.write_text("mine")
    refused = run("headgates", "show", gated_checkpoint, "--out", heads, code=2)
    assert_one_line_error(refused, [str(heads), "--force"])
    assert heads.read_text() == "mine"
    run("headgates", "show", gated_checkpoint, "--out", heads, "--force")
    assert json.loads(heads.read_text())["enc-self"] == [[1] * 4] * 2
    assert [file.name for file in tmp_path.iterdir()] == ["heads.json"]  # nothing temporary left


def test_a_checkpoint_is_accepted_as_a_mask(checkpoints, tmp_path, train, run):
    """The heads that `headgates show --out` writes; see checkpoints/test_masks.py."""
    path = checkpoints["mixed"]
    heads = json.loads(run("headgates", "show", path, "--out", "-").out)
    train(tmp_path, "--alive-heads", path, "--remove-heads", updates=1)
    stored = read(tmp_path / "checkpoint_last.pt")["cfg"]["model"]
    assert {attention_type: json.loads(stored.alive_heads)[attention_type] for attention_type in TYPES.split(",")} == {
        attention_type: heads[attention_type] for attention_type in TYPES.split(",")
    }


def test_a_stock_checkpoint_is_refused_as_a_mask(stock_checkpoint, tmp_path, train):
    refused = train(tmp_path, "--alive-heads", stock_checkpoint, code=2)
    assert_one_line_error(refused, [repr(str(stock_checkpoint)), "'transformer'", "transformer_head_gates"])


def test_show_prints_the_mask_alone(gated_checkpoint, tmp_path, run):
    printed = run("headgates", "show", gated_checkpoint, "--out", "-").out
    done = run("headgates", "show", gated_checkpoint, "--out", tmp_path / "heads.json")
    assert printed == (tmp_path / "heads.json").read_text() and done.err == f"written: {tmp_path / 'heads.json'}\n"
    both = run("headgates", "show", gated_checkpoint, "--out", "-", "--json", code=2)
    assert_one_line_error(both, ["--json", "--out -"])


def test_show_does_not_replace_a_device(gated_checkpoint, tmp_path, run):
    """By links of its own."""
    for name, target in (("null", "/dev/null"), ("stdout", "/proc/self/fd/1")):
        (tmp_path / name).symlink_to(target)
        done = run("headgates", "show", gated_checkpoint, "--out", tmp_path / name, "--force", code=2)
        assert_one_line_error(done, [str(tmp_path / name)])
        assert (tmp_path / name).is_symlink()


@pytest.mark.rehearsal
def test_show_on_a_full_disk(gated_checkpoint, tmp_path):
    command = "import sys; from fairseq_headgates.cli.main import main; sys.exit(main(['show', sys.argv[1]]))"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", command, gated_checkpoint],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=buffered,
        )
    assert done.returncode == 2 and done.stderr.splitlines()[-1:] == done.stderr.splitlines()
    assert "No space left on device" in done.stderr


def test_help_tells_the_exit_codes(run):
    text = " ".join(run("headgates", "--help").out.split())
    assert "exit codes: 0 success; 2 bad input" in text and "130 by Ctrl-C" in text


BAD_COMMAND_LINES = {
    "no command": ([], ["COMMAND"]),
    "an unknown command": (["prnue"], ["'prnue'", "prune"]),
    "an unknown option": (["path", "--nope"], ["--nope"]),
    "no checkpoint": (["show"], ["CKPT"]),
    "no output": (["prune", "x.pt"], ["OUT"]),
    "nothing to prune": (["prune"], ["CKPT, OUT"]),
    "an option of another command": (["show", "x.pt", "--alive", "{}"], ["--alive"]),
    "a word too many": (["path", "x"], ["x"]),
    "lines in a word": (["path", "a\nb"], ["a\\nb"]),
    "no value": (["show", "x.pt", "--out"], ["--out", "expected one argument"]),
    "an empty output": (["show", "x.pt", "--out", ""], ["--out", "empty"]),
    "an empty checkpoint": (["show", ""], ["CKPT", "empty"]),
    "an empty mask": (["prune", "x.pt", "y.pt", "--alive", ""], ["--alive", "empty"]),
    "an empty score file": (["prune", "x.pt", "y.pt", "--scores", "", "--keep", "1"], ["--scores", "empty"]),
    "no engine": (["convert", "x.pt", "y"], ["--to"]),
    "an unknown engine": (["convert", "x.pt", "y", "--to", "onnx"], ["'onnx'", "ctranslate2"]),
    "an empty engine": (["convert", "x.pt", "y", "--to", ""], ["--to", "ctranslate2"]),
    "an empty folder": (["convert", "x.pt", "", "--to", "ctranslate2"], ["OUT", "empty"]),
    "a folder that is printed": (["convert", __file__, "-", "--to", "ctranslate2"], ["'-'"]),
    "two masks": (["convert", "x.pt", "y", "--to", "ctranslate2", "--alive", "{}", "--threshold", "1"], ["--alive"]),
    "a threshold of text": (["prune", "x.pt", "y.pt", "--threshold", "x" * 10**5], ["--threshold", "..."]),
    "a value for a switch": (["show", "x.pt", "--json=1"], ["--json"]),
    "no method": (["score"], ["--method"]),
}


@pytest.mark.parametrize(("argv", "words"), BAD_COMMAND_LINES.values(), ids=BAD_COMMAND_LINES)
def test_bad_command_lines_end_with_one_line(argv, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = exit_.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == "" and printed.err.count("\n") == 1 and len(printed.err) < 5000
    assert printed.err.startswith("headgates") and [word for word in words if word not in printed.err] == []


START = (
    f"import sys; sys.argv[1:] = ['show', {__file__!r}]; import headgates_start; "
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


def no_checkpoint(kind, path):
    """A file that is no checkpoint of a fairseq transformer."""
    writers = {
        "text": lambda: path.write_text("not a checkpoint\n"),
        "nothing": path.touch,
        "a folder": path.mkdir,
        "another torch file": lambda: torch.save({"weights": torch.ones(2)}, path),
        "a list": lambda: torch.save([1, 2], path),
        "a pickled object": lambda: torch.save({"model": {}, "args": Path("x")}, path),
        "no attention": lambda: torch.save({"model": {}, "cfg": {"model": {"arch": "lstm"}}}, path),
    }
    if kind != "missing":
        writers[kind]()
    return path


@pytest.mark.parametrize(
    "kind",
    ["missing", "text", "nothing", "a folder", "another torch file", "a list", "a pickled object", "no attention"],
)
def test_show_refuses_files_that_are_not_checkpoints_in_one_line(kind, tmp_path, run):
    path = no_checkpoint(kind, tmp_path / "x.pt")
    assert_one_line_error(run("headgates", "show", path, code=None), [str(path)])


def test_show_of_a_truncated_checkpoint(gated_checkpoint, tmp_path, run):
    (tmp_path / "x.pt").write_bytes(gated_checkpoint.read_bytes()[:10_000])
    assert_one_line_error(run("headgates", "show", tmp_path / "x.pt", code=None), [str(tmp_path / "x.pt")])


def test_missing_checkpoint(either):
    assert_one_line_error(either("headgates", "show", "no.pt", code=None), ["'no.pt'", "No such file"])


def test_out_in_a_missing_folder(gated_checkpoint, tmp_path, run):
    out = tmp_path / "no" / "heads.json"
    assert_one_line_error(run("headgates", "show", gated_checkpoint, "--out", out, code=None), [str(out)])
