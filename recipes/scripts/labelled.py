"""Read labelled sentences, or pairs of them, and write text and labels to files of their own.

    python3 recipes/scripts/labelled.py TEXT_DIR TRAIN VALID TEST --classes 2 --inputs 1

Each line of the files, plain or .gz, is `text<TAB>label`, or with --inputs 2 `text<TAB>text2<TAB>label`. Writes
TEXT_DIR/SPLIT.raw.input0, SPLIT.raw.input1 and SPLIT.label, where a label is a number from 0; labels.txt, the labels in
the order of their numbers; and label.dict, a dictionary of fairseq. Prints how often each label occurs. The lines of
the training set are shuffled, always in the same way, because scores of heads are computed on its beginning.
"""

from __future__ import annotations

import argparse
import gzip
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from script_errors import errors_in_one_line

SPLITS = ("train", "valid", "test")
Row = tuple[str, ...]


def read(path: Path, inputs: int) -> list[Row]:
    """Return the columns of every line: `inputs` columns of text, and the label."""
    start = gzip.open if path.suffix == ".gz" else open
    with start(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        rows = [tuple(" ".join(cell.split()) for cell in line.rstrip("\r\n").split("\t")) for line in file]
    for i, row in enumerate(rows, 1):
        if len(row) != inputs + 1 or not all(row):
            form = "<TAB>".join([*(["text", "text2"][:inputs]), "label"])
            raise ValueError(f"{path}, line {i} has {len(row)} columns, or an empty one: every line must be {form}")
    if not rows:
        raise ValueError(f"{path} is empty")
    return rows


def write(path: Path, texts: Iterable[object]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, metavar="TEXT_DIR")
    parser.add_argument("files", nargs=3, type=Path, metavar=("TRAIN", "VALID", "TEST"))
    parser.add_argument("--classes", type=int, required=True, metavar="N")
    parser.add_argument("--inputs", type=int, choices=(1, 2), required=True, help="columns of text")
    args = parser.parse_args()
    rows = {split: read(path, args.inputs) for split, path in zip(SPLITS, args.files, strict=True)}
    number = {label: i for i, label in enumerate(sorted({row[-1] for row in rows["train"]}))}
    if len(number) != args.classes:
        raise ValueError(
            f"{args.files[0]} has {len(number)} labels ({', '.join(list(number)[:8])}), classes is {args.classes}"
        )
    for path, found in zip(args.files, rows.values(), strict=True):
        if other := {row[-1] for row in found} - set(number):
            raise ValueError(f"{path} has the label {min(other)!r}, which the training set does not have")
    random.Random(1).shuffle(rows["train"])
    args.text.mkdir(parents=True, exist_ok=True)
    write(args.text / "labels.txt", number)
    write(args.text / "label.dict", (f"{i} 1" for i in number.values()))
    for split, found in rows.items():
        *inputs, labels = zip(*found, strict=True)
        for i, texts in enumerate(inputs):
            write(args.text / f"{split}.raw.input{i}", texts)
        write(args.text / f"{split}.label", (number[label] for label in labels))
        counts = ", ".join(f"{label} {count:,}" for label, count in Counter(labels).most_common(8))
        print(f"{split}: {len(found):,} lines: {counts}")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
