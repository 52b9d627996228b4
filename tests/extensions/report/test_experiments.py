"""What an experiment leaves behind: run folders, files of unknown kinds."""

import json
import os

import pytest

from fairseq_headgates.extensions.report.inputs import read_experiment

ATTENTION = (
    '{"format": "headgates.attention/1", "signature": "", "sentences": [{"enc-self": {"queries": ["a"], "keys": ["a"], '
    '"heads": [{"head": 0, "gate": 1, "layer": 0, "weights": [[1, 1]]}]}}]}'
)


def test_the_pruned_model_of_a_run_folder_is_shown(tmp_path, gated_checkpoint, headgates):
    last = tmp_path / "checkpoints" / "checkpoint_last.pt"  # the folder of fairseq-hydra-train
    last.parent.mkdir()
    last.write_bytes(gated_checkpoint.read_bytes())
    assert [each.name for each in read_experiment([str(tmp_path)]).models] == [str(last)]
    alive = json.dumps({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 1]]})
    headgates("prune", gated_checkpoint, tmp_path / "pruned.pt", "--alive", alive)
    found = read_experiment([str(tmp_path)])
    [model] = found.models
    assert model.name == str(tmp_path / "pruned.pt")
    assert model.alive.count("enc-self") == model.gate.count("enc-self") == (4, 8)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("notes.txt", "just a text", "the kind of"),
        ("x.json", "{", "is not JSON"),
        ("x.json", "{}", "it has no format: give a checkpoint"),
        ("x.json", '[{"format": "headgates.curve/1"}, 1]', "it must be an object, not 1"),
        ("x.json", '{"format": "headgates.curve/1", "points": []}', "points is an empty list"),
        ("x.json", '{"format": "headgates.evaluation/1", "signature": ""}', "it has no checkpoint"),
        ("x.json", '{"format": "headgates.curve/1", "points": [NaN]}', "it holds 'NaN'"),
        ("x.json", ATTENTION, "enc-self does not have a row of weights for each"),
        ("x.pt", "PK\x03\x04 and more", "x.pt"),
    ],
)
def test_files_of_unknown_kinds_are_refused(name, content, words, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError) as error:
        read_experiment([str(tmp_path / name)])
    assert words in str(error.value) and name in str(error.value)


def test_folders_without_a_training_and_missing_files_are_refused(tmp_path):
    (tmp_path / "notes.log").write_text("nothing of fairseq")
    with pytest.raises(ValueError, match="has none of pruned.pt, checkpoint_last.pt, checkpoint_best.pt: give a run"):
        read_experiment([str(tmp_path)])
    with pytest.raises(ValueError, match="No such file"):
        read_experiment([str(tmp_path / "absent.json")])
    with pytest.raises(ValueError, match="is given twice"):
        read_experiment([str(tmp_path), str(tmp_path / ".")])


def test_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pruned.pt")
    with pytest.raises(ValueError, match="is not a regular file"):
        read_experiment([str(tmp_path / "pruned.pt")])
    with pytest.raises(ValueError, match="has none of pruned.pt"):
        read_experiment([str(tmp_path)])
