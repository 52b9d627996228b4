"""Fixtures of every test that runs whole commands: a toy corpus, ways to run fairseq on it, small checkpoints."""

import json
import os
import random

import pytest
from hypothesis import settings

# Before anything imports them. Not in support/__init__.py: forked commands import that, and need no pytest.
pytest.register_assert_rewrite("support.corpora", "support.models", "support.recipes")

from support.commands import ALIVE, GATED, Command, Toy, run_program, train_arguments  # noqa: E402

# A slow machine is no failure.
settings.register_profile("headgates", deadline=None)
settings.load_profile("headgates")

# The models of the tests are so small that threads would only wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """start(program, *arguments, stdin="", limits={}) starts a command; its `finish()` waits for it."""
    folder = tmp_path_factory.mktemp("streams")

    def start(program, *arguments, stdin="", limits=None):
        return Command(folder / str(len(os.listdir(folder))), program, arguments, stdin, limits)

    return start


@pytest.fixture(scope="session")
def run(start):
    """run(program, *arguments, stdin="", code=0) runs a command to its end, which must have the exit code `code`."""

    def run(program, *arguments, stdin="", code=0):
        return start(program, *arguments, stdin=stdin).finish().expect(code)

    return run


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """Letters and, as their translation, the same letters as capitals in reverse; one dictionary for both."""
    text = tmp_path_factory.mktemp("toy")
    rng = random.Random(7)
    for split, sentences in (("train", 200), ("valid", 30), ("test", 10)):
        sources = [rng.choices("abcdefgh", k=rng.randint(3, 8)) for _ in range(sentences)]
        for side, lines in (("src", sources), ("tgt", [[c.upper() for c in reversed(s)] for s in sources])):
            (text / f"{split}.{side}").write_text("".join(" ".join(line) + "\n" for line in lines))
    options = ["--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary", "--destdir", text / "bin"]
    options += [f"--{split}pref={text / split}" for split in ("train", "valid", "test")]
    run_program(text, "fairseq-preprocess", *options)
    return Toy(text, text / "bin")


@pytest.fixture(scope="session")
def train(toy, run):
    """train(save_dir, *options, arch=..., updates=2, code=0) trains the toy model with fairseq-train."""

    def train(save_dir, *options, code=0, **choices):
        return run("fairseq-train", *train_arguments(toy, save_dir, *options, **choices), code=code)

    return train


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, train):
    """Checkpoints of every kind of model, {name: path}: two updates, then two more in a second run.

    The mask files of "fixed" and "mixed" are gone afterwards: a checkpoint must not need them.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    masks = {"fixed": ALIVE, "mixed": {"enc-self": ALIVE["enc-self"]}}
    for name, mask in masks.items():
        (folder / f"{name}.json").write_text(json.dumps(mask))
    options = {
        "baseline": [],
        "gated": GATED,
        "fixed": ["--alive-heads", folder / "fixed.json"],
        "mixed": [*GATED, "--gate-heads", "dec-self,dec-enc", "--alive-heads", folder / "mixed.json"],
    }
    for name, own in options.items():
        train(folder / name, *own, updates=2)
        second = train(folder / name, *own, updates=4)
        assert "checkpoint_last.pt (epoch 1 @ 2 updates)" in second.text  # it went on, it did not start anew
    for name in masks:
        (folder / f"{name}.json").unlink()
    return {name: folder / name / "checkpoint_last.pt" for name in options}


@pytest.fixture(scope="session")
def gated_checkpoint(checkpoints):
    """A checkpoint with gates on every type of attention."""
    return checkpoints["gated"]


@pytest.fixture
def raw(tmp_path):
    """Raw text of three pairs for every split."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.en").write_text("one two\ntwo one\none one\n")
        (folder / f"{split}.de").write_text("eins zwei\nzwei eins\neins eins\n")
    return folder
