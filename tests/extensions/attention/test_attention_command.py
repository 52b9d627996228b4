"""`headgates attention` as a user runs it, on toy models."""

import io
import json
import re
from xml.etree import ElementTree

import pytest
import torch
from fairseq import checkpoint_utils
from support.analysis import READ, one_line

from fairseq_headgates import observe
from fairseq_headgates.cli import main as cli
from fairseq_headgates.drawing import text as report_text
from fairseq_headgates.extensions.attention.drawing import attention_figure, attention_page
from fairseq_headgates.heads import AttentionMap, HeadId, parse_heads

SIZES = {"enc-self": (2, 4), "dec-enc": (2, 4)}
LOADS = re.compile(r"\s(src|href)\s*=")


def test_heads_are_parsed():
    assert parse_heads("dec-enc:1.3, enc-self:0.2,dec-enc:1.3", SIZES) == [
        HeadId("enc-self", 0, 2),
        HeadId("dec-enc", 1, 3),
    ]
    assert parse_heads("enc-self:1.*", SIZES) == [HeadId("enc-self", 1, i) for i in range(4)]
    assert len(parse_heads("dec-enc:*", SIZES)) == 8 and len(parse_heads("all", SIZES)) == 16


@pytest.mark.parametrize(
    "text, words",
    [
        ("enc-self", "'enc-self': it must be TYPE:LAYER.HEAD, TYPE:LAYER.* or TYPE:*"),
        ("enc-self:*.1", "it must be TYPE:LAYER.HEAD"),
        ("dec-self:0.0", "but only enc-self, dec-enc can be named"),
        ("enc-self:0.4", "enc-self has 2 layers of 4 heads, counted from 0"),
    ],
)
def test_heads_that_do_not_exist(text, words):
    with pytest.raises(ValueError) as error:
        parse_heads(text, SIZES)
    assert words in str(error.value)


def test_the_weights_are_those_of_the_model(on_toy, toy, gated_checkpoint):
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(gated_checkpoint)], {"data": str(toy.data)})
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    result = json.loads(on_toy("attention", "--json", "--lines", "3,1"))
    assert result["lines"] == [3, 1]
    assert result["format"] == "headgates.attention/1" and "split:valid|ckpt:" in result["signature"]
    for line, types in zip((3, 1), result["sentences"], strict=True):
        sample = dataset.collater([dataset[line - 1]])
        with observe(model.eval()) as seen, torch.no_grad():
            model(**sample["net_input"])
        words = (toy.data.parent / "valid.src").read_text().splitlines()[line - 1].split()
        capitals = (toy.data.parent / "valid.tgt").read_text().splitlines()[line - 1].split()
        assert types["enc-self"]["keys"] == types["enc-self"]["queries"] == [*words, "</s>"]
        assert types["dec-self"]["keys"] == types["dec-self"]["queries"] == ["</s>", *capitals]
        assert types["dec-enc"]["queries"] == [*capitals, "</s>"] and types["dec-enc"]["keys"] == [*words, "</s>"]
        for attention_type, of_type in types.items():
            assert len(of_type["heads"]) == 8
            for entry in of_type["heads"]:
                expected = seen[attention_type][entry["layer"]].weights[0, entry["head"]]
                assert torch.allclose(torch.tensor(entry["weights"]), expected, atol=1e-6)


