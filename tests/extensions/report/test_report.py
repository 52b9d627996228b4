"""Tables for people."""

from xml.etree import ElementTree

import pytest

from fairseq_headgates.cli.output import picture
from fairseq_headgates.data import comparison
from fairseq_headgates.data.results import Evaluation, Score, Speed
from fairseq_headgates.drawing import text as report_text
from fairseq_headgates.drawing.figures import curve_plot, curve_results, heat_map, heat_maps, kept_heads
from fairseq_headgates.drawing.result import short_names
from fairseq_headgates.drawing.tables import (
    agreement_table,
    best_head_table,
    curve_tables,
    gate_tables,
    layer_tables,
    matrix,
    open_counts,
    rounded,
    score_tables,
    text_of,
    text_table,
)
from fairseq_headgates.drawing.text import visible
from fairseq_headgates.extensions.attention.drawing import attention_figure
from fairseq_headgates.heads import AttentionMap, HeadId, HeadTable

GATE = HeadTable({"enc-self": [[1.0, 0.0], [0.5, 1.0]], "dec-enc": [[0.0, 0.0]]}, "gate")
OPEN = HeadTable({"enc-self": [[0.99, 0.01], [0.7, 0.9]], "dec-enc": [[0.1, 0.2]]}, "P(open)")


def test_head_table_shows_every_head_and_the_counts():
    assert text_of(*gate_tables(OPEN, GATE)).splitlines() == [
        "enc-self (encoder self-attention): 3 of 4 heads open",
        "P(open)/gate     head 0     head 1  open",
        "------------  ---------  ---------  ----",
        "layer 0       0.99/1.00  0.01/0.00     1",
        "layer 1       0.70/0.50  0.90/1.00     2",
        "",
        "dec-enc (cross-attention): 0 of 2 heads open",
        "P(open)/gate     head 0     head 1  open",
        "------------  ---------  ---------  ----",
        "layer 0       0.10/0.00  0.20/0.00     0",
    ]
    assert open_counts(GATE) == {"enc-self": (3, 4), "dec-enc": (0, 2), "total": (3, 6)}


def test_heat_map_has_one_panel_per_type(tmp_path):
    pytest.importorskip("matplotlib")
    figure = heat_map(OPEN.map(lambda p: 1 - p, "P(gate = 0)"))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["enc-self", "dec-enc"]
    assert all(axes.yaxis_inverted() for axes in figure.axes[:2])  # layer 0 on top
    (cells,) = figure.axes[0].collections  # rectangles, not a raster that viewers would blur
    assert not figure.axes[0].images and cells.get_array().tolist()[0] == pytest.approx([0.01, 0.99])
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.01", "0.99", "0.3", "0.1"]
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_score_table_shows_a_dash_for_missing_scores():
    table = HeadTable({"enc-self": [[0.12345, -0.00001], [float("nan"), 2]]}, "gradient")
    assert text_of(*score_tables(table)).splitlines() == [
        "enc-self (encoder self-attention)",
        "gradient  head 0  head 1",
        "--------  ------  ------",
        "layer 0   0.1235  0.0000",
        "layer 1        -  2.0000",
    ]


def test_heat_maps_of_several_scores(tmp_path):
    pytest.importorskip("matplotlib")
    other = HeadTable({"enc-self": [[5, 3], [4, 9]]}, "other")
    figure = heat_maps([OPEN, other])
    drawn = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in drawn] == ["enc-self", "dec-enc", "enc-self"]
    assert [axes.collections[0].get_clim() for axes in drawn] == [(0.01, 0.99), (0.01, 0.99), (3, 9)]


def test_tables_of_ablations():
    difference = {"dec-enc 0 0": -1.0, "dec-enc 0 1": 0.25, "dec-enc 1 1": -3.5, "enc-self 0 0": -0.001}
    p_values = {"dec-enc 0 0": 0.04, "dec-enc 0 1": 0.3, "dec-enc 1 1": 0.001, "enc-self 0 0": 0.05}
    difference, p_values = ({HeadId.parse(k): v for k, v in each.items()} for each in (difference, p_values))
    cross, encoder = layer_tables(difference, p_values)
    assert text_of(cross).splitlines() == [
        "dec-enc (cross-attention)",
        "BLEU      head 0   head 1",
        "-------  -------  -------",
        "layer 0  -1.00*   +0.25",
        "layer 1        -  -3.50**",
    ]
    assert text_of(encoder).splitlines()[-1] == "layer 0  +0.00"
    best = best_head_table({HeadId("dec-enc", 1, 1): -3.5, HeadId("enc-self", 0, 0): 0.2}, p_values)
    assert text_of(best).splitlines() == [
        "one head alone          enc-self           dec-enc",
        "--------------  ----------------  ----------------",
        "layer 0         +0.20   (head 0)                 -",
        "layer 1                        -  -3.50** (head 1)",
    ]


