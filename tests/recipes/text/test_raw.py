"""Raw text: what a recipe refuses before anything runs (text.raw), and how it reads lines (text.lines, common.sh)."""

import gzip
import hashlib
import os
import subprocess
import sys

import pytest
from support.recipes import RECIPES, call, shell

pytest_plugins = ["support.recipes"]
NAMES = ("train.en", "valid.en")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train.en").write_text("a\n\n")
    (tmp_path / "raw" / "valid.en.gz").write_bytes(gzip.compress("ä".encode()))
    return tmp_path / "raw"


def recorded(path):
    return f"{path.name}: {path.stat().st_size} bytes, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def test_other_files_are_refused_once_the_text_is_made_and_before_that_replace_it(folder, tmp_path, refuses):
    record, model = tmp_path / "text" / "raw.txt", tmp_path / "model.pt"
    model.write_bytes(b"\xff weights")
    begun = record.with_name("raw.txt.begun")
    command = ["text.raw", folder, record, *NAMES, "--files", model]
    assert call(*command) == 0 and not record.parent.exists()
    for content in ("b\n\n", "c\n\n", "c\n\n"):
        (folder / "train.en").write_text(content)
        other = begun.exists() and recorded(folder / "train.en") not in begun.read_text()
        assert call(*command, "--begin") == 0
        assert begun.read_text() == "".join(map(recorded, (folder / "train.en", folder / "valid.en.gz", model)))
        made = record.with_name("train.tok.en")
        assert not (other and made.exists())
        made.touch()
    begun.rename(record)
    assert call(*command) == 0
    for path, content in ((model, b"\xff weighty"), (folder / "train.en", b"d\n\n")):  # of the same size
        before, size = path.read_bytes(), path.stat().st_size
        path.write_bytes(content)
        words = [f"OUT_DIR was made from other files ({path.name}: {size} bytes)", f"RAW_DIR={folder}", "take another"]
        refuses(*command, words=words)
        path.write_bytes(before)
    model.unlink()
    refuses(*command, words=[f"{model} is missing: CHECKPOINT needs its BPE codes"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.en", None, ["train.en[.gz] is missing", "needs train.en, valid.en"]),
        ("train.en", b" \n\n", ["train.en[.gz] has no text"]),
        ("train.en", b"a\nsch\xf6n\n", ["train.en[.gz] is not UTF-8: convert it, for example with iconv -f latin1"]),
        ("valid.en.gz", gzip.compress(b"sch\xf6n", mtime=0), ["valid.en[.gz] is not UTF-8"]),
        ("valid.en.gz", gzip.compress(b"a" * 99, mtime=0)[:-9], ["valid.en[.gz]", "cannot be read"]),
    ],
)
def test_text_that_cannot_be_used_is_refused(name, content, words, folder, tmp_path, refuses):
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    refuses("text.raw", folder, tmp_path / "raw.txt", *NAMES, words=[str(folder), *words])


def test_files_that_are_the_same_are_named(folder, tmp_path, capsys):
    command = ["text.raw", folder, tmp_path / "raw.txt", *NAMES, "test.en"]
    for content, warnings in (("b\n\n", 0), ("a\n\n", 1)):  # of the same size
        (folder / "test.en").write_text(content)
        assert call(*command) == 0
        said = capsys.readouterr().err
        assert said.count(f"warning: {folder / 'train.en'} and {folder / 'test.en'} are the same") == warnings, said


@pytest.mark.parametrize("packed", [False, True])
def test_byte_order_marks_and_line_ends_of_other_systems_are_removed(packed, tmp_path):
    """The shell function that reads references and the text of language models."""
    path, data = tmp_path / "a text", "\ufeffschön\r\n\ufeffx\r\n".encode()
    path.with_name("a text.gz" if packed else "a text").write_bytes(gzip.compress(data) if packed else data)
    assert shell(f'eval "$(reading "{path}")"').stdout == "schön\n\ufeffx\n"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
@pytest.mark.parametrize(("form", "change"), [("lowercase", str.lower), ("words", lambda text: " ".join(text.split()))])
def test_lines_end_at_line_feeds_only_in_any_locale(form, change, locale):
    lines = ["ÀB  Ёж ", "", "ǅ İ ẞ", "a\rB", "\u2028X\u0085Y\x0bZ\x0c", "\ufeffBOM", "ΑΣ"]
    env = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, str(RECIPES / "lib"), "text.lines", form]
    text = "\n".join([*lines, "NO END"]).encode()
    out = subprocess.run(command, input=text, env=env, capture_output=True, check=True).stdout
    assert out.decode().removesuffix("\n").split("\n") == [*map(change, lines), change("NO END")]
