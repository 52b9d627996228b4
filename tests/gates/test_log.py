"""The gate log: what a training writes, and what can be read."""

import json

import pytest
from support.commands import GATED

from fairseq_headgates.heads import HeadTable
from fairseq_headgates.plugin.gate_log import NAME, GateRecord, gate_log_line, parse_gate_log, thinned


def record(update, *values):
    return GateRecord(update, HeadTable({"enc-self": [list(values)]}))


def lines(*records):
    return "".join(map(gate_log_line, records))


def test_a_training_logs_its_gates(tmp_path, train, headgates):
    """Every --log-interval updates, and at the end of each epoch of three; a resumed training goes on.

    A line that was cut is left out: a process was killed while it wrote, and another one goes on in the same file.
    """
    gates = [*GATED, "--gate-lr-scale", 1000, "--log-interval", 2]
    (tmp_path / NAME).write_text(lines(record(0, 0.5))[:-7])
    train(tmp_path, *gates, updates=4)
    before = (tmp_path / NAME).read_text()
    assert [found.update for found in parse_gate_log(before, NAME)] == [0, 2, 3, 4]
    train(tmp_path, *gates, updates=7)
    text = (tmp_path / NAME).read_text()
    found = parse_gate_log(text, NAME)
    assert text.startswith(before) and [each.update for each in found] == [0, 2, 3, 4, 6, 7]
    shown = json.loads(headgates("show", tmp_path / "checkpoint_last.pt", "--json"))
    last = found[-1].closed
    for attention_type, rows in shown["open_probability"].items():
        assert last.layers[attention_type] == [[pytest.approx(1 - p, abs=6e-5) for p in row] for row in rows]
    assert last.layers != found[0].closed.layers  # the gates have moved


def test_without_checkpoints_there_is_no_gate_log(tmp_path, train):
    train(tmp_path, *GATED, "--no-save", updates=1)
    assert not (tmp_path / NAME).exists()


def test_a_gate_log_that_cannot_be_written_is_a_warning(tmp_path, train):
    (tmp_path / NAME).mkdir()
    done = train(tmp_path, *GATED, "--log-interval", 1, updates=2)
    assert done.text.count(f"cannot write the gate log {tmp_path / NAME} (Is a directory)") == 1
    assert (tmp_path / "checkpoint_last.pt").is_file()


def test_later_records_replace_those_of_a_training_that_was_killed():
    text = lines(record(0, 0.1), record(5, 0.2), record(10, 0.3), record(5, 0.4), record(8, 0.5))
    found = parse_gate_log(text + '{"format": "headgates.ga', NAME)
    assert [(each.update, each.closed.layers["enc-self"]) for each in found] == [
        (0, [[0.1]]),
        (5, [[0.4]]),
        (8, [[0.5]]),
    ]


def test_a_new_training_with_other_gates_replaces_the_records():
    found = parse_gate_log(lines(record(0, 0.5), record(5, 0.5), record(0, 0.5, 0.5)), NAME)
    assert [(each.update, each.closed.layers["enc-self"]) for each in found] == [(0, [[0.5, 0.5]])]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "it has no complete line"),
        ("[" * 5000 + "\n", "it has no complete line"),
        ("[1]\n", "line 1 is not a record"),
        (lines(record(0, 0.5)) + '{"format": "headgates.gates/1", "update": 1}\n', "line 2 is not a record"),
        (lines(record(0, 0.5)).replace("gates/1", "gates/2"), "with the format 'headgates.gates/1'"),
        (lines(record(0, 0.5)).replace("0.5", "1.5"), "line 1 is not a record"),
        (lines(record(0, 0.5)).replace("enc-self", "enc"), "line 1 is not a record"),
        (lines(record(0, 0.5), record(1, 0.5, 0.5)), "line 2 has other heads than the line before"),
    ],
)
def test_malformed_gate_logs_are_refused(text, words):
    with pytest.raises(ValueError) as error:
        parse_gate_log(text, NAME)
    assert words in str(error.value) and NAME in str(error.value)


@pytest.mark.parametrize("number, largest, expected", [(3, 5, [0, 1, 2]), (11, 3, [0, 5, 10]), (100, 2, [0, 99])])
def test_records_are_chosen_evenly(number, largest, expected):
    assert [each.update for each in thinned([record(i, 0.5) for i in range(number)], largest)] == expected
