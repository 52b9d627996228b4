"""The commands that read data, in this process, on the toy corpus."""

import shutil

import pytest

from fairseq_headgates.cli import main as cli
from fairseq_headgates.compression import timing
from fairseq_headgates.data import statistics

SEARCH = ["--beam", "2", "--max-len-b", "10"]
READ = ["--cpu", "--num-workers", "0"]


@pytest.fixture
def headgates(capsys):
    """headgates(*arguments, code=0): what the command prints (or its one line of complaint)."""

    def headgates(*arguments, code=0):
        capsys.readouterr()
        try:
            ended = cli.main(list(map(str, arguments)))
        except SystemExit as error:  # argparse's
            ended = error.code
        out, err = capsys.readouterr()
        assert ended == code, out + err
        if code:
            assert not out and "Traceback" not in err
            return err
        return out

    return headgates


@pytest.fixture
def on_toy(headgates, toy, gated_checkpoint):
    """on_toy(command, *options): on the validation data and the gated checkpoint."""

    def on_toy(command, *options, checkpoint=gated_checkpoint, data=toy.data, subset="valid", code=0):
        places = [data, "--path", checkpoint, "--gen-subset", subset, *READ]
        return headgates(command, *places, *options, code=code)

    return on_toy


@pytest.fixture(scope="session", autouse=True)
def few_resamplings():
    """Bootstrap with 20 resamplings, where it is not p-values that are tested."""
    before, statistics.RESAMPLINGS = statistics.RESAMPLINGS, 20
    return before


@pytest.fixture
def all_resamplings(few_resamplings, monkeypatch):
    """Bootstrap as for users."""
    monkeypatch.setattr(statistics, "RESAMPLINGS", few_resamplings)


@pytest.fixture
def short_timing(monkeypatch):
    """Speeds by two short rounds, where it is not they that are tested."""
    for name, number in {"ROUNDS": 2, "SECONDS": 0}.items():
        monkeypatch.setattr(timing, name, number)


FULL = {"enc-self": [4, 4], "dec-self": [4, 4], "dec-enc": [4, 4]}


def one_line(text):
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.fixture
def copied(toy, tmp_path):
    """copied(): a folder with the dictionaries and the test data."""

    def copied(name="copy"):
        folder = tmp_path / name
        folder.mkdir()
        for path in [*toy.data.glob("dict.*"), *toy.data.glob("test.*")]:
            shutil.copy(path, folder)
        return folder

    return copied
