"""Binarised data with other dictionaries: the files of a folder of fairseq-preprocess, counted and renumbered."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from torch import Tensor

from fairseq_headgates.files import read_text

CHUNK = 2**22  # tokens that are counted at a time


def dictionary_files(folder: Path) -> dict[str, Path]:
    """Return the dictionaries of a folder: dict.LANGUAGE.txt by the language, dict.txt by ""."""
    return {path.name[5:-4]: path for path in sorted(folder.glob("dict.*txt"))}


def token_files(folder: Path, subset: str | None = None) -> Iterator[tuple[Path, str]]:
    """Yield the binarised texts of a folder, of one subset or of all: the path without ending, and the language."""
    languages = dictionary_files(folder)
    for index in sorted(folder.glob("*.idx")):
        prefix = index.with_suffix("")
        of_text = [language for language in languages if language and prefix.name.endswith(f".{language}")]
        language = max(of_text, key=len, default="")
        monolingual = "" in languages and "." not in prefix.name
        if (of_text or monolingual) and subset in (None, prefix.name.partition(".")[0]):
            yield prefix, language


def read(prefix: Path) -> Sequence[Tensor]:
    """Return the sentences of a binarised text. Raise ValueError if it cannot be read."""
    data = data_utils.load_indexed_dataset(str(prefix), None, None)
    if data is None:
        raise ValueError(f"cannot read {prefix}.idx: run fairseq-preprocess again")
    return data


def count(prefix: Path, symbols: int, progress: Callable[[Iterable], Iterable]) -> Tensor:
    """Return how often each symbol occurs in a binarised text: [symbols]."""
    counts, waiting, number = torch.zeros(symbols, dtype=torch.long), [], 0
    sentences = read(prefix)
    for i in progress(range(len(sentences))):
        waiting.append(sentences[i])
        number += len(waiting[-1])
        if number > CHUNK or i == len(sentences) - 1:
            counts += torch.cat(waiting).long().bincount(minlength=symbols)
            waiting, number = [], 0
    return counts


def renumber(
    prefix: Path, target: Path, numbers: Tensor, unknown: int, progress: Callable[[Iterable], Iterable]
) -> tuple[int, int]:
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


def dictionary_lines(path: Path) -> list[str]:
    """Return the lines of the file of a dictionary, one for each symbol after the special ones."""
    return read_text(str(path), "the dictionary", "run fairseq-preprocess again").rstrip("\n").split("\n")


def symbol_of(line: str) -> str:
    """Return the symbol of a line: that, a blank and a number, and perhaps a mark by which it replaces another."""
    return line.removesuffix(" #fairseq:overwrite").rsplit(" ", 1)[0]


def write_dictionary(path: Path, target: Path, dictionary: Dictionary, kept: Tensor) -> None:
    """Write a file of a dictionary without the lines of removed symbols.

    Raise ValueError if it does not have the symbols of `dictionary`, or the first of them.
    """
    lines, special = dictionary_lines(path), dictionary.nspecial
    if list(map(symbol_of, lines)) != dictionary.symbols[special : special + len(lines)]:
        raise ValueError(f"{path} does not begin with the symbols of the task: check --langs and --fixed-dictionary")
    left = [lines[number - special] for number in kept.tolist() if special <= number < special + len(lines)]
    target.write_text("".join(f"{line}\n" for line in left), encoding="utf-8")


def write_pieces(path: Path, target: Path) -> None:
    """Write the symbols of a dictionary as `spm_encode --vocabulary` reads them: with a tab before their number."""
    target.write_text("".join(f"{symbol_of(line)}\t1\n" for line in dictionary_lines(path)), encoding="utf-8")


def copy_others(folder: Path, target: Path) -> None:
    """Copy what is no text of the binarised files of a folder, such as word alignments."""
    texts = {prefix.name for prefix, _ in token_files(folder)}
    for path in folder.glob("*.*"):
        if path.suffix in (".bin", ".idx") and path.with_suffix("").name not in texts:
            shutil.copy(path, target)
