"""Unpack MNLI (Williams et al. 2018) as in GLUE, and encode its sentences with the BPE of GPT-2, as RoBERTa reads them.

    python3 recipes/lib corpora.mnli DOWNLOADS RAW_DIR

DOWNLOADS has MNLI.zip, encoder.json and vocab.bpe. The program writes RAW_DIR/{train,valid,test}.tsv, lines
`premise<TAB>hypothesis<TAB>label` of BPE tokens separated by spaces, and prints their numbers. test is the matched
validation set, because the labels of the test set are not public; valid is the mismatched one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from tqdm import tqdm

from commands import ArgumentParser, Refused
from corpora.archives import lines
from fairseq_headgates.files import replacing

SPLITS = {"train": "train", "valid": "dev_mismatched", "test": "dev_matched"}
COLUMNS = ("sentence1", "sentence2", "gold_label")
LABELS = ("contradiction", "entailment", "neutral")


def rows(archive: Path, name: str) -> Iterator[tuple[str, ...]]:
    """Yield premise, hypothesis and label; pairs without a label that its annotators agree on ("-") are left out."""
    member = f"MNLI/{name}.tsv"
    found = lines(archive, member)
    header = next(found, "").split("\t")
    if missing := [column for column in COLUMNS if column not in header]:
        raise Refused(f"{archive}: {member} has no column {', '.join(missing)}: is it the right archive?")
    places = [header.index(column) for column in COLUMNS]
    for line in found:
        cells = line.split("\t")
        row = tuple(cells[place].strip() for place in places)
        if row[2] in LABELS and all(row):
            yield row


def encoder(folder: Path) -> Callable[[str], str]:
    """Return the BPE of GPT-2: text -> the numbers of its tokens, separated by spaces."""
    try:
        bpe = get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    except (ValueError, OSError) as error:
        raise Refused(
            f"{folder}/encoder.json and vocab.bpe are no BPE of GPT-2 ({error}): download them again"
        ) from None
    return lambda text: " ".join(map(str, bpe.encode(text)))


def work(args: argparse.Namespace) -> None:
    encode = encoder(args.downloads)
    for split, name in SPLITS.items():
        found = tqdm(rows(args.downloads / "MNLI.zip", name), desc=split, unit=" pairs", disable=None)
        number = 0
        with replacing(args.raw / f"{split}.tsv", force=True) as part, part.open("w", encoding="utf-8") as file:
            for premise, hypothesis, label in found:
                number += 1
                file.write(f"{encode(premise)}\t{encode(hypothesis)}\t{label}\n")
        if not number:
            raise Refused(f"{args.downloads}/MNLI.zip: {name} has no labelled pairs: is it the right archive?")
        print(f"{split} ({name}): {number:,} pairs")


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("downloads", type=Path, metavar="DOWNLOADS")
    parser.add_argument("raw", type=Path, metavar="RAW_DIR")
    work(parser.parse_args(argv))
