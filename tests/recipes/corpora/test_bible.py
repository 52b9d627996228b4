"""Verses and their word alignments (corpora/bible.py), and the table of error rates (results/alignment.py)."""

import json

import pytest

from commands import Refused
from corpora import bible
from results import alignment

GREEK = "id\ttext\nn40001001001\tΒίβλος\nn40001001002\tγενέσεως\nn40001002001\tἈβραὰμ\nn40001002002\tἐγέννησεν\n"
ENGLISH = "id\tsource_verse\ttext\texclude\n" + "".join(
    f"{number}\t{number[:8]}\t{word}\t{'' if word.isalpha() else 'y'}\n"
    for number, word in [
        *[("40001001001", "This"), ("40001001002", "book"), ("40001001003", ","), ("40001001004", "genealogy")],
        *[("40001002001", "Abraham"), ("40001002002", "begat"), ("40001002003", ".")],
    ]
)
LINKS = [
    (["n40001001001"], ["40001001001", "40001001002"]),  # "This book"
    (["n40001001002"], ["40001001004", "40001001003"]),  # the comma is excluded
    (["n40001002001", "n40001001002"], ["40001002001"]),  # the second one is of another verse
    (["n40001002002"], ["40001002002", "99999999999"]),
]


@pytest.fixture
def package(tmp_path):
    for name, content in (
        ("sources/SBLGNT.tsv", GREEK),
        ("eng/targets/BSB/nt_BSB.tsv", ENGLISH),
        ("eng/alignments/BSB/SBLGNT-BSB-manual.json", json.dumps(
            {"records": [{"source": source, "target": target} for source, target in LINKS]})),
    ):  # fmt: skip
        path = tmp_path / "package" / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path / "package"


def test_words_are_counted_without_punctuation_and_links_stay_within_a_verse(package, tmp_path):
    bible.main([str(package), str(tmp_path / "raw")])
    text = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "raw").iterdir()}
    assert text["train.el"] == ["Βίβλος γενέσεως", "Ἀβραὰμ ἐγέννησεν"]
    assert text["train.en"] == ["This book genealogy", "Abraham begat"]
    assert text["train.align"] == ["0-0 0-1 1-2", "0-0 1-1"]
    assert len(text["valid.en"]) == 2 and text["test.lines"] == []  # of two verses, none is left for the test


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(Refused, match="is not the unpacked wheel of bible-alignments"):
        bible.main([str(tmp_path), str(tmp_path / "raw")])


def test_error_rates_of_models_and_of_another_aligner(tmp_path, capsys):
    """AER of links that are all sure: 1 - 2 |A and S| / (|A| + |S|)."""
    corpus, folder = tmp_path / "corpus", tmp_path / "align"
    corpus.mkdir()
    folder.mkdir()
    (corpus / "test.align").write_text("0-0 0-1 1-2\n")
    (corpus / "test.lines").write_text("1\n")
    (tmp_path / "other.forward").write_text("5-5\n0-0 0-2\n")  # the first verse is not measured
    (tmp_path / "other.reverse").write_text("\n0-0 0-1 1-2\n")
    for name, rates in (("whole", [[0.1, 0.5, 0.2, 0.4, 0.3]]), ("half", [[0.6, None, 0.6, None, 0.6]])):
        heads = [[rate and {"words": {"alignment": {"rate": rate}}} for rate in layer] for layer in rates]
        for kind, aer in (("chosen", 1), ("best", 0.25), ("average", 0.5), ("alti", 0.75)):
            written = {"by": "dec-enc:0.1", "aer": aer, "precision": 0.5, "recall": None}
            content = {"heads": {"dec-enc": heads}, "written_alignments": written}
            (folder / f"{name}.{kind}.json").write_text(json.dumps(content))
    folders = [str(folder), str(folder)]
    alignment.main([str(corpus), str(tmp_path / "other"), *folders, "--models", "whole", "half"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2][:9] == ["whole", "5", "(5..5)", "4", "(4..4)", "25.0", "(25.0..25.0)", "50", "0"]
    assert rows[3][:5] == ["half", "3", "(3..3)", "2", "(2..2)"]  # heads 2 and 4 are left of 1, 2, 3, 4
    rates = [["60.0", "50", "33"], ["0.0", "100", "100"], ["50.0", "100", "33"], ["14.3", "75", "100"]]
    assert [row[2:] for row in rows[4:]] == rates
    alignment.main(["--by", str(folder / "whole.chosen.json")])
    assert capsys.readouterr().out == "dec-enc:0.1\n"
