"""`headgates report` as a user runs it: what the page holds, and what is refused."""

import contextlib
import io
import json
import os
import re
import shutil
from html.parser import HTMLParser

import pytest
from support.analysis import one_line
from support.report import SWEEP, inputs_of

from fairseq_headgates.cli import main as cli
from fairseq_headgates.drawing.functions import group_counts
from fairseq_headgates.extensions.report import sections
from fairseq_headgates.extensions.report.content import ModelHeads
from fairseq_headgates.extensions.report.grids import function_grids, gate_grids
from fairseq_headgates.heads import HeadTable

LOADED_BY_CSS = re.compile(r"url\((?!#)|@import")


class Page(HTMLParser):
    """The text of a page by section, its tags, and its elements that load something."""

    def __init__(self, text):
        super().__init__()
        self.section, self.texts, self.open, self.loads = "", {}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "section":
            self.section = found["id"]
        if any(
            value and not value.startswith("#") for key, value in attributes if key in ("src", "href", "xlink:href")
        ):
            self.loads.append((tag, found))

    def handle_data(self, data):
        self.texts[self.section] = self.texts.get(self.section, "") + data


@pytest.fixture(scope="module")
def page(experiment, tmp_path_factory):
    """The report of all inputs."""
    path, printed = tmp_path_factory.mktemp("report") / "report.html", io.StringIO()
    with contextlib.redirect_stderr(printed):
        assert cli.main(["report", *map(str, [path, *inputs_of(experiment)])]) == 0
    assert printed.getvalue() == f"written: {path}\n"
    return path.read_text()


def test_the_page_has_a_section_for_every_kind_of_input(page, experiment):
    found = Page(page)
    names = (
        "results compression heads curves overlap functions scores ablation explanations attention distribution "
        "reproduce"
    ).split()
    assert list(found.texts)[1:] == names
    assert "sentence 6\n" in found.texts["results"] and "reference" in found.texts["results"]
    assert "chrF2" in found.texts["results"] and "parameters kept (%)" in found.texts["compression"]
    assert "by chance" in found.texts["overlap"] and "heads in common (Jaccard index)" in found.texts["overlap"]
    assert ": 20 of 24 heads" in found.texts["heads"]
    assert "in total" not in found.texts["heads"] and "enc-self (encoder self-attention)" in found.texts["heads"]
    for name in ("all_heads12", "30.00 (29.00..31.00)", "26.00 (25.00..27.00)", "total heads kept"):
        assert name in found.texts["curves"]
    assert "magnitude" in found.texts["scores"] and "gradient-unit:sentence" in found.texts["scores"]
    assert "each head masked" in found.texts["ablation"] and "BLEU" in found.texts["ablation"]
    assert "dec-enc layer 0 head 3" in found.texts["attention"] and "</s>" in found.texts["attention"]
    assert "headgates report" in found.texts["reproduce"]
    assert found.texts["reproduce"].count("compressed.json: compressed") == 1  # of several models with a signature
    for section, heading in (("functions", ""), ("explanations", ", sentence 2"), ("attention", ", sentence 1")):
        part = page.split(f'<section id="{section}"')[1].split("</section>")[0]
        assert f"<figcaption>checkpoint_gated{heading}</figcaption>" in part, section
    assert "\n1 model on the subset valid\n" in found.texts["results"]
    for path in inputs_of(experiment):
        assert str(path) in found.texts["reproduce"]


def test_the_page_loads_no_external_resources(page):
    assert not Page(page).loads and not LOADED_BY_CSS.search(page)
    assert "default-src 'none'" in page and len(page.encode()) < 5 * 2**20
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    referred = set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page))
    assert referred and referred <= set(names)


def test_every_figure_has_its_table(page):
    """Maps are tables themselves, and the numbers of the distribution are below it."""
    for section in ("compression", "curves", "functions", "scores", "ablation"):
        part = page.split(f'<section id="{section}"')[1].split("</section>")[0]
        figures = part.split('<figure class="panel">')[1:]
        assert figures and all("<pre" in figure for figure in figures), section


def test_what_a_file_holds_is_escaped(tmp_path, headgates):
    hostile = "<script>alert(1)</script>"
    token = {"queries": [hostile], "keys": [hostile], "heads": [{"layer": 0, "head": 0, "gate": 1, "weights": [[1]]}]}
    data = {"format": "headgates.attention/1", "signature": hostile, "sentences": [{"enc-self": token}]}
    (tmp_path / "attention.json").write_text(json.dumps(data))
    sweep = json.loads(json.dumps(SWEEP).replace("all_heads12", hostile).replace("lagrangian", hostile))
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    headgates("report", tmp_path / "r.html", tmp_path / "attention.json", tmp_path / "sweep.json")
    page = (tmp_path / "r.html").read_text()
    assert hostile not in page and "&lt;script&gt;alert" in page