@pytest.mark.release
def test_sentences_of_a_file_and_of_standard_input(on_toy, toy, tmp_path, monkeypatch):
    data = json.loads(on_toy("attention", "--json", "--lines", "2"))["sentences"]
    pair = "\t".join((toy.data.parent / f"valid.{side}").read_text().splitlines()[1] for side in ("src", "tgt"))
    path = tmp_path / "text"
    path.write_text(f"{pair}\n\n{pair.partition(chr(9))[0]}\n", encoding="utf-8-sig", newline="\r\n")
    typed = json.loads(on_toy("attention", "--json", "--text", path))
    assert len(typed["sentences"]) == 2 and typed["lines"] == [1, 3] and "split" not in typed["signature"]
    for attention_type, of_type in data[0].items():
        assert typed["sentences"][0][attention_type]["queries"] == of_type["queries"]
        for a, b in zip(of_type["heads"], typed["sentences"][0][attention_type]["heads"], strict=True):
            assert torch.allclose(torch.tensor(a["weights"]), torch.tensor(b["weights"]), atol=1e-6)
    translated = typed["sentences"][1]
    assert translated["enc-self"]["keys"] == data[0]["enc-self"]["keys"]
    assert translated["dec-enc"]["queries"][-1] == "</s>"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes()), "ascii"))
    assert json.loads(on_toy("attention", "--json", "--text", "-"))["sentences"] == typed["sentences"]


@pytest.mark.release
def test_closed_and_removed_heads_are_marked(on_toy, headgates, checkpoints, tmp_path):
    shown = json.loads(headgates("show", "--path", checkpoints["mixed"], "--json"))["gate"]["enc-self"]
    result = json.loads(on_toy("attention", "--json", "--heads", "enc-self:*", checkpoint=checkpoints["mixed"]))
    heads = result["sentences"][0]["enc-self"]["heads"]
    assert [entry["gate"] or 0 for entry in heads] == [gate for row in shown for gate in row]
    for entry in heads:
        assert (entry["gate"] is None) == (entry["weights"] is None)
    text = on_toy("attention", "--heads", "enc-self:*", checkpoint=checkpoints["mixed"])
    assert text.count("(removed)") == sum(entry["gate"] is None for entry in heads)
    assert text.count(", closed)") == sum(entry["gate"] == 0 for entry in heads)
    page = tmp_path / "maps.html"
    on_toy("attention", "--heads", "enc-self:*", "--plot", page, checkpoint=checkpoints["mixed"])
    found = page.read_text(encoding="utf-8")
    assert found.count("<figure") == 8 and not LOADS.search(found) and "<script" not in found
    assert found.count("<table") == sum(entry["weights"] is not None for entry in heads)


def test_pictures(on_toy, tmp_path):
    options = ["attention", "--heads", "enc-self:0.0,dec-enc:1.*", "--lines", "1,2"]
    on_toy(*options, "--plot", tmp_path / "maps.svg", "--out", tmp_path / "maps.json")
    texts = [each.text or "" for each in ElementTree.parse(tmp_path / "maps.svg").iter() if each.tag.endswith("text")]
    assert sum("dec-enc layer 1 head 3" in text for text in texts) == 2 and texts.count("query") == 10
    sentences = json.loads((tmp_path / "maps.json").read_text())["sentences"]
    rows = [row for types in sentences for each in types.values() for head in each["heads"] for row in head["weights"]]
    percent = [round(100 * weight) for row in rows for weight in row if weight >= 0.1]
    assert sorted(int(text) for text in texts if text.isdecimal()) == sorted(percent)
    assert "exists" in one_line(on_toy("attention", "--plot", tmp_path / "maps.svg", code=2))


@pytest.mark.release
def test_sentences_are_numbered_as_in_the_data_or_text(on_toy, headgates, tmp_path):
    """Those of the data, and the line numbers of a text with blank lines: in tables, pictures, pages and reports."""
    text = tmp_path / "text"
    text.write_text("\na b\tB A\n\n\nb\tB\n")
    for options, numbers in ((["--lines", "4,2"], (4, 2)), (["--text", text], (2, 5))):
        chosen = [*options, "--heads", "enc-self:0.0"]
        files = [tmp_path / f"{numbers[0]}.{kind}" for kind in ("json", "svg", "html", "report.html")]
        printed = on_toy("attention", *chosen)
        on_toy("attention", *chosen, "--out", files[0], "--plot", files[1])
        on_toy("attention", *chosen, "--plot", files[2])
        headgates("report", "--out", files[3], files[0])
        for found in (printed, *(file.read_text() for file in files[1:])):
            assert list(dict.fromkeys(map(int, re.findall(r"[sS]entence (\d+)", found)))) == list(numbers)