def points():
    values = [("all", 0, 4, 2.0, 30.0), ("all", 50, 2, 2.5, 20.0), ("dec-enc", 0, 2, 2.0, None)]
    names = ("types", "removed", "heads", "nll", "bleu")
    return [{"checkpoint": "a.pt", "by": "gate", **dict(zip(names, row, strict=True))} for row in values]


def test_curves():
    assert text_of(*curve_tables(points())).splitlines() == [
        "all by gate (a.pt)",
        "removed  heads  bits/token   BLEU",
        "-------  -----  ----------  -----",
        "0%           4      2.0000  30.00",
        "50%          2      2.5000  20.00",
        "",
        "dec-enc by gate (a.pt)",
        "removed  heads  bits/token  BLEU",
        "-------  -----  ----------  ----",
        "0%           2      2.0000     -",
    ]
    losses = [{**point, "bleu": None} for point in points()[:1]]
    assert text_of(*curve_tables(losses)).splitlines()[1].split() == ["removed", "heads", "bits/token"]
    pytest.importorskip("matplotlib")
    loss, bleu = curve_plot(points()[:2]).axes
    assert loss.lines[0].get_xydata().tolist() == [[0, 2], [50, 2.5]]
    assert bleu.lines[0].get_xydata().tolist() == [[0, 30], [50, 20]]


def test_curves_of_several_scores_are_one_picture_if_they_measure_the_same():
    pytest.importorskip("matplotlib")
    files = [{"points": [{**p, "by": by, "measured": data} for p in points()[:2]]} for by, data in ("gx", "cx", "gy")]
    together, alone = curve_results(files)
    loss, _ = together.figures[0].draw().axes
    assert [line.get_label() for line in loss.lines] == ["all g", "all c"]
    assert len(together.tables) == 2 and len(alone.tables) == 1


def test_agreement():
    pair = {"a": "x", "b": "y", "types": "dec-enc", "heads": 8, "pearson": 0.5, "pearson_p": 0.0004, "top": 2}
    pair |= {"spearman": float("nan"), "spearman_p": float("nan"), "shared": 0.5}
    assert agreement_table([pair]).splitlines()[-1].split() == [
        "x", "~", "y", "dec-enc", "8", "0.50", "<0.001", "-", "-", "50%", "of", "2",
    ]  # fmt: skip
    assert [line.split() for line in matrix("rho", ["a", "b"], {("a", "b"): 0.25}).splitlines()] == [
        ["rho", "a", "b"], ["---", "----", "----"], ["a", "0.25"], ["b", "0.25"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (-0.001, "+.2f", "+0.00"),
        (-0.0, ".4f", "0.0000"),
        (0.001, ".2f", "0.00"),
        (-0.01, "+.2f", "-0.01"),
        (-0.2, ",.0f", "0"),
        (float("nan"), ".2f", "nan"),
    ],
)
def test_a_rounded_zero_has_no_minus_sign(value, form, text):
    assert rounded(value, form) == text


@pytest.mark.parametrize(
    "token, shown",
    [
        ("caf\xe9@@", "caf\xe9@@"),
        ("$x_1^2$ \\frac & <b>", "$x_1^2$ \\frac & <b>"),
        ("\u200bword\u200b", "\\u200bword\\u200b"),
        ("10\xa0000", "10\\xa0000"),
        ("\x1b[31m", "\\x1b[31m"),
        ("می\u200cروم", "می\u200cروم"),  # Persian: part of the word
        ("\u200d", "\\u200d"),
        ("\u093f\u0928", "\u25cc\u093f\u0928"),  # a piece that begins with a vowel sign of Hindi
        ("ab" * 500, "ab" * 14 + "a…" + "ab" * 5),
    ],
)
def test_invisible_characters_of_tokens_are_shown(token, shown):
    assert visible(token) == shown


def test_wide_characters_line_up():
    """In a terminal a Chinese character is as wide as two letters, a combining one has no width."""
    assert text_table(["", "中文"], [["e\u0301", "1"], ["中文字", "1"]]).splitlines() == [
        "        中文", "------  ----", "e\u0301          1", "中文字     1",
    ]  # fmt: skip


def maps_of(*tokens):
    return {
        1: [
            AttentionMap(HeadId("enc-self", 0, 0), 1.0, list(tokens), list(tokens), [[0.5] * len(tokens)] * len(tokens))
        ]
    }


