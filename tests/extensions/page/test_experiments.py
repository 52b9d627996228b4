"""What an experiment leaves behind: logs, TensorBoard events, stored options, files of unknown kinds."""

import json
import os
import re
import shutil

import pytest
from support.commands import GATED, l0_configuration

from fairseq_headgates.extensions.page.inputs import read_experiment
from fairseq_headgates.extensions.page.logs import event_files, parse_log, read_events

ATTENTION = (
    '{"format": "headgates.attention/1", "signature": "", "sentences": [{"enc-self": {"queries": ["a"], "keys": ["a"], '
    '"heads": [{"head": 0, "gate": 1, "layer": 0, "weights": [[1, 1]]}]}}]}'
)
SIMPLE = """2026-01-01 10:00:00 | INFO | fairseq_cli.train | {'lr': [0.1]}
2026-01-01 10:00:01 | INFO | train_inner | epoch 001:     50 / 251 loss=4.2, nll_loss=2.9, gnorm=1e-05, num_updates=50
2026-01-01 10:00:02 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.7 | nll_loss 3.5 | num_updates 51
2026-01-01 10:00:03 | INFO | train | epoch 001 | loss 4.9 | nll_loss 3.3 | ups nan | num_updates 51 | lr 0.0035
2026-01-01 10:00:04 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.6 | nll_loss 3.4 | num_updates 51
2026-01-01 10:00:05 | INFO | valid | no numbers here
"""


def test_metrics_are_read_from_a_log():
    found = parse_log(SIMPLE.splitlines())
    assert found["train_inner nll_loss"] == [(50, 2.9)] and found["train_inner gnorm"] == [(50, 1e-05)]
    assert found["valid nll_loss"] == [(51, 3.4)]  # the later line of a training that was resumed
    assert found["train lr"] == [(51, 0.0035)] and "train ups" not in found


def test_logs_of_all_formats_and_events_hold_the_same_numbers(tmp_path, train):
    found = {}
    for form in ("simple", "json", "tqdm"):
        folder, file = tmp_path / form, tmp_path / f"{form}.log"
        options = ["--log-format", form, "--log-file", file]
        options += ["--tensorboard-logdir", folder / "events"] if form == "simple" else []
        found[form] = parse_log(train(folder, *GATED, *options, updates=4).text.splitlines())
        assert_read_as(found[form], file, folder)
    names = [f"{part} {name}" for part in ("train", "valid") for name in ("loss", "nll_loss", "heads_open")]
    events = read_events(event_files(tmp_path / "simple"))
    assert len(event_files(tmp_path / "simple")) >= 3
    for name in names:
        assert len(found["simple"][name]) == 2
        for form in ("json", "tqdm"):
            assert found[form][name] == found["simple"][name]
        assert events[name] == [(update, pytest.approx(value)) for update, value in found["simple"][name]]
    inner = "train_inner nll_loss"
    assert found["json"][inner] == found["simple"][inner] and len(found["simple"][inner]) == 4
    assert events[inner] == [(update, pytest.approx(value)) for update, value in found["simple"][inner]]


def assert_read_as(series, file, folder):
    """The log `file` has these numbers, given as a file and within the run folder."""
    assert read_experiment([str(file)]).trainings[0].series == series
    shutil.copy(file, folder / "train.log")
    assert read_experiment([str(folder)]).trainings[0].series == series


