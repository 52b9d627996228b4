"""`headgates functions` as a user runs it, on toy models."""

import json
import re

import pytest
from support.analysis import FULL, READ, one_line
from support.commands import worker_arguments
from support.functions import conllu

from fairseq_headgates.checkpoints import load_checkpoint, prune_checkpoint, save_checkpoint
from fairseq_headgates.cli import main as cli


@pytest.fixture
def texts(toy):
    """The words of the validation set, source and target."""
    return [
        [line.split() for line in (toy.data.parent / f"valid.{side}").read_text().splitlines()]
        for side in ("src", "tgt")
    ]


@pytest.fixture
def annotated(texts, tmp_path):
    """Options with trees of both sides and an alignment: the target is the source in reverse."""
    links = tmp_path / "links"
    links.write_text("".join(" ".join(f"{i}-{len(s) - 1 - i}" for i in range(len(s))) + "\n" for s in texts[0]))
    trees = [conllu(tmp_path / f"{side}.conllu", text) for side, text in zip("st", texts, strict=True)]
    return ["--conllu", trees[0], "--target-conllu", trees[1], "--alignment", links]


@pytest.mark.parametrize("name", ["baseline", "mixed"])
def test_every_kind_of_checkpoint(name, on_toy, checkpoints, annotated, texts, tmp_path):
    out = tmp_path / "functions.json"
    text = on_toy("functions", *annotated, "--statistics", "--out", out, checkpoint=checkpoints[name])
    result = json.loads(out.read_text())
    assert result["format"] == "headgates.functions/1" and result["signature"] in text
    assert {attention_type: [len(row) for row in rows] for attention_type, rows in result["heads"].items()} == FULL
    words = sum(map(len, texts[0]))
    number = words - len(texts[0])  # pairs: every word but the last of a sentence
    tree = {"sentences": 30, "words": words, "matched_words": words}
    assert result["trees"]["source"] == {**tree, "pairs": 2 * number, "matched_pairs": 2 * number}
    assert result["trees"]["target"] == {**tree, "pairs": number, "matched_pairs": number}
    relations = result["relations"]
    assert relations["enc-self"]["nsubj to governor"] == {"count": number, "offset": 1, "baseline": 1}
    assert relations["dec-self"] == {"nsubj to dependent": {"count": number, "offset": -1, "baseline": 1}}
    assert relations["dec-enc"]["alignment"]["count"] == words
    assert f"{words} of {words} words found in the text" in text
    assert "enc-self (encoder self-attention): 0 of " in text and "entropy" in text
    entry = next(entry for entry in result["heads"]["dec-enc"][0] if entry)
    assert set(entry) == {"gate", "functions", "positional", "words", "statistics"}
    assert set(entry["statistics"]) == {"entropy", "confidence", "eos", "first", "monotonic"}
    assert result["options"] == {"positional": 90, "margin": 10, "rare": 50, "confidence": 95}


@pytest.mark.release
def test_the_number_of_processes_makes_no_difference(start, toy, gated_checkpoint, on_toy, annotated, tmp_path):
    alone = json.loads(on_toy("functions", "--json", *annotated))
    shared = tmp_path / "shared.json"
    common = ["functions", toy.data, "--path", gated_checkpoint, "--gen-subset", "valid", "--cpu", "--max-tokens", "40"]
    workers = [start("headgates", *common, *annotated, "--out", shared, *own) for own in worker_arguments(2)]
    outputs = [worker.finish().expect(0).out for worker in workers]
    assert outputs[0] and not outputs[1]
    found = json.loads(shared.read_text())
    assert found["trees"] == alone["trees"] and found["relations"] == alone["relations"]
    for attention_type, rows in alone["heads"].items():
        for row, others in zip(rows, found["heads"][attention_type], strict=True):
            for entry, other in zip(row, others, strict=True):
                assert entry["statistics"] == pytest.approx(other["statistics"], rel=1e-5)
                assert entry["words"] == other["words"] and entry["functions"] == other["functions"]
                assert entry["positional"] == other["positional"]


