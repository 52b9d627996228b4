"""Unpack MNLI (Williams et al. 2018) as in GLUE, and encode its sentences with the BPE of GPT-2, as RoBERTa reads them.

    python3 mnli.py MNLI.zip encoder.json vocab.bpe TO

writes TO/{train,valid,test}.tsv, lines `premise<TAB>hypothesis<TAB>label` of BPE tokens separated by spaces. test is
the matched validation set, because the labels of the test set are not public; valid is the mismatched one. Pairs
without a label that the annotators agree on ("-") are left out.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from script_errors import errors_in_one_line

SPLITS = {"train": "train", "valid": "dev_mismatched", "test": "dev_matched"}
COLUMNS = ("sentence1", "sentence2", "gold_label")
LABELS = ("contradiction", "entailment", "neutral")


def rows(archive: zipfile.ZipFile, member: str) -> Iterator[list[str]]:
    """Yield premise, hypothesis and label of each pair."""
    with archive.open(member) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        header = next(lines, "").rstrip("\r\n").split("\t")
        if missing := [column for column in COLUMNS if column not in header]:
            raise ValueError(f"{member} has no column {missing[0]}: give MNLI.zip of GLUE")
        places = [header.index(column) for column in COLUMNS]
        for line in lines:
            cells = line.rstrip("\r\n").split("\t")
            row = [cells[place].strip() for place in places]
            if row[2] in LABELS and all(row):
                yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, metavar="MNLI.zip")
    parser.add_argument("encoder", metavar="encoder.json")
    parser.add_argument("merges", metavar="vocab.bpe")
    parser.add_argument("to", type=Path, metavar="TO")
    args = parser.parse_args()
    bpe = get_encoder(args.encoder, args.merges)
    args.to.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.archive) as archive:
        for split, name in SPLITS.items():
            number = 0
            with (args.to / f"{split}.tsv").open("w", encoding="utf-8") as file:
                for *sentences, label in rows(archive, f"MNLI/{name}.tsv"):
                    number += 1
                    encoded = (" ".join(map(str, bpe.encode(sentence))) for sentence in sentences)
                    file.write("\t".join([*encoded, label]) + "\n")
            print(f"{split} ({name}): {number:,} pairs")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
