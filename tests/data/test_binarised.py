"""Files of binarised data: their names, languages, sizes and digest."""

import numpy
import pytest
import torch
from fairseq.data.indexed_dataset import IndexedDatasetBuilder, MMapIndexedDatasetBuilder

from fairseq_headgates.data.binarised import check_sizes, digest, language_pair, subset_files

SENTENCES = [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 13, 2]]


def build(folder, kind="mmap", name="valid.de-en.de", sentences=SENTENCES):
    builder = {
        "mmap": lambda path: MMapIndexedDatasetBuilder(path, dtype=numpy.uint16),
        "int64": lambda path: MMapIndexedDatasetBuilder(path, dtype=numpy.int64),
        "legacy": IndexedDatasetBuilder,
    }[kind](str(folder / f"{name}.bin"))
    for sentence in sentences:
        builder.add_item(torch.tensor(sentence, dtype=torch.int32))
    builder.finalize(str(folder / f"{name}.idx"))
    return folder / f"{name}.idx", folder / f"{name}.bin"


def check(folder):
    check_sizes(subset_files(str(folder), "valid", ["de-en.de", "de-en.en"]))


@pytest.mark.parametrize(
    ("pair", "file"), [(("pt.BR", "zh-CN"), "test.pt.BR-zh-CN.pt.BR.bin"), (None, "train.zh-TW-en.en.idx")]
)
def test_languages_of_any_name_are_found(pair, file, tmp_path):
    for name in ("dict.zh-CN.txt", "dict.en.txt", "dict.pt.BR.txt", "dict.en_XX.txt", "dict.zh.txt", file):
        (tmp_path / name).touch()
    assert language_pair(str(tmp_path)) == pair
    (tmp_path / "test.en-zh.en.idx").touch()
    assert language_pair(str(tmp_path), *(pair or ())) == (pair or ("en", "zh"))


@pytest.mark.parametrize("kind", ["mmap", "int64", "legacy"])
def test_complete_data_is_accepted(kind, tmp_path):
    build(tmp_path, kind)
    build(tmp_path, kind, "valid.de-en.en", [[3, 2], [4, 2], [2]])
    (tmp_path / "valid.de-fr.fr.idx").write_bytes(b"of another pair")
    check(tmp_path)
    (tmp_path / "valid.de-en.den.idx").write_bytes(b"of another language")
    files = subset_files(str(tmp_path), "valid", ["de-en.de", "de-en.en"])
    assert [path.name.removeprefix("valid.de-en.") for path in files] == ["de.bin", "de.idx", "en.bin", "en.idx"]
    assert subset_files(str(tmp_path / "x"), "valid") == subset_files(str(tmp_path), "/nowhere/valid") == []
    assert subset_files(str(tmp_path), "va\0lid") == []
    assert subset_files("/nowhere", str(tmp_path / "valid"), ["de-en.de", "de-en.en"]) == files  # as fairseq joins them


def test_an_empty_subset_is_accepted(tmp_path):
    build(tmp_path, sentences=[])
    check(tmp_path)


@pytest.mark.parametrize("kind", ["mmap", "int64", "legacy"])
def test_data_of_another_size_is_refused(kind, tmp_path):
    _, data = build(tmp_path, kind)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"bin has {data.stat().st_size} bytes, its index describes"):
        check(tmp_path)


def test_files_that_do_not_belong_together(tmp_path):
    _, data = build(tmp_path)
    build(tmp_path, name="valid.de-en.en", sentences=SENTENCES[:2])
    with pytest.raises(ValueError, match="numbers of sentences differ: 3 in valid.de-en.de.idx, 2 in valid.de-en.en"):
        check(tmp_path)
    data.unlink()
    with pytest.raises(FileNotFoundError, match="valid.de-en.de.bin"):
        check(tmp_path)


def test_a_digest_is_of_the_content(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        build(tmp_path / name, sentences=SENTENCES if name != "c" else [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 14, 2]])
    found = [digest(subset_files(str(tmp_path / name), "valid")) for name in ("a", "b", "c")]
    assert found[0] == found[1] != found[2]
    files = subset_files(str(tmp_path / "a"), "valid")
    assert digest(files) != digest(reversed(files)) and digest([]) != found[0]