def test_several_checkpoints(on_toy, headgates, checkpoints):
    both = f"{checkpoints['baseline']}:{checkpoints['fixed']}"
    text = on_toy("functions", "--positional", "0", checkpoint=both)
    assert "heads (layer.head) with the function" in text
    kept, total = json.loads(headgates("show", "--path", checkpoints["fixed"], "--json"))["heads"]["total"]
    assert text.splitlines()[-1].split()[1:] == ["all", str(kept), "of", str(total), "0", "of", "0", "-"]
    results = json.loads(on_toy("functions", "--json", checkpoint=both))
    assert len(results) == 2


def test_scores_of_the_checkpoint(on_toy, annotated, checkpoints, tmp_path):
    scores = tmp_path / "scores.json"
    on_toy("score", "--method", "confidence,random", "--out", scores)
    text = on_toy("functions", *annotated, "--scores", scores)
    rows = [line.split() for line in text[text.index("scores of open heads") :].splitlines()[2:8]]
    assert [row[:2] for row in rows] == [[method, each] for method in ("confidence", "random") for each in FULL]
    assert f"\n{json.loads(scores.read_text())[0]['signature']}\n" in text


@pytest.mark.parametrize(
    "rows, signature, words",
    [
        ({"enc-self": [[1, 2, 3, None], [1] * 4]}, "", "enc-self layer 0 head 3 has no score"),
        ({"enc-self": [[1] * 4] * 2}, "updates:8", "the scores of m are of a model after 8 updates, and the"),
    ],
)
def test_scores_of_another_model(rows, signature, words, on_toy, checkpoints, tmp_path):
    table = {"format": "headgates.scores/1", "method": "m", "signature": signature, "scores": rows}
    (tmp_path / "scores.json").write_text(json.dumps(table))
    line = on_toy("functions", "--scores", tmp_path / "scores.json", checkpoint=checkpoints["baseline"], code=2)
    assert words in one_line(line)


@pytest.mark.release
def test_annotations_of_another_text(on_toy, texts, tmp_path):
    trees, links = tmp_path / "trees", tmp_path / "links"
    other = [["other"] * len(words) if i in (3, 7) else words for i, words in enumerate(texts[0])]
    line = one_line(on_toy("functions", "--conllu", conllu(trees, other), code=2))
    assert "2 trees of the source are not those of its sentences (number 4, 8)" in line
    line = one_line(on_toy("functions", "--conllu", conllu(trees, texts[0][1:]), code=2))
    assert "there are 29 source trees for 30 sentences" in line
    links.write_text("0-0\n" * 29)
    assert "there are 29 lines of word alignments for 30" in one_line(on_toy("functions", "--alignment", links, code=2))
    words = len(texts[0][0])
    for link, code in ((f"{words - 1}-0", 0), (f"{words}-0", 2)):
        links.write_text(f"{link}\n" + "0-0\n" * 29)
        done = on_toy("functions", "--alignment", links, code=code)
    assert f"the alignment of sentence 1 has {link}, but the sentence has {words} and {words} words" in one_line(done)


@pytest.mark.release
def test_alignments_are_written(on_toy, annotated, texts, tmp_path):
    """By contributions, a head, and the head that is best on given alignments."""
    found = {}
    for by in ("alti", "dec-enc:1.2", "best"):
        path, given = tmp_path / f"{by}.align", [] if by == "alti" else annotated[-2:]
        result = json.loads(on_toy("functions", "--write-alignments", path, "--align-by", by, *given, "--json"))
        found[by] = result["written_alignments"]
        lines = path.read_text().splitlines()
        assert [len(line.split()) for line in lines] == list(map(len, texts[1])) and found[by]["left_out"] == 0
    assert found["alti"] == {"by": "alti", "left_out": 0} and found["dec-enc:1.2"]["by"] == "dec-enc:1.2"
    heads = [entry for row in result["heads"]["dec-enc"] for entry in row]
    rates = [entry["words"]["alignment"]["rate"] for entry in heads]
    layer, head = divmod(rates.index(max(rates)), 4)
    assert found["best"]["by"] == f"dec-enc:{layer}.{head}"
    # One given link for each word: the share of them that is written is that rate.
    given = (tmp_path / "links").read_text().splitlines()
    right = sum(len({*line.split()} & {*links.split()}) for line, links in zip(lines, given, strict=True))
    assert right / sum(map(len, texts[0])) == pytest.approx(max(rates))
    text = on_toy("functions", "--write-alignments", tmp_path / "x", *annotated[-2:])
    assert re.search(r"^alignments by alti: 30 sentences$", text, re.MULTILINE)