@pytest.mark.parametrize(
    "change, words",
    [
        ({"models": []}, "sweep.json models is an empty list"),
        ({"models": [{**SWEEP["models"][1], "BLEU": []}]}, "sweep.json lacks values"),
        ({"models": [{**SWEEP["models"][1], "BLEU": [1e308, 1e999]}]}, "it holds 'Infinity'"),
        (
            {"format": "headgates.ablation/1", "signature": "", "mode": "single", "nll_difference": {"enc-self": [[1]]}}
            | {"bleu_difference": {"enc-self 0 100000000": 1}},
            "sweep.json lacks values",
        ),
        (
            {"format": "headgates.scores/1", "method": "x", "scores": {"enc-self": [[1] * 10001]}},
            "a table has 10,001 heads, and at most 10,000 are drawn",
        ),
    ],
)
def test_incomplete_files_are_named(change, words, tmp_path, headgates):
    (tmp_path / "sweep.json").write_text(json.dumps({**SWEEP, **change}))
    error = one_line(headgates("report", tmp_path / "r.html", tmp_path / "sweep.json", code=2))
    assert words in error and not (tmp_path / "r.html").exists()


def test_a_page_that_exists_is_kept(tmp_path, experiment, headgates):
    (tmp_path / "r.html").write_text("mine")
    error = one_line(headgates("report", tmp_path / "r.html", experiment / "sweep.json", code=2))
    assert "r.html exists: choose another name, or pass --force" in error
    assert (tmp_path / "r.html").read_text() == "mine"
    headgates("report", tmp_path / "r.html", experiment / "sweep.json", "--force")
    assert "<html" in (tmp_path / "r.html").read_text()


def test_an_input_is_not_overwritten(tmp_path, headgates):
    """OUT.html was forgotten."""
    path = tmp_path / "in.json"
    path.write_text(json.dumps(SWEEP))
    error = one_line(headgates("report", path, path, "--force", code=2))
    assert "in.json would be overwritten: the name of this output must end in ." in error
    assert json.loads(path.read_text()) == SWEEP


def test_file_names_may_hold_any_bytes(tmp_path, experiment, headgates):
    """Formulas of matplotlib, and bytes that are not UTF-8."""
    folder, file = tmp_path / "a$x_{$b $\\frac{", tmp_path / os.fsdecode(b"sweep\xff.json")
    shutil.copytree(experiment / "gated", folder)
    shutil.copy(experiment / "sweep.json", file)
    headgates("report", tmp_path / "r.html", folder, experiment / "pruned.pt", file)
    assert "a$x_{$b $" in (tmp_path / "r.html").read_text()


def test_a_head_with_a_closed_gate_in_a_pruned_model_is_closed():
    gate, alive = HeadTable({"enc-self": [[0, 0, 1]]}), HeadTable({"enc-self": [[0, 1, 1]]})
    model = ModelHeads("x", gate, HeadTable({"enc-self": [[0, 0.01, 1]]}), alive, 1, None)
    [[row]] = gate_grids(model).values()
    assert [cell.state for cell in row] == ["removed", "closed", "open"]


def test_named_functions_have_the_expected_letters():
    names = ["positional -1", "nsubj to governor", "rare", "alignment"]
    result = {"heads": {"enc-self": [[head_with(name) for name in names]]}}
    [[row]] = function_grids(result).values()
    assert [cell.text for cell in row] == ["P", "S", "R", "A"]


def head_with(*functions, gate=1.0):
    return {"gate": gate, "functions": list(functions)}


def test_heads_are_counted_by_the_first_group_of_their_functions():
    heads = [
        [head_with("nsubj to governor", "positional -1"), head_with("rare", "amod to dependent"), head_with("rare")],
        [head_with("positional +1", gate=0.0), head_with(), None],
    ]
    result = {"heads": {"enc-self": heads, "dec-enc": [[head_with("alignment", "rare")]]}}
    counts = {"positional": 1, "syntactic": 1, "rare": 1, "alignment": 0, "none": 1}
    assert group_counts(result, "enc-self") == counts
    assert group_counts(result, "dec-enc") == dict.fromkeys(counts, 0) | {"rare": 1}


def test_functions_of_several_checkpoints_are_one_chart_for_each_type(tmp_path, headgates, experiment):
    data = json.loads((experiment / "functions.json").read_text())
    fewer = json.loads(json.dumps(data))
    fewer["heads"]["enc-self"][0][0] = None
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, name, content in zip(files, ("whole", "half"), (data, fewer), strict=True):
        file.write_text(json.dumps({**content, "signature": f"ckpt:{name}.pt"}))
    headgates("report", tmp_path / "r.html", *files)
    text = (tmp_path / "r.html").read_text()
    assert text.count("open heads by function") >= len(data["heads"])
    rows = [line.split() for line in text.splitlines() if line.startswith("enc-self ")]
    opened = {row[1]: int(row[2]) for row in rows if row[1] in ("whole", "half")}
    assert opened["half"] == opened["whole"] - 1


def test_colours_of_lines_can_be_seen_on_both_pages():
    """WCAG: a contrast of at least 3 with the page, white or dark."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(factor * p for factor, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for background in ("#ffffff", "#14171a"):
        for colour in sections.COLOURS:
            bright, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 3, (colour, background)
