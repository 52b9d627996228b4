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

LOADED_BY_CSS = re.compile(r"url\((?!#)|@import")
KINDS = (
    "Results",
    "Compression",
    "Fewer and fewer heads",
    "Heads and neurons",
    "Heads in common",
    "Functions of heads",
    "Importance of heads",
    "Ablation",
    "Explanations",
    "Attention maps",
)


class Page(HTMLParser):
    """The text and the number of figures of a page by section, and its elements that load something."""

    def __init__(self, text):
        super().__init__()
        self.section, self.texts, self.figures, self.loads = "", {}, {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.figures[self.section] = self.figures.get(self.section, 0) + (tag == "svg")
        self.section = None if tag == "h2" else self.section
        if any(
            value and not value.startswith(("#", "data:"))
            for key, value in attributes
            if key in ("src", "href", "xlink:href")
        ):
            self.loads.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.section = data if self.section is None else self.section
        self.texts[self.section] = self.texts.get(self.section, "") + data


@pytest.fixture(scope="module")
def page(experiment, tmp_path_factory):
    """The report of all inputs."""
    path, printed = tmp_path_factory.mktemp("report") / "report.html", io.StringIO()
    with contextlib.redirect_stderr(printed):
        assert cli.main(["report", "--out", str(path), *map(str, inputs_of(experiment))]) == 0
    assert printed.getvalue() == f"written: {path}\n"
    return path.read_text()


@pytest.mark.release
def test_the_page_shows_every_kind_of_input(page, experiment):
    found = Page(page)
    assert [*found.texts][1:] == [*KINDS]
    for kind, words in {
        "Results": ["1 model on the subset valid", "chrF2"],
        "Compression": ["parameters kept (%)", "Smaller versions of checkpoint_gated"],
        "Fewer and fewer heads": ["all_heads12", "30.00 (29.00..31.00)", "26.00 (25.00..27.00)", "total heads kept"],
        "Heads and neurons": ["20 of 24", "enc-self, head"],
        "Heads in common": ["by chance", "Jaccard"],
        "Functions of heads": ["checkpoint_gated", "positional"],
        "Importance of heads": ["magnitude of checkpoint_gated", "gradient-unit:sentence"],
        "Ablation": ["each head masked", "each head as the only one of its layer", "BLEU"],
        "Explanations": ["sentence 2", "</s>"],
        "Attention maps": ["sentence 1", "dec-enc layer 0 head 3", "</s>"],
    }.items():
        assert [word for word in words if word not in found.texts[kind]] == [], kind
    assert [kind for kind in KINDS if not found.figures.get(kind)] == [
        "Results",
        "Heads in common",
        "Functions of heads",
    ]
    assert "headgates report" in found.texts["Attention maps"]  # the last section is followed by the command


@pytest.mark.release
def test_numbers_are_those_of_the_files(page, experiment):
    [scores, _] = json.loads((experiment / "scores.json").read_text())
    found = Page(page).texts
    for value in (value for rows in scores["scores"].values() for row in rows for value in row):
        assert f"{value:.4f}" in found["Importance of heads"]
    [smaller, _] = json.loads((experiment / "compressed.json").read_text())
    assert (
        f"{smaller['parameters'][1]:,}" in found["Compression"] and f"{smaller['loss'][1]:.4f}" in found["Compression"]
    )
    evaluation = json.loads((experiment / "evaluation.json").read_text())
    assert f"{evaluation['scores']['BLEU']['score']:.2f} [" in found["Results"]


@pytest.mark.release
def test_the_page_loads_no_external_resources_and_runs_no_script(page):
    assert not Page(page).loads and not LOADED_BY_CSS.search(page) and "<script" not in page
    assert "default-src 'none'" in page and len(page.encode()) < 5 * 2**20
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    referred = set(re.findall(r"url\(#([^)]+)\)", page)) | set(re.findall(r'href="#([^"]+)"', page))
    assert referred and referred <= set(names)


def test_what_a_file_holds_is_escaped(tmp_path, headgates):
    hostile = "<script>alert(1)</script>"
    token = {"queries": [hostile], "keys": [hostile], "heads": [{"layer": 0, "head": 0, "gate": 1, "weights": [[1]]}]}
    data = {"format": "headgates.attention/1", "signature": hostile, "sentences": [{"enc-self": token}]}
    (tmp_path / "attention.json").write_text(json.dumps(data))
    sweep = json.loads(json.dumps(SWEEP).replace("all_heads12", hostile).replace("lagrangian", hostile))
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    headgates("report", "--out", tmp_path / "r.html", tmp_path / "attention.json", tmp_path / "sweep.json")
    page = (tmp_path / "r.html").read_text()
    assert hostile not in page and "&lt;script&gt;alert" in page


@pytest.mark.parametrize(
    "change, words",
    [
        ({"models": []}, "sweep.json lacks values"),
        ({"models": [{**SWEEP["models"][1], "BLEU": []}]}, "sweep.json lacks values"),
    ],
)
def test_incomplete_files_are_named(change, words, tmp_path, headgates):
    (tmp_path / "sweep.json").write_text(json.dumps({**SWEEP, **change}))
    error = one_line(headgates("report", "--out", tmp_path / "r.html", tmp_path / "sweep.json", code=2))
    assert words in error and not (tmp_path / "r.html").exists()


@pytest.mark.release
def test_a_page_that_exists_is_kept(tmp_path, experiment, headgates):
    (tmp_path / "r.html").write_text("mine")
    error = one_line(headgates("report", "--out", tmp_path / "r.html", experiment / "sweep.json", code=2))
    assert "r.html exists: choose another name, or pass --force" in error
    assert (tmp_path / "r.html").read_text() == "mine"
    headgates("report", "--out", tmp_path / "r.html", experiment / "sweep.json", "--force")
    assert "<html" in (tmp_path / "r.html").read_text()


def test_an_input_is_not_overwritten(tmp_path, headgates):
    path, other = tmp_path / "in.json", tmp_path / "other.json"
    for each in (path, other):
        each.write_text(json.dumps(SWEEP))
    assert "would replace the input" in one_line(headgates("report", "--out", path, path, "--force", code=2))
    error = one_line(headgates("report", "--out", path, other, "--force", code=2))
    assert "in.json: give a name that ends in .html" in error
    assert json.loads(path.read_text()) == SWEEP


@pytest.mark.release
def test_file_names_may_hold_any_bytes(tmp_path, experiment, headgates):
    """Formulas of matplotlib, and bytes that are not UTF-8."""
    folder, file = tmp_path / "a$x_{$b $\\frac{", tmp_path / os.fsdecode(b"sweep\xff.json")
    shutil.copytree(experiment / "gated", folder)
    shutil.copy(experiment / "sweep.json", file)
    headgates("report", "--out", tmp_path / "r.html", folder, experiment / "pruned.pt", file)
    assert "a$x_{$b $" in (tmp_path / "r.html").read_text()