def test_pictures_show_tokens_as_they_are(tmp_path):
    pytest.importorskip("matplotlib")
    tokens = ["$", "$x^2$", "a_b", "\\alpha", "50%", "&", "<b>", '"', "{}", "#", "\x07", "x" * 300]
    content = picture("maps.svg", lambda: attention_figure(maps_of(*tokens)))
    drawn = [each.text for each in ElementTree.fromstring(content).iter() if each.tag.endswith("text")]
    length, (shown, labels) = len(tokens), ([*map(visible, tokens)], ["key; attention weights in percent", "query"])
    assert drawn[: 2 * length + 2] == [*shown, labels[0], *shown, labels[1]]
    figure = attention_figure(maps_of("x" * 300))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):  # nothing is cut off
        extent = label.get_window_extent()
        assert extent.x0 >= 0 and extent.y1 <= figure.bbox.height
    assert min(axes.get_window_extent().size) > 50  # pixels


@pytest.mark.release
def test_checkpoint_names_may_hold_any_characters(tmp_path):
    """Control characters are not allowed in SVG, and bytes of a name that are not UTF-8 in no file."""
    pytest.importorskip("matplotlib")
    several = [{**point, "checkpoint": name} for name in ("$a_{\x07\udcff", "b") for point in points()]
    content = picture("curve.svg", lambda: curve_plot(several))
    drawn = [each.text or "" for each in ElementTree.fromstring(content).iter() if each.tag.endswith("text")]
    assert "all gate $a_{\\x07\\udcff" in drawn
    assert picture("curve.png", lambda: curve_plot(several)).startswith(b"\x89PNG")


def test_a_character_is_drawn_in_the_first_font_that_has_it(monkeypatch, caplog):
    """A font of matplotlib, with a single Japanese letter, stands for those of the system."""
    for fonts in (["No Such Font", "STIXGeneral"], []):
        monkeypatch.setattr(report_text, "FALLBACK", fonts)
        content = picture("maps.pdf", lambda: attention_figure(maps_of("の", "a")))
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert (b"STIXGeneral" in content, len(warned)) == ((True, 0) if fonts else (False, 1))
    assert warned[0].startswith("maps.pdf: Glyph 12398 ") and warned[0].endswith("; an .svg file shows it")


