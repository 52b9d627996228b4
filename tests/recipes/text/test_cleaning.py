"""Cleaning of parallel text, against a naive rewrite (text.clean)."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipes import call

pytest_plugins = ["support.recipes"]

REASONS = ["empty", "too long", "ratio", "in dev or test", "again"]


def write(prefix, pairs, end="\n"):
    """PREFIX.en and PREFIX.ru; the last line ends with `end`."""
    for language, side in zip(("en", "ru"), zip(*pairs, strict=True) if pairs else ([], []), strict=True):
        Path(f"{prefix}.{language}").write_bytes(("\n".join(side) + end if side else "").encode())


def read(prefix):
    sides = [Path(f"{prefix}.{language}").read_bytes().decode().split("\n") for language in ("en", "ru")]
    assert all(side.pop() == "" for side in sides)
    return list(zip(*sides, strict=True))


def run(folder, *options):
    return call("text.clean", f"{folder}/in", f"{folder}/out", "en", "ru", *options)


def table(text):
    """The rows of the table: {name: (number, share)}."""
    header, dashes, *rows = text.splitlines()
    assert header.split() == ["cleaning", "number", "share"] and set(dashes) == {"-", " "}
    cells = [row.rsplit(maxsplit=2) for row in rows]
    return {name: (int(number.replace(",", "")), share) for name, number, share in cells}


def naive(pairs, max_length=200, max_ratio=9, unique=False, held_out=()):
    """The pairs that stay, and why the others go."""
    left, gone = [], dict.fromkeys(REASONS, 0)
    for number, (source, target) in enumerate(pairs):
        one, other = (len(re.findall(r"\S+", text)) for text in (source, target))
        rules = {
            "empty": one == 0 or other == 0,
            "too long": one > max_length or other > max_length,
            "ratio": one > max_ratio * other or other > max_ratio * one,
            "in dev or test": (source, target) in held_out,
            "again": unique and (source, target) in pairs[:number],
        }
        reason = next((name for name, applies in rules.items() if applies), None)
        if reason:
            gone[reason] += 1
        else:
            left.append((source, target))
    return left, gone


# Few words, so that pairs come again; all sorts of blanks, those of other line ends among them.
SIDE = st.lists(st.sampled_from(["a", "b", " ", " ", "\t", "\r", "\u2028", "\u0085", "\u00a0", "é"]), max_size=12)
PAIRS = st.lists(st.tuples(SIDE.map("".join), SIDE.map("".join)), max_size=15)


@settings(max_examples=150)
@given(
    pairs=PAIRS,
    kept=PAIRS,
    max_length=st.integers(1, 6),
    max_ratio=st.sampled_from([1, 1.5, 2, 9]),
    unique=st.booleans(),
    end=st.sampled_from(["\n", ""]),
)
def test_cleaning_equals_a_naive_rewrite(pairs, kept, max_length, max_ratio, unique, end):
    if end == "" and pairs and "" in pairs[-1]:
        end = "\n"  # an empty line without its end is no line
    kept = kept + pairs[::4]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("builtins.print", lambda text, **options: said.append(text))
        write(f"{folder}/in", pairs, end)
        write(f"{folder}/dev", kept[::2])
        write(f"{folder}/test", kept[1::2])
        options = ["--max-length", max_length, "--max-ratio", max_ratio, *(["--unique"] if unique else [])]
        assert run(folder, *options, "--without", f"{folder}/dev", f"{folder}/test") == 0
        left, gone = naive(pairs, max_length, max_ratio, unique, kept)
        assert read(f"{folder}/out") == left
    counts = {"pairs": len(pairs), **{name: -number for name, number in gone.items()}, "left": len(left)}
    assert table(said[0]) == {name: (n, f"{n / max(len(pairs), 1):.2%}") for name, n in counts.items()}


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        *[(lengths, None) for lengths in ((200, 200), (9, 1), (1, 9), (198, 22))],
        *[(lengths, "ratio") for lengths in ((10, 1), (1, 10), (199, 22), (22, 199))],
        *[(lengths, "too long") for lengths in ((201, 200), (200, 201), (201, 1))],  # the first reason counts
        *[(lengths, "empty") for lengths in ((1, 0), (0, 1), (0, 201))],
    ],
)
def test_by_default_sentences_have_200_tokens_at_most_and_a_ratio_of_9(lengths, reason, tmp_path, capsys):
    pair = tuple(" ".join(["w"] * length) for length in lengths)
    write(tmp_path / "in", [("a", "б"), pair, ("c", "д")])
    assert run(tmp_path) == 0
    assert read(tmp_path / "out") == ([("a", "б"), ("c", "д")] if reason else [("a", "б"), pair, ("c", "д")])
    counts = table(capsys.readouterr().out)
    assert {name for name in REASONS if counts[name][0]} == ({reason} if reason else set())


def test_duplicates_are_compared_as_whole_pairs(tmp_path):
    """One side of a pair may come again, with another one beside it, and the two may be divided otherwise."""
    pairs = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("a", "x")]
    divided = [("a b", "y"), ("a", "b y"), ("a\tb", "y"), ("a", "b\ty"), ("A", "x")]
    pairs += divided
    write(tmp_path / "in", pairs)
    write(tmp_path / "dev", [("a", "y"), ("b", "none")])
    write(tmp_path / "test", [("b", "y")])
    assert run(tmp_path, "--unique", "--without", tmp_path / "dev", tmp_path / "test") == 0
    assert read(tmp_path / "out") == [("a", "x"), ("b", "x"), *divided]
    in_place = f"{tmp_path}/in", f"{tmp_path}/in", "en", "ru"
    assert call("text.clean", *in_place, "--without", tmp_path / "dev") == 0
    assert read(tmp_path / "in") == [pair for pair in pairs if pair != ("a", "y")]


@pytest.fixture
def before(tmp_path):
    """Outputs of an earlier run, which stay as they are if this one fails."""
    write(tmp_path / "out", [("old", "старое")])
    yield
    assert read(tmp_path / "out") == [("old", "старое")]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("english", "russian", "words"),
    [
        (b"a\n" * 1000, b"b\n" * 1001, ["has 1,000 lines in en and more in ru", "aligned"]),
    ],
)
def test_text_that_cannot_be_read_is_refused(english, russian, words, tmp_path, refuses, before):
    """As training text, and as text to leave out."""
    write(tmp_path / "good", [("a", "б")])
    (tmp_path / "odd.en").write_bytes(english)
    if russian is not None:
        (tmp_path / "odd.ru").write_bytes(russian)
    odd, good, out = (f"{tmp_path}/{name}" for name in ("odd", "good", "out"))
    refuses("text.clean", odd, out, "en", "ru", words=[odd, *words])
    refuses("text.clean", good, out, "en", "ru", "--without", odd, words=[odd, *words])
