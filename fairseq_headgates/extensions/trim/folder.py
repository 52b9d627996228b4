"""Binarised data with other dictionaries: the files of a folder of fairseq-preprocess, counted and renumbered."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from torch import Tensor

from fairseq_headgates.files import read_text
from fairseq_headgates.messages import Progress

# The name of a text without ending: that of the subset, then the languages of the pair and that of the text.
TEXT = re.compile(r"([^.]+)(?:\.(.+)-(.+)\.(\2|\3))?")
NO_TEXT = re.compile(r"[^.]+\.align\..*")  # word alignments


def dictionary_files(folder: Path) -> dict[str, Path]:
    """Return the dictionaries of a folder: dict.LANGUAGE.txt by the language, dict.txt by ""."""
    return {path.name[5:-4]: path for path in sorted(folder.glob("dict.*txt"))}


def texts(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the binarised texts of a folder: the path without ending, the subset, and the language, "" without one.

    Raise ValueError for other binarised files, except word alignments.
    """
    for index in sorted(folder.glob("*.idx")):
        prefix = index.with_suffix("")
        if found := TEXT.fullmatch(prefix.name):
            yield prefix, found[1], found[4] or ""
        elif not NO_TEXT.fullmatch(prefix.name):
            raise ValueError(f"{index} is not a file of fairseq-preprocess: remove it from the folder")


def is_of(subset: str, name: str) -> bool:
    """Return whether a subset is read from the files of this name. fairseq reads train1, train2, ... with train."""
    return subset == name or (subset == "train" and re.fullmatch(r"train\d+", name) is not None)


def read(prefix: Path) -> Sequence[Tensor]:
    """Return the sentences of a binarised text. Raise ValueError if it cannot be read."""
    lazy = "lazy" if indexed_dataset.infer_dataset_impl(str(prefix)) == "cached" else None  # reads what is asked for
    data = data_utils.load_indexed_dataset(str(prefix), None, lazy)
    if data is None:
        raise ValueError(f"cannot read {prefix}.idx: run fairseq-preprocess again")
    return data


def count(prefix: Path, counts: Tensor, progress: Progress) -> None:
    """Add to `counts` [V] how often each symbol occurs in a binarised text."""
    sentences = read(prefix)
    for i in progress(range(len(sentences))):
        tokens = sentences[i].long()
        counts.index_add_(0, tokens, torch.ones_like(tokens))


def renumber(prefix: Path, target: Path, numbers: Tensor, unknown: int, progress: Progress) -> tuple[int, int]:
    """Write a binarised text with `numbers[i]` for the symbol i, `unknown` for a removed one.

    Return how many tokens become unknown, and the number of all tokens.
    """
    sentences, lost, total = read(prefix), 0, 0
    builder = indexed_dataset.make_builder(f"{target}.bin", "mmap", vocab_size=int(numbers.max()) + 1)
    for i in progress(range(len(sentences))):
        before = sentences[i].long()
        after = numbers[before]
        lost += int((after.eq(unknown) & before.ne(unknown)).sum())
        total += len(after)
        builder.add_item(after)
    builder.finalize(f"{target}.idx")
    return lost, total


def copy_alignments(folder: Path, target: Path) -> None:
    """Copy the binarised files of a folder that are no texts: word alignments."""
    for path in folder.glob("*.align.*"):
        shutil.copy(path, target)


def dictionary_lines(path: Path, dictionary: Dictionary) -> list[str]:
    """Return the lines of the file of a dictionary, one for each symbol after the special ones.

    Raise ValueError if they are not the symbols of `dictionary`, or the first of them.
    """
    lines = read_text(str(path), "the dictionary", "run fairseq-preprocess again").rstrip("\n").split("\n")
    first = dictionary.nspecial
    if list(map(symbol_of, lines)) != dictionary.symbols[first : first + len(lines)]:
        raise ValueError(
            f"the symbols of {path} are not those of the model: give a folder with the languages of the model alone, "
            "and the options of the task as in training"
        )
    return lines


def symbol_of(line: str) -> str:
    """Return the symbol of a line: that, a blank and a number, and perhaps a mark by which it replaces another."""
    return line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1)[0]
