"""Tables for people."""

import pytest

from fairseq_headgates.heads import HeadTable
from fairseq_headgates.report import head_table, heat_map, results_table, text_table, totals

GATE = HeadTable({"enc-self": [[1.0, 0.0], [0.5, 1.0]], "dec-enc": [[0.0, 0.0]]}, "gate")
OPEN = HeadTable({"enc-self": [[0.99, 0.01], [0.7, 0.9]], "dec-enc": [[0.1, 0.2]]}, "P(open)")


def test_columns_line_up():
    assert text_table(["model", "BLEU"], [["a", "9.5"], ["longer", "10.25"]]).splitlines() == [
        "model    BLEU", "------  -----", "a         9.5", "longer  10.25",
    ]  # fmt: skip


def test_head_table_shows_every_head_and_the_counts():
    assert head_table(OPEN, GATE).splitlines() == [
        "enc-self (encoder self-attention): 3 of 4 heads open",
        "P(open)/gate     head 0     head 1  open",
        "------------  ---------  ---------  ----",
        "layer 0       0.99/1.00  0.01/0.00     1",
        "layer 1       0.70/0.50  0.90/1.00     2",
        "",
        "dec-enc (decoder-encoder attention): 0 of 2 heads open",
        "P(open)/gate     head 0     head 1  open",
        "------------  ---------  ---------  ----",
        "layer 0       0.10/0.00  0.20/0.00     0",
    ]
    assert totals(GATE) == {"enc-self": (3, 4), "dec-enc": (0, 2), "total": (3, 6)}


def test_results_table():
    text = results_table({"baseline": {"total": "6/6", "BLEU": "30.0"}, "pruned": {"total": "3/6", "BLEU": "29.9"}})
    assert text.splitlines()[-1].split() == ["pruned", "3/6", "29.9"]


def test_heat_map_has_one_panel_per_type(tmp_path):
    pytest.importorskip("matplotlib")
    figure = heat_map(OPEN.map(lambda p: 1 - p, "P(gate = 0)"))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["enc-self", "dec-enc"]
    assert figure.axes[0].images[0].get_array().tolist()[0] == pytest.approx([0.01, 0.99])
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