@pytest.mark.release
def test_an_asterisk_means_the_heads_that_are_left(on_toy, gated_checkpoint, tmp_path):
    pruned, mask = tmp_path / "pruned.pt", {"dec-enc": [[0, 0, 0, 0], [0, 1, 0, 1]]}
    save_checkpoint(prune_checkpoint(load_checkpoint(str(gated_checkpoint)), mask), str(pruned))
    options = ["functions", "--no-rare", "--write-alignments", tmp_path / "x", "--force", "--json", "--align-by"]
    for by, expected in (
        ("dec-enc:1.*", "dec-enc:1.1,dec-enc:1.3"),
        ("dec-enc:*,dec-enc:1.3", "dec-enc:1.1,dec-enc:1.3"),
    ):
        assert json.loads(on_toy(*options, by, checkpoint=pruned))["written_alignments"]["by"] == expected
    for by in ("dec-enc:0.*", "dec-enc:1.0"):
        assert f"--align-by has {by}, which is removed" in one_line(on_toy(*options, by, checkpoint=pruned, code=2))


def test_sentences_that_are_too_long_keep_their_lines(on_toy, texts, tmp_path):
    shorter = ["--skip-invalid-size-inputs-valid-test", "--max-source-positions", "5", "--max-target-positions", "1024"]
    options = ["--write-alignments", tmp_path / "x", "--align-by", "dec-enc:0.1"]
    result = json.loads(on_toy("functions", *options, *shorter, "--json"))["written_alignments"]
    lines = (tmp_path / "x").read_text().splitlines()
    assert [len(line.split()) for line in lines] == [len(t) if len(t) < 5 else 0 for t in texts[1]]
    assert result["left_out"] == sum(len(t) >= 5 for t in texts[1]) > 0


def test_a_dictionary_without_a_mark_of_subwords_is_warned_of(annotated, toy, gated_checkpoint, capsys):
    """If words are needed, and the user does not say that tokens are words."""
    places = [toy.data, "--path", gated_checkpoint, "--gen-subset", "valid", *READ]
    warning = "the dictionary of the source and the target has none of the marks of subwords"
    for options, found in (([], warning), (["--post-process", "none"], "")):
        assert cli.main(list(map(str, ["functions", *places, *annotated[4:], *options]))) == 0
        err = capsys.readouterr().err
        assert found in one_line(err) if found else not err


@pytest.mark.parametrize(
    "options, words",
    [
        (["--relations", "nsubj"], "--relations needs trees: add --conllu FILE"),
        (["--positional", "101"], "'101' is not a percentage from 0 to 100"),
        (["--align-by", "alti"], "--align-by needs a file to write: add --write-alignments FILE"),
        (["--write-alignments", "x", "--align-by", "best"], "compares heads with word alignments: add --alignment"),
        (["--write-alignments", "x", "--align-by", "dec-enc:7.1"], "dec-enc has 2 layers of 4 heads"),
        (["--write-alignments", "x", "--align-by", "lime"], "is 'lime': it must be heads such as dec-enc:1.3"),
    ],
)
def test_wrong_options(options, words, on_toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in one_line(on_toy("functions", *options, code=2)) and not (tmp_path / "x").exists()
