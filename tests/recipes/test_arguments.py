"""Bad arguments and inputs of the recipes' programs: one line with the value and the rule, exit code 2."""

import sys

import pytest


def program(name):
    return __import__(name)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("average", [], "required: RUN_DIR, OUTPUT, --last"),
        ("average", ["a", "b", "--last", "0"], "argument --last: '0' must be a whole number, 1 or more"),
        ("average", ["a", "b", "--last", "x"], "'x' must be"),
        ("batches", [], "required: DATA_BIN, SRC, TGT, --max-tokens"),
        ("batches", ["a", "b", "c", "--max-tokens", "0"], "argument --max-tokens: '0' must be"),
        ("batches", ["a", "b", "c", "--max-tokens", "9", "--tokens", "0"], "argument --tokens"),
        ("batches", ["a", "b", "c", "--max-tokens", "9", "--workers", "0"], "argument --workers"),
        ("clean", ["a"], "required"),
        ("clean", ["a", "b", "en", "de", "--max-length", "-1"], "argument --max-length"),
        ("clean", ["a", "b", "en", "de", "--max-ratio", "nan"], "argument --max-ratio"),
        ("clean", ["a", "b", "en", "de", "--nope"], "unrecognized arguments: --nope"),
        ("corpora", ["get"], "argument command: invalid choice: 'get'"),
        ("corpora", ["fetch", "wmt-en-ru"], "fetch takes 1 folders after the collection, got 0"),
        ("plan", ["a", "--every", "0"], "argument --every: '0' must be"),
        ("plan", ["a", "--tokens", "0"], "argument --tokens: '0' must be"),
        ("plan", ["a", "--gated", "-1"], "argument --gated"),
        ("pretrained", ["a"], "required: FOLDER"),
        ("subtitles", ["a"], "required"),
        ("subtitles", ["a", "b", "c", "en", "ru", "--overlap", "x"], "argument --overlap"),
    ],
)
def test_arguments_of_a_helper_are_refused_in_one_line(name, arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        program(name).main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and len(said.splitlines()) == 1 and words in said, said


def test_batches_too_small_for_any_sentence_are_refused(toy, capsys):
    assert program("batches").main([str(toy.data), "src", "tgt", "--max-tokens", "1"]) == 2
    assert "fits into --max-tokens 1: the shortest has" in capsys.readouterr().err