@pytest.mark.parametrize(
    "content, words",
    [
        (
            b"a\tA\nb\tB\tCC-BY 2.0 (France)\n",
            "text line 2 has 3 tab-separated columns, at most 2 (SOURCE, TARGET) are allowed: ",
        ),
        (
            "schön\n".encode("latin1"),
            "text' is not UTF-8 in line 1: convert it, for example with iconv -f latin1 -t utf8",
        ),
        (b"\n \n", "has no sentence: give one sentence per line"),
    ],
)
def test_texts_that_are_refused(content, words, on_toy, tmp_path):
    (tmp_path / "text").write_bytes(content)
    assert words in one_line(on_toy("attention", "--text", tmp_path / "text", code=2))


def test_a_plot_without_a_font_for_its_tokens_warns(copied, gated_checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report_text, "FALLBACK", [])
    folder = copied()
    for path in folder.glob("dict.*.txt"):
        path.write_text(path.read_text().replace("a ", "中文 ").replace("b ", "🙂 "))
    (tmp_path / "typed").write_text("中文 🙂\n")
    options = [folder, "--path", gated_checkpoint, "--gen-subset", "test", *READ, "--text", tmp_path / "typed"]
    options += ["--heads", "enc-self:0.0", "--plot", tmp_path / "maps.png"]
    assert cli.main(["attention", *map(str, options)]) == 0
    assert capsys.readouterr().err == (
        f"headgates attention: warning: {tmp_path}/maps.png: Glyph 20013 (\\N{{CJK UNIFIED IDEOGRAPH-4E2D}}) missing "
        f"from font(s) DejaVu Sans; an .svg file shows it\nwritten: {tmp_path}/maps.png\n"
    )


def test_tokens_are_escaped_in_html_pages():
    shown = AttentionMap(HeadId("enc-self", 0, 0), 1.0, ["<b>", "$x_1"], ["a", "</s>"], [[0.5, 0.5], [1.0, 0.0]])
    page = attention_page({1: [shown]}, "data:<i>")
    assert "&lt;b&gt;" in page and "<b>" not in page and "<i>" not in page and "</s>" not in page


def test_maps_that_are_too_large():
    tokens = ["a"] * 501
    shown = AttentionMap(HeadId("enc-self", 0, 0), 1.0, tokens, tokens, [[0.0] * 501] * 501)
    for draw in (attention_figure, lambda maps: attention_page(maps, "")):
        with pytest.raises(ValueError, match="251,001 cells, and at most 250,000 are drawn: choose fewer heads"):
            draw({1: [shown]})


def test_a_subset_without_target_is_translated(on_toy, copied):
    folder = copied()
    for path in folder.glob("test.src-tgt.tgt.*"):
        path.unlink()
    pair = ["--source-lang", "src", "--target-lang", "tgt"]
    result = json.loads(on_toy("attention", "--json", *pair, data=folder, subset="test"))
    assert result["sentences"][0]["dec-enc"]["queries"][-1] == "</s>"


def test_sentences_that_the_model_cannot_read(on_toy, tmp_path):
    text = tmp_path / "text"
    text.write_text("a " * 1100 + "\n")
    assert "the source of a sentence has 1101 tokens: the model allows 1024" in one_line(
        on_toy("attention", "--text", text, code=2)
    )


@pytest.mark.parametrize(
    "options, words",
    [
        (["--lines", "31"], "--lines has 31: 'valid' has the sentences 1 to 30"),
        (["--lines", "x"], "'x' is not a list of line numbers such as 1,5"),
        (["--lines", "1", "--text", "-"], "--lines has no effect with --text"),
        (["--sentences", "3"], "--sentences"),
    ],
)
def test_wrong_options(options, words, on_toy):
    assert words in one_line(on_toy("attention", *options, code=2))
