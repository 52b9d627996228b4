"""Cleaning of parallel text, against a naive rewrite; and lowercasing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recipes import RECIPES

from text import clean

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
    return clean.main([f"{folder}/in", f"{folder}/out", "en", "ru", *map(str, options)])


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


def test_pairs_within_the_limits_are_kept(tmp_path, capsys):
    pairs = [("a b", "в г"), ("a b", "в г"), ("a", "в")]
    write(tmp_path / "in", pairs)
    assert run(tmp_path) == 0
    assert read(tmp_path / "out") == pairs
    counts = table(capsys.readouterr().out)
    assert counts == {
        "pairs": (3, "100.00%"), **dict.fromkeys(REASONS, (0, "0.00%")), "left": (3, "100.00%"),
    }  # fmt: skip


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
    counts = {name: number for name, (number, _) in table(said[0]).items()}
    assert counts == {"pairs": len(pairs), **{name: -number for name, number in gone.items()}, "left": len(left)}
    assert counts["pairs"] + sum(counts[name] for name in REASONS) == counts["left"]


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ((200, 200), None),
        ((201, 200), "too long"),
        ((200, 201), "too long"),
        ((9, 1), None),
        ((1, 9), None),
        ((10, 1), "ratio"),
        ((1, 10), "ratio"),
        ((198, 22), None),
        ((199, 22), "ratio"),
        ((22, 199), "ratio"),
        ((1, 0), "empty"),
        ((0, 1), "empty"),
        ((0, 201), "empty"),  # the first reason counts
        ((201, 1), "too long"),
    ],
)
def test_pairs_at_the_limits_are_kept(lengths, reason, tmp_path, capsys):
    pair = tuple(" ".join(["w"] * length) for length in lengths)
    write(tmp_path / "in", [("a", "б"), pair, ("c", "д")])
    assert run(tmp_path) == 0
    assert read(tmp_path / "out") == ([("a", "б"), ("c", "д")] if reason else [("a", "б"), pair, ("c", "д")])
    counts = table(capsys.readouterr().out)
    assert {name for name in REASONS if counts[name][0]} == ({reason} if reason else set())


@pytest.mark.parametrize(("ratio", "stays"), [("1.5", True), ("1.49", False)])
def test_a_ratio_may_be_a_fraction(ratio, stays, tmp_path):
    write(tmp_path / "in", [("a b c", "д е")])
    assert run(tmp_path, "--max-ratio", ratio) == 0
    assert len(read(tmp_path / "out")) == stays


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
    assert run(tmp_path, "--without", tmp_path / "dev") == 0
    assert read(tmp_path / "out") == [pair for pair in pairs if pair != ("a", "y")]


def test_cleaning_may_be_done_in_place(tmp_path):
    write(tmp_path / "in", [("a", ""), ("b", "c")])
    assert clean.main([f"{tmp_path}/in", f"{tmp_path}/in", "en", "ru"]) == 0
    assert read(tmp_path / "in") == [("b", "c")]


def test_cleaning_clean_text_changes_nothing(tmp_path):
    """Cleaning a second time changes nothing."""
    write(tmp_path / "in", [("a", "x"), ("a", "x"), ("", "y"), ("b " * 201, "z"), ("c", "u")])
    assert run(tmp_path, "--unique") == 0
    first = read(tmp_path / "out")
    assert clean.main([f"{tmp_path}/out", f"{tmp_path}/again", "en", "ru", "--unique"]) == 0
    assert read(tmp_path / "again") == first == [("a", "x"), ("c", "u")]


def test_empty_text_is_accepted(tmp_path, capsys):
    write(tmp_path / "in", [])
    assert run(tmp_path) == 0
    assert read(tmp_path / "out") == [] and set(table(capsys.readouterr().out).values()) == {(0, "0.00%")}


# --- what is refused ----------------------------------------------------------------------------------------------


def refused(capsys, code, *words):
    out, err = capsys.readouterr()
    assert code == 2 and out == "", err
    assert err.startswith("clean.py: ") and err.count("\n") == 1 and all(word in err for word in words), err


@pytest.fixture
def before(tmp_path):
    """Outputs of an earlier run, which have to stay as they are where this one fails."""
    write(tmp_path / "out", [("old", "старое")])
    yield
    assert read(tmp_path / "out") == [("old", "старое")]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("english", "russian"), [(1000, 1001), (1234, 1000), (0, 1)])
def test_sides_that_are_not_aligned(english, russian, tmp_path, capsys, before):
    (tmp_path / "in.en").write_text("a\n" * english)
    (tmp_path / "in.ru").write_text("б\n" * russian)
    less, short, long = (english, "en", "ru") if english < russian else (russian, "ru", "en")
    said = f"{tmp_path}/in has {less:,} lines in {short} and more in {long}", "aligned"
    refused(capsys, run(tmp_path), *said)
    write(tmp_path / "good", [("a", "б")])
    arguments = [f"{tmp_path}/good", f"{tmp_path}/out", "en", "ru", "--without", f"{tmp_path}/in"]
    refused(capsys, clean.main(arguments), *said)


@pytest.mark.parametrize("language", ["en", "ru"])
def test_a_missing_input_is_refused(language, tmp_path, capsys, before):
    """It is the input that is named, not the output."""
    write(tmp_path / "in", [("a", "б")])
    (tmp_path / f"in.{language}").unlink()
    refused(capsys, run(tmp_path), f"cannot read {tmp_path}/in.{language}", "No such file")
    write(tmp_path / "in", [("a", "б")])
    refused(capsys, run(tmp_path, "--without", tmp_path / "dev"), f"cannot read {tmp_path}/dev.en", "No such file")


def test_a_text_that_is_not_utf8_is_refused(tmp_path, capsys, before):
    (tmp_path / "in.en").write_bytes(b"a\ncaf\xe9\n")
    (tmp_path / "in.ru").write_text("б\nв\n")
    refused(capsys, run(tmp_path), f"{tmp_path}/in", "UTF-8")


def test_an_output_in_a_missing_folder_is_refused(tmp_path, capsys):
    write(tmp_path / "in", [("a", "б")])
    code = clean.main([f"{tmp_path}/in", f"{tmp_path}/none/out", "en", "ru"])
    refused(capsys, code, f"cannot write {tmp_path}/none/out", "choose another place")


def test_a_killed_run_leaves_no_output(tmp_path):
    """Nor half of one: the next run makes it."""
    pairs = [(f"a {n}", f"б {n}") for n in range(5000)]
    write(tmp_path / "in", pairs)
    child = os.fork()
    if child == 0:
        try:
            whole = clean.Cleaner.reason
            clean.Cleaner.reason = lambda self, source, target: (
                os.kill(os.getpid(), signal.SIGKILL) if source == "a 4000" else whole(self, source, target)
            )
            run(tmp_path)
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert not (tmp_path / "out.en").exists() and not (tmp_path / "out.ru").exists()
    assert run(tmp_path) == 0
    assert read(tmp_path / "out") == pairs


# --- lowercasing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_lowercasing_in_any_locale(locale):
    """Line for line, whatever else ends one elsewhere."""
    lines = ["ÀB Ёж", "", "ǅ İ ẞ", "a\rB", "\u2028X\u0085Y\x0bZ\x0c", "\ufeffBOM", "ΑΣ"]
    text = "\n".join(lines) + "\nNO END"
    command = [sys.executable, str(RECIPES / "lib" / "lowercase.py")]
    env = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.run(command, input=text.encode(), env=env, capture_output=True, check=True).stdout
    assert out.decode().split("\n") == [*(line.lower() for line in lines), "no end"]