def test_logs_of_hydra(tmp_path, toy, run):
    """fairseq-hydra-train writes hydra_train.log, and the same lines to standard output."""
    config = l0_configuration(toy, "checkpoints", gate_heads="enc-self")
    config["common"] |= {"log_format": "json", "log_interval": 1}
    config["hydra"] = {"run": {"dir": str(tmp_path / "out")}}
    (tmp_path / "toy.yaml").write_text("# @package _global_\n" + json.dumps(config))
    done = run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "toy")
    found = parse_log(done.out.splitlines())
    for part in ("train_inner", "train", "valid"):
        assert found[f"{part} nll_loss"][-1][0] == 2
    losses = re.findall(r"\bvalid(?:_| on 'valid' subset \| )loss\W+([\d.]+)", done.out)
    assert found["valid loss"] == [(2, float(losses[-1]))]
    experiment = read_experiment([str(tmp_path / "out")])
    assert experiment.trainings[0].series == found and len(experiment.trainings[0].gates) > 1
    assert experiment.models[0].name == str(tmp_path / "out" / "checkpoints" / "checkpoint_last.pt")
    assert read_experiment([str(tmp_path / "out" / "hydra_train.log")]).trainings[0].series == found


def test_a_broken_event_file_is_named(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "events.out.tfevents.1").write_bytes(b"\x18" + b"\0" * 7 + b"wrong" * 9)
    try:
        assert read_events(event_files(tmp_path)) == {}
    except ValueError as error:
        assert str(folder) in str(error)


def test_a_validation_set_with_another_name():
    assert parse_log(SIMPLE.replace("'valid'", "'held-out'").splitlines()) == parse_log(SIMPLE.splitlines())
    two = SIMPLE + SIMPLE.replace("'valid'", "'test'").replace("loss 4.6", "loss 9")
    assert parse_log(two.splitlines())["valid loss"] == [(51, 4.6)]


def test_a_later_log_of_a_folder_replaces_numbers(tmp_path):
    """By the time of its first line; without one, as in the file of --log-file, by that of its last change."""
    first, second = (f"2026-01-0{i} 10:00:00 | INFO | train | epoch 001 | loss {i} | num_updates 5\n" for i in (1, 2))
    (tmp_path / "a.log").write_text(second)
    (tmp_path / "b.log").write_text(first)
    assert read_experiment([str(tmp_path)]).trainings[0].series["train loss"] == [(5, 2.0)]
    (tmp_path / "0.log").write_text("epoch 001 | loss 3 | num_updates 5\n")
    assert read_experiment([str(tmp_path)]).trainings[0].series["train loss"] == [(5, 3.0)]
    os.utime(tmp_path / "0.log", (0, 0))
    assert read_experiment([str(tmp_path)]).trainings[0].series["train loss"] == [(5, 2.0)]


def test_a_training_that_starts_again_replaces_later_numbers():
    text = "".join(f"x | INFO | train | epoch 1 | loss {i} | num_updates {n}\n" for i, n in enumerate((1, 2, 3, 2, 4)))
    assert parse_log(text.splitlines())["train loss"] == [(1, 0.0), (2, 3.0), (4, 4.0)]


@pytest.mark.parametrize("values", ['{"num_updates": ' + "[" * 9999, "epoch 001 | loss 2 | num_updates 1e999"])
def test_invalid_numbers_are_ignored(values):
    assert parse_log([f"x | INFO | train | {values}"]) == {}


def test_the_pruned_model_of_a_run_folder_is_shown(tmp_path, gated_checkpoint, headgates):
    (tmp_path / "checkpoint_last.pt").write_bytes(gated_checkpoint.read_bytes())
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
        ("gates.jsonl", '{"format": "headgates.gates/1"}\n', "line 1 is not a record of a gate log"),
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
    with pytest.raises(ValueError, match="no log, TensorBoard events, gate log or checkpoint of fairseq-train"):
        read_experiment([str(tmp_path)])
    with pytest.raises(ValueError, match="No such file"):
        read_experiment([str(tmp_path / "absent.json")])
    with pytest.raises(ValueError, match="is given twice"):
        read_experiment([str(tmp_path), str(tmp_path / ".")])


def test_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(ValueError, match="is not a regular file"):
        read_experiment([str(tmp_path / "pipe.log")])
    with pytest.raises(ValueError, match="no log, TensorBoard events"):
        read_experiment([str(tmp_path)])
