"""What an experiment leaves behind: run folders, files of unknown kinds."""

import json
import os

import pytest

from fairseq_headgates.extensions.report.inputs import read_results

ATTENTION = (
    '{"format": "headgates.attention/1", "signature": "", "sentences": [{"enc-self": {"queries": ["a"], "keys": ["a"], '
    '"heads": [{"head": 0, "gate": 1, "layer": 0, "weights": [[1, 1]]}]}}]}'
)


def models_of(*paths):
    """The rows of the table of checkpoints, each as {title: cell}."""
    [(_, result), *_] = read_results([*map(str, paths)])
    [table] = result.tables
    return [dict(zip(table.header, row, strict=True)) for row in table.rows], result


def test_the_pruned_model_of_a_run_folder_is_shown(tmp_path, gated_checkpoint, headgates):
    last = tmp_path / "run" / "checkpoints" / "checkpoint_last.pt"  # the folder of fairseq-hydra-train
    last.parent.mkdir(parents=True)
    last.write_bytes(gated_checkpoint.read_bytes())
    [[model], _] = models_of(tmp_path / "run")
    assert (model["model"], model["enc-self"]) == ("checkpoints", "8 of 8")
    alive = json.dumps({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 1]]})
    headgates("prune", "--path", gated_checkpoint, "--out", tmp_path / "run" / "pruned.pt", "--alive", alive)
    [[model], result] = models_of(tmp_path / "run", tmp_path / "run" / "pruned.pt")
    assert (model["model"], model["enc-self"], model["heads"]) == ("run", "4 of 8", "20 of 24")
    pytest.importorskip("matplotlib")
    [cells] = result.figures[0].draw().axes[0].collections
    assert (~cells.get_array().mask).tolist() == [[True, False, True, True], [False, False, False, True]]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("notes.txt", "just a text", "is not JSON"),
        ("x.json", "{", "is not JSON"),
        ("x.json", "{}", "has the format None, not one of headgates.evaluation/1, "),
        ("x.json", '[{"format": "headgates.curve/1"}, 1]', "has the format None"),
        ("x.json", '{"format": "headgates.curve/1", "points": []}', "IndexError"),
        ("x.json", '{"format": "headgates.evaluation/1", "signature": ""}', "it has no checkpoint"),
        ("x.json", ATTENTION, "enc-self does not have a row of weights for each"),
        ("x.pt", "PK\x03\x04 and more", "x.pt"),
    ],
)
def test_files_of_unknown_kinds_are_refused(name, content, words, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError) as error:
        [*read_results([str(tmp_path / name)])]
    assert words in str(error.value) and name in str(error.value)


def test_folders_without_a_training_and_missing_files_are_refused(tmp_path):
    (tmp_path / "notes.log").write_text("nothing of fairseq")
    with pytest.raises(ValueError, match="has none of pruned.pt, checkpoint_last.pt, checkpoint_best.pt: give "):
        [*read_results([str(tmp_path)])]
    with pytest.raises(ValueError, match="No such file"):
        [*read_results([str(tmp_path / "absent.json")])]


def test_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pruned.pt")
    with pytest.raises(ValueError, match="is not a regular file"):
        [*read_results([str(tmp_path / "pruned.pt")])]
    with pytest.raises(ValueError, match="has none of pruned.pt"):
        [*read_results([str(tmp_path)])]
