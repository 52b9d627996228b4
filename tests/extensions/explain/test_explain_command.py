"""`headgates explain` as a user runs it, on toy models."""

import json
import re
from xml.etree import ElementTree

import pytest
import torch
from fairseq import checkpoint_utils
from support.analysis import READ, one_line

from fairseq_headgates import relevance
from fairseq_headgates.cli import main as cli
from fairseq_headgates.extensions.explain.drawing import explanation_figure, explanation_page, explanation_tables
from fairseq_headgates.heads import Contributions
from fairseq_headgates.scores.options import EXPLANATIONS, HEAD_RULES


def test_the_methods_are_those_of_the_library():
    assert {*EXPLANATIONS} == {*relevance.RULES, *relevance.OTHERS} and {*HEAD_RULES} == {*EXPLANATIONS} - {"alti"}


@pytest.mark.cases(2)
@pytest.mark.parametrize("method", EXPLANATIONS)
def test_contributions_are_shares_of_relevance(method, on_toy, toy, gated_checkpoint):
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(gated_checkpoint)], {"data": str(toy.data)})
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    found = json.loads(on_toy("explain", "--json", "--lines", "3,1", "--method", method))
    assert found["format"] == "headgates.explanation/1" and found["lines"] == [3, 1]
    assert found["signature"].startswith(f"{method}|data:") and "split:valid|ckpt:" in found["signature"]
    for line, each in zip((3, 1), found["sentences"], strict=True):
        words, capitals = ((toy.data.parent / f"valid.{side}").read_text().splitlines()[line - 1].split()
                           for side in ("src", "tgt"))  # fmt: skip
        assert each["source"] == [*words, "</s>"] and each["prefix"] == ["</s>", *capitals]
        assert each["predicted"] == [*capitals, "</s>"] and each["instead_of"] is None
        assert each["positions"] == list(range(1, len(words) + 2))
        sample = dataset.collater([dataset[line - 1]])
        expected = relevance.explain(model, sample["net_input"], method, sample["target"])
        raw, shares = torch.cat([expected.source, expected.target], -1)[0], torch.tensor(each["contributions"])
        assert torch.allclose(shares, raw / raw.abs().sum(-1, keepdim=True), atol=1e-5)
        assert torch.allclose(torch.tensor(each["source_share"]), expected.source_share()[0], atol=1e-5)


def test_a_prediction_in_comparison_with_another_token(on_toy, toy):
    words = (toy.data.parent / "valid.tgt").read_text().splitlines()[0].split()
    other = next(letter for letter in "ABCDEFGH" if letter != words[1])
    options = ["explain", "--positions", "2", "--method", "epsilon"]
    (alone,) = json.loads(on_toy(*options, "--json"))["sentences"]
    (compared,) = json.loads(on_toy(*options, "--instead-of", other, "--json"))["sentences"]
    assert alone["predicted"] == compared["predicted"] == [words[1]] and alone["positions"] == [2]
    assert compared["instead_of"] == other
    assert len(compared["contributions"]) == 1 and alone["contributions"] != compared["contributions"]
    same = on_toy("explain", "--instead-of", words[1], "--positions", "2", code=2)
    assert f"prediction 2 is '{words[1]}' itself: choose other predictions with --positions" in one_line(same)


def test_tables_pictures_and_pages(on_toy, tmp_path):
    text = on_toy("explain", "--lines", "1,2", "--method", "alti")
    assert "sentence 2\n" in text and text.splitlines()[-1].startswith("alti|") and "</s>  |" in text
    for kind in ("svg", "html"):
        on_toy("explain", "--lines", "1,2", "--plot", tmp_path / f"x.{kind}")
        assert "entence 2" in (tmp_path / f"x.{kind}").read_text()
    assert "exists" in one_line(on_toy("explain", "--plot", tmp_path / "x.html", code=2))
    (tmp_path / "text").write_text("a b\nb\tB\n")
    typed = json.loads(on_toy("explain", "--text", tmp_path / "text", "--json"))
    assert typed["sentences"][1]["predicted"] == ["B", "</s>"] and "split" not in typed["signature"]


def test_a_picture_shows_what_the_table_shows(on_toy, tmp_path):
    rows = [line.split()[1:] for line in on_toy("explain").splitlines()[2:] if "|" in line.split()]
    on_toy("explain", "--plot", tmp_path / "x.svg")
    shown = [each.text for each in ElementTree.parse(tmp_path / "x.svg").iter() if each.tag.endswith("text")]
    assert {"prediction", "source", "source share", "target prefix"} <= {*shown}
    expected = [cell for row in rows for cell in row if cell not in ("|", "0")]
    assert len(rows) > 3 and [text for text in shown if re.fullmatch(r"-?\d+%?", text)] == expected


def test_unknown_tokens_of_a_text_are_warned_of(toy, gated_checkpoint, tmp_path, capsys):
    (tmp_path / "text").write_text("a b\tA\na ?!\tA\n")
    options = [toy.data, "--path", gated_checkpoint, *READ, "--text", tmp_path / "text"]
    assert cli.main(["explain", *map(str, options)]) == 0
    assert "text line 2 has a token not in the dictionary: give text tokenised" in one_line(capsys.readouterr().err)


def test_a_page_has_a_cell_for_each_contribution():
    each = Contributions([1, 2], ["<b>", "c"], ["a", "</s>"], ["<i>"], [[0.5, -0.25, 0.25], [1.0, 0.0, 0.0]], "<s>")
    page = explanation_page({1: each}, "data:<u>")
    cells = re.findall(r"<td class=\"shown(.*?)\".*?>(.*?)</td>", page)
    assert cells[:4] == [(" share", "75%"), ("", "50"), (" against", "-25"), (" prefix", "25")]
    assert cells[4:] == [(" share", "100%"), ("", "100"), ("", ""), (" prefix", "")]
    assert re.findall(r'scope="colgroup" colspan="(\d)".*?>(.*?)<', page) == [("2", "source"), ("1", "target prefix")]
    tags = ("<b>", "<i>", "<u>", "<s>", "<script", "src=", "href=")
    assert "&lt;b&gt;" in page and not any(tag in page for tag in tags)
    table = explanation_tables({1: each}).splitlines()
    assert table[0] == "instead of <s>" and table[1].split() == ["source", "a", "</s>", "|", "<i>"]
    assert table[3].split() == "<b> 75% 50 -25 | 25".split()
    many = Contributions([1] * 501, ["a"] * 501, ["a"] * 500, [], [[0.0] * 500] * 501)
    for draw in (explanation_figure, lambda found: explanation_page(found, "")):
        with pytest.raises(ValueError, match="250,500 contributions, and at most 250,000 are drawn"):
            draw({1: many})


@pytest.mark.parametrize(
    "options, words",
    [
        (["--positions", "0"], "--positions has 0: the sentence has the predictions 1 to "),
        (["--instead-of", "?!"], "--instead-of '?!' is not in the target dictionary"),
        (["--method", "lime"], "invalid choice: 'lime'"),
    ],
)
def test_wrong_options(options, words, on_toy):
    assert words in one_line(on_toy("explain", *options, code=2))