def evaluation(checkpoint, data="a", predictions=("x y", "z"), parameters=100, slower=0.9):
    """Of two sentences, whose references are those of the first model."""
    signature = f"data:{data}|split:test|sents:2|ckpt:{checkpoint}"
    texts = {"predictions": [*predictions], "references": ["x y", "z"]}
    scores = {"BLEU": Score(50.0, (40.0, 60.0), "case:mixed|tok:13a"), "chrF2": Score(50.0, (40.0, 60.0), "case:mixed")}
    heads = {"heads": {"total": (parameters // 10, 10)}, "layers": {}, "parameters": parameters}
    speed = Speed("words", 1000.0 / parameters, (slower * 1000.0 / parameters, 1000.0 / parameters))
    return Evaluation(
        checkpoint=checkpoint, **heads, losses={}, subset="test", scores=scores, **texts, speed=speed,
        signature=signature,
    )  # fmt: skip


def said(group):
    """The results of evaluations, by kind."""
    return {each.kind: each for each in comparison.results([each.as_json() for each in group])}


def test_only_evaluations_of_the_same_data_share_a_table():
    """Two texts may have as many sentences; their signatures tell them apart."""
    found = [evaluation(name, split) for name, split in (("a", "en"), ("b", "ru"), ("c", "en"))]
    for each in found:
        object.__setattr__(each, "references", None)
    assert [[each.checkpoint for each in group] for group in comparison.same_data(found)] == [["a", "c"], ["b"]]


def test_what_a_smaller_model_costs_and_saves():
    group = [
        evaluation("whole/checkpoint_last.pt"),
        evaluation("small.pt", predictions=("x w y", "z"), parameters=70),
        evaluation("same.pt", parameters=80),
    ]
    found = said(group)
    assert found["Results"].sentence.startswith(
        "small keeps 7 of 10 heads and has 30% fewer parameters than whole. BLEU: 50.00 (95% interval 40.00 to 60.00) "
        "instead of 50.00, p "
    )
    assert found["Results"].sentence.endswith(", and 1.29 to 1.59 times as fast.")
    [table] = found["Results"].tables
    scores = ["BLEU", "change of BLEU", "chrF2", "change of chrF2"]
    assert table.header == ["model", "heads", "parameters", "words/s", *scores]
    assert [row[:3] for row in table.rows] == [
        ["whole", "10/10", "100"], ["small", "7/10", "70 (-30%)"], ["same", "8/10", "80 (-20%)"],
    ]  # fmt: skip
    [table] = found["Translations"].tables  # of the sentence that differs
    assert (table.title, [row[0] for row in table.rows]) == ("sentence 1", ["reference", "whole", "small", "same"])
    assert table.rows[2][1] == [("x", False), ("w", True), ("y", False)]
    assert table.rows[3][1] == "the same as whole"
    assert [word for word, _ in comparison._words("x", "x y z")] == ["x", "[...]"]


def test_one_model_has_no_sentence_and_no_translations():
    found = said([evaluation("whole.pt")])
    assert list(found) == ["Results"] and found["Results"].sentence == ""


def test_language_models_have_no_translations():
    group = [evaluation("whole.pt"), evaluation("small.pt", parameters=70)]
    for each in group:
        for name, value in (("scores", {}), ("predictions", None), ("references", None)):
            object.__setattr__(each, name, value)
    found = said(group)
    assert list(found) == ["Results"]
    assert found["Results"].sentence.startswith("small keeps 7 of 10 heads and has 30% fewer parameters than whole")


def test_translations_are_those_on_which_most_models_disagree():
    texts = [["a"] * 6, ["a", "b", "b", "b", "a", "b"], ["a", "c", "b", "c", "b", "c"]]
    group = [evaluation(f"{i}.pt") for i in range(3)]
    for each, predictions in zip(group, texts, strict=True):
        object.__setattr__(each, "predictions", predictions)
        object.__setattr__(each, "references", texts[0])
    assert [table.title for table in said(group)["Translations"].tables] == ["sentence 2", "sentence 4", "sentence 6"]


def test_a_model_that_has_collapsed_chooses_no_translations():
    texts = [["a"] * 6, ["a", "a", "a", "a", "b", "a"], ["the"] * 6]
    group = [evaluation(f"{i}.pt") for i in range(3)]
    for each, predictions in zip(group, texts, strict=True):
        object.__setattr__(each, "predictions", predictions)
        object.__setattr__(each, "references", texts[0])
    group[2].scores["BLEU"] = Score(1.0, (0.0, 2.0), group[0].scores["BLEU"].signature)
    [table] = said(group)["Translations"].tables
    assert table.title == "sentence 5" and table.rows[-1] == ["2", [("the", True)]]
    assert "Translations" not in said([group[0], group[2]])
    assert said(group)["Translations"].note.startswith("Marked: what differs from 0, the first model.")


def test_models_of_several_sizes_are_points_over_their_parameters():
    pytest.importorskip("matplotlib")
    group = [evaluation("whole.pt"), evaluation("small.pt", parameters=70)]
    [axes] = said(group)["Results"].figures[0].draw().axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[100, 50]], [[70, 50]]]
    assert [line.get_label() for line in axes.lines] == ["whole", "small"] and axes.xaxis_inverted()
    assert axes.get_ylabel() == "BLEU" and not said([evaluation("whole.pt")])["Results"].figures


@pytest.mark.parametrize("slower", [0.6, None])
def test_a_speed_that_may_be_noise_is_in_no_sentence(slower):
    """The slowest round of the model is slower than the fastest of the whole one, or there is one round."""
    group = [evaluation("whole.pt"), evaluation("small.pt", parameters=70, slower=slower or 0.9)]
    if not slower:
        object.__setattr__(group[1], "speed", Speed("words", 14.0))
    sentence = said(group)["Results"].sentence
    assert "fewer parameters" in sentence and "fast" not in sentence


def test_short_names_of_files():
    names = ["out/gated/checkpoint_last.pt", "out/small.pt", "out/gated", "a/scores.json", "b/scores.json"]
    assert short_names(names[1:4]) == ["small", "gated", "scores"]
    assert short_names(names) == [names[0], "small", "out/gated", "a/scores.json", "b/scores.json"]


def test_open_closed_and_removed_heads_look_different():
    pytest.importorskip("matplotlib")
    nan = float("nan")
    gates = {"a": HeadTable({"enc-self": [[1, 0, nan]], "dec-enc": [[0.5]]}), "b": HeadTable({"enc-self": [[1, 1, 1]]})}
    figure = kept_heads(gates)
    first, second, third, empty = figure.axes
    assert [text.get_text() for text in first.texts] == ["0"] and [text.get_text() for text in second.texts] == ["0.5"]
    [cells] = first.collections
    assert cells.get_array().mask.tolist() == [[False, False, True]]  # the grey of the background
    assert [first.get_title("left"), third.get_title("left")] == ["a", "b"] and not empty.axison
