"""Bad command lines end with one line, before anything is computed or written: those of refusals.tsv."""

import shlex
from pathlib import Path

import pytest
import torch
from support.analysis import one_line
from support.prune_command import SCORES, score_file, write

TABLE = Path(__file__).with_name("refusals.tsv").read_text(encoding="utf-8").splitlines()[1:]
ROWS = [row.split("\t") for row in TABLE]


@pytest.fixture
def places(gated_checkpoint, tmp_path, tmp_path_factory):
    """What the words in capitals stand for."""
    folder = tmp_path_factory.mktemp("scores")
    return {
        "CKPT": gated_checkpoint,
        "OUT": tmp_path / "x.pt",
        "FILE": __file__,
        "SCORES": write(folder / "scores.json", score_file(SCORES)),
        "OTHER": write(folder / "other.json", score_file({"enc-self": [[1, 2, 3, 4]]})),
    }


@pytest.fixture(autouse=True)
def nothing_is_computed():
    """A model that runs ends the test."""
    handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: pytest.fail("it has begun to compute"))
    yield
    handle.remove()


@pytest.mark.parametrize(("line", "expected"), ROWS, ids=[line for line, _ in ROWS])
def test_bad_command_lines_are_refused(line, expected, places, headgates, on_toy, tmp_path):
    command, *words = [places.get(word, word.replace(r"\n", "\n")) for word in shlex.split(line)]
    if command in ("score", "ablate", "curve", "compress"):
        error = on_toy(command, *words, subset="test" if command == "ablate" else "valid", code=2)
    else:
        error = headgates(command, *words, code=2)
    assert one_line(error).startswith("headgates") and expected in error and len(error) < 5000
    assert not list(tmp_path.iterdir())
