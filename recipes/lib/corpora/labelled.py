"""Read labelled sentences, or pairs of them, and write text and classes to files of their own.

    python3 recipes/lib corpora.labelled RAW_DIR TEXT_DIR

RAW_DIR has {train,valid,test}.tsv, plain or .gz; valid may also be called dev. Each line is `text<TAB>label` or
`text<TAB>text2<TAB>label`. The program writes TEXT_DIR/SPLIT.raw.input0, SPLIT.raw.input1 (of pairs) and SPLIT.label,
where a label is a number from 0, and labels.txt, the labels in the order of their numbers, one a line. It prints how
often each label occurs. The lines of the training set are shuffled, always in the same way, because scores of heads are
computed on its beginning.
"""

from __future__ import annotations

import argparse
import gzip
import random
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from commands import ArgumentParser, Refused, quoted
from corpora.archives import one_line
from fairseq_headgates.files import decode, lines_of, write_whole

SPLITS = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}
FORM = "give text<TAB>label, or text<TAB>text2<TAB>label"
HEADERS = ("label", "gold_label")
Row = tuple[str, ...]


def find(folder: Path, split: str) -> Path:
    """Return the file of a split. Raise Refused if there is none, or more than one."""
    names = [f"{name}.tsv{gz}" for name in SPLITS[split] for gz in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise Refused(
            f"{folder}/{names[0]} is missing: RAW_DIR needs train, valid (or dev) and test as .tsv or .tsv.gz"
        )
    if len(found) > 1:
        raise Refused(f"{folder} has {' and '.join(path.name for path in found)}: keep one of them")
    return found[0]


def read(path: Path) -> list[Row]:
    """Return the columns of every line; all lines have as many. Raise Refused for the first line that is wrong."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"{path} cannot be read ({error}): check the file") from None
    rows = [tuple(map(one_line, line.split("\t"))) for line in lines_of(decode(data, str(path)))]
    if not rows:
        raise Refused(f"{path} is empty: {FORM}")
    for i, row in enumerate(rows, 1):
        if len(row) not in (2, 3) or len(row) != len(rows[0]):
            raise Refused(f"{path}, line {i} has {len(row)} columns, line 1 has {len(rows[0])}: {FORM} in every line")
        if not all(row):
            raise Refused(f"{path}, line {i} has an empty column: {FORM}")
    if rows[0][-1].lower() in HEADERS and sum(row[-1] == rows[0][-1] for row in rows) == 1:
        raise Refused(f"{path}, line 1 is a header (label {quoted(rows[0][-1])}): remove it")
    return rows


def classes(rows: dict[str, list[Row]], paths: dict[str, Path]) -> list[str]:
    """Return the labels of the training set, sorted. Raise Refused if another split has others."""
    labels = sorted({row[-1] for row in rows["train"]})
    if len(labels) < 2:
        raise Refused(f"{paths['train']} has only the label {quoted(labels[0])}: a classifier needs two or more")
    for split, found in rows.items():
        for i, row in enumerate(found, 1):
            if row[-1] not in labels:
                raise Refused(
                    f"{paths[split]}, line {i} has the label {quoted(row[-1])}, which {paths['train'].name} does not "
                    f"have: it must be one of {quoted(', '.join(labels))}"
                )
            if len(row) != len(rows["train"][0]):
                raise Refused(
                    f"{paths[split]} has {len(row)} columns and {paths['train'].name} {len(rows['train'][0])}: "
                    "both need as many"
                )
    return labels


def work(args: argparse.Namespace) -> None:
    paths = {split: find(args.raw, split) for split in SPLITS}
    rows = {split: read(path) for split, path in paths.items()}
    labels = classes(rows, paths)
    number = {label: str(i) for i, label in enumerate(labels)}
    random.Random(1).shuffle(rows["train"])
    args.text.mkdir(parents=True, exist_ok=True)
    write_whole(args.text / "labels.txt", _lines(labels), force=True)
    for split, found in rows.items():
        *inputs, column = zip(*found, strict=True)
        for i, texts in enumerate(inputs):
            write_whole(args.text / f"{split}.raw.input{i}", _lines(texts), force=True)
        write_whole(args.text / f"{split}.label", _lines(number[label] for label in column), force=True)
        counts = Counter(column)
        of_each = ", ".join(f"{quoted(label)} {counts[label]:,}" for label in labels[:8])
        what = "pairs" if len(inputs) == 2 else "sentences"
        print(f"{split}: {len(found):,} {what}: {of_each}{', ...' * (len(labels) > 8)}")


def _lines(texts: Iterable[object]) -> str:
    return "".join(f"{text}\n" for text in texts)


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("raw", type=Path, metavar="RAW_DIR")
    parser.add_argument("text", type=Path, metavar="TEXT_DIR")
    work(parser.parse_args(argv))
