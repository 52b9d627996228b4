"""Text files of other systems: a byte order mark and CRLF make no difference, another encoding is one line."""

import gzip
import io
import json
from pathlib import Path

import pytest
from fairseq.data import Dictionary

import labelled
from fairseq_headgates.files import check_dictionary, decode, lines_of, read_standard_input, read_text
from fairseq_headgates.heads import parse_mask

MASK = '{"format": "headgates.heads/1",\n "enc-self": [[1, 0]]}\n'
LABELLED = "Schön\tja\nschlecht\tnein\n"
READERS = {  # one of the package, whose files are read in one place, and those of the recipes
    "mask": (MASK, parse_mask),
    "train.tsv": (LABELLED, lambda path: labelled.read(Path(path), 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_byte_order_marks_and_line_ends_do_not_change_what_is_read(name, tmp_path):
    text, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(text.encode())
    expected = read(str(path))
    assert expected
    for line_end in ("\n", "\r\n"):
        for mark in ("", "\ufeff"):
            path.write_bytes((mark + text.replace("\n", line_end)).encode())
            assert str(read(str(path))).replace(str(path), "") == str(expected).replace(str(path), "")


def test_other_encodings_are_refused_with_the_iconv_command(tmp_path):
    path = tmp_path / "mask"
    path.write_bytes(MASK.encode("utf-16"))
    with pytest.raises(ValueError, match="mask'? is UTF-16: convert it with iconv -f UTF-16 -t utf8"):
        parse_mask(str(path))
    path.write_bytes(MASK.encode() + "é".encode("latin1"))
    with pytest.raises(ValueError, match=r"mask'? is not UTF-8 in line \d+: .* iconv -f latin1 -t utf8"):
        parse_mask(str(path))


def test_compressed_text(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress("\ufeffä\r\n".encode()))
    assert read_text(str(path), "the text", "") == "ä\n"
    path.write_bytes(gzip.compress(b"a" * 1000))
    with pytest.raises(ValueError, match=r"\(it has more than 999 bytes\): give another"):
        read_text(str(path), "the text", "give another", largest=999)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"cannot read the text '.*x.gz' \(Compressed file ended .*\): give another"):
        read_text(str(path), "the text", "give another")


def test_only_a_line_feed_ends_a_line():
    """A token may be, or have, any other character that ends lines in some program."""
    text = "a\u2028b\x85c\x0cd\x1ce\n\n\xa0f\n"
    assert lines_of(decode(text.encode(), "x")) == ["a\u2028b\x85c\x0cd\x1ce", "", "\xa0f"]
    assert lines_of("") == [] and lines_of("\n") == [""] and lines_of("a") == ["a"]


def test_standard_input_is_utf8_in_every_locale(monkeypatch):
    def typed(data):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "ascii", "surrogateescape"))
        return read_standard_input()

    assert typed("\ufeffschön\r\n".encode()) == "schön\n"
    with pytest.raises(ValueError, match="standard input is not UTF-8 in line 2: convert it, .* iconv -f latin1"):
        typed("x\nsch\xf6n\n".encode("latin1"))


def test_the_byte_order_mark_of_a_dictionary_is_ignored(tmp_path, copied, on_toy):
    folder = copied()
    for path in folder.glob("dict.*.txt"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        first = path.read_text("utf-8-sig").split()[0]
    typed = tmp_path / "typed"
    typed.write_text(f"{first} {first}\n")
    result = json.loads(on_toy("attention", "--json", "--text", typed, data=folder, subset="test"))
    assert result["sentences"][0]["enc-self"]["keys"] == [first, first, "</s>"]
    plain = Dictionary.load(str(path))
    check_dictionary(plain)
    assert plain.symbols[plain.nspecial] == first and plain.index(first) == plain.nspecial
    before = list(plain.symbols)
    check_dictionary(plain)
    assert plain.symbols == before and check_dictionary(None) is None
