"""`headgates prune` and its files: nothing is overwritten or left half-written."""

import os
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from support.checkpoints import OPEN, load, names
from support.prune_command import score_file, write

from fairseq_headgates import HeadTable
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.files import replacing
from fairseq_headgates.heads import parse_scores


@pytest.mark.parametrize("form", [[], ["--dry-run"]])
def test_standard_output_and_empty_names_are_refused(form, checkpoint, refused):
    refused(checkpoint, "-", *form, words=["'-'", "standard output", "./-"])
    refused(checkpoint, "", *form, words=["--out", "empty"])
    refused("", "x.pt", *form, words=["--path", "empty"])
    assert names(checkpoint.parent) == ["gated.pt"]


def in_a_child(work):
    """Call `work` in a forked process: a signal must not reach the process of the tests."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_file_and_is_reported(number, checkpoint, prune, monkeypatch):
    def save(state, path):
        Path(path).write_bytes(b"half of it")
        os.kill(os.getpid(), number)
        time.sleep(60)

    def stopped():
        done = prune(checkpoint, checkpoint.with_name("pruned.pt"), code=128 + number)
        assert done.err == "headgates prune: stopped\n"
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    monkeypatch.setattr(torch, "save", save)
    in_a_child(stopped)
    assert names(checkpoint.parent) == ["gated.pt"]


def test_an_ignored_signal_stays_ignored(checkpoint, prune, monkeypatch):
    """As under nohup."""

    def save(state, path, original=torch.save):
        os.kill(os.getpid(), signal.SIGHUP)
        original(state, path)

    def ignored():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        prune(checkpoint, checkpoint.with_name("pruned.pt"))

    monkeypatch.setattr(torch, "save", save)
    in_a_child(ignored)
    assert names(checkpoint.parent) == ["gated.pt", "pruned.pt"]


def test_an_existing_file_is_refused_before_the_model_is_loaded(checkpoint, refused, prune, monkeypatch):
    out = write(checkpoint.with_name("pruned.pt"), "mine")
    with monkeypatch.context() as patched:
        patched.setattr(
            "fairseq_headgates.plugin.models.building.load_model", lambda *args: pytest.fail("it began to work")
        )
        refused(checkpoint, out, words=[str(out), "exists", "--force"])
    assert out.read_text() == "mine"
    prune(checkpoint, out, "--force")
    assert kept_mask(load(out)[0]).layers == OPEN


def test_a_full_disk_leaves_no_partial_file(checkpoint, refused, monkeypatch):
    def save(state, path):
        Path(path).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    out = write(checkpoint.with_name("pruned.pt"), "mine")
    monkeypatch.setattr(torch, "save", save)
    refused(checkpoint, out, "--force", words=["cannot write", str(out)])
    assert names(checkpoint.parent) == ["gated.pt", "pruned.pt"] and out.read_text() == "mine"


def test_folders_that_cannot_be_written_to(checkpoint, refused):
    refused(checkpoint, checkpoint.parent / "no" / "x.pt", words=["cannot write", "/no/x.pt"])
    refused(checkpoint, "/proc/headgates.pt", words=["cannot write", "/proc/headgates.pt"])  # not even root may
    folder = checkpoint.with_name("folder")
    folder.mkdir()
    refused(checkpoint, folder, "--force", words=["not a file"])
    assert names(checkpoint.parent) == ["folder", "gated.pt"] and names(folder) == []


# The parts


@pytest.mark.parametrize("name", ["gated.pt/x.pt", "x" * 250, "x" * 300], ids=["in a file", "long", "too long"])
def test_names_that_cannot_be_written_to(name, tmp_path):
    (tmp_path / "gated.pt").touch()
    with pytest.raises(ValueError, match="^cannot write [^\n]*$"):
        save_checkpoint({}, str(tmp_path / name), force=False)
    assert names(tmp_path) == ["gated.pt"]


def test_scores_are_read(tmp_path):
    file = write(tmp_path / "s.json", score_file({"dec-enc": [[0.5, -1]], "enc-self": [[1, 2]]}))
    table = parse_scores(str(file))
    assert table == HeadTable({"enc-self": [[1, 2]], "dec-enc": [[0.5, -1]]}, "gradient", "gradient|x")
    assert parse_scores(str(file), "gradient") == table
    both = write(tmp_path / "b.json", [score_file({"enc-self": [[1]]}), score_file({"enc-self": [[2]]}, method="b")])
    assert parse_scores(str(both), "b").layers == {"enc-self": [[2]]}
    bare = write(tmp_path / "c.json", {"format": "headgates.scores/1", "scores": {"enc-self": [[1]]}})
    assert parse_scores(str(bare)) == HeadTable({"enc-self": [[1]]}, "", "")


def test_a_file_is_written_atomically(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as temporary:
        temporary.write_text("first")
        assert not path.exists() and temporary.parent == path.parent  # the same file system: renaming is one step
    assert path.read_text() == "first"
    with pytest.raises(ValueError, match="exists.*--force"), replacing(path):
        pytest.fail("it should not begin")
    for error in (KeyboardInterrupt(), ZeroDivisionError(), SystemExit(1)):
        with pytest.raises(type(error)), replacing(path, force=True) as temporary:
            temporary.write_text("half")
            raise error
    assert path.read_text() == "first" and names(tmp_path) == ["a"]
