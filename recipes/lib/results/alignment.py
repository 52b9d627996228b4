"""Print alignment error rate, precision and recall in percent: a row for each model, a column for each kind of weights.

Each FOLDER has files MODEL.KIND.json of `headgates functions --write-alignments --alignment --out`, one folder for each
seed: a cell is their mean, for the error rate with the lowest and the highest value. ALIGNER.forward and
ALIGNER.reverse are alignments of CORPUS/train by another aligner, of which the lines in CORPUS/test.lines are measured:
each direction, and their intersection and union. With --by FILE, print the weights by which that file is aligned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from commands import ArgumentParser
from fairseq_headgates.extensions.functions.aligning import Alignments
from fairseq_headgates.extensions.functions.trees import read_alignments
from fairseq_headgates.files import read_text
from fairseq_headgates.report.tables import text_table
from results.columns import with_range

ALIGNING = 4  # heads of the whole model that align best
KINDS = {"best": "best head", "average": "last layer", "alti": "alti"}


def read(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(read_text(str(path), "the alignments", "run the recipe again"))


def cell(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return error rate, precision and recall of several seeds."""
    aer, precision, recall = ([100 * (each[name] or 0) for each in errors] for name in ("aer", "precision", "recall"))
    return f"{with_range('.1f')(aer)}  {mean(precision):.0f}  {mean(recall):.0f}"


def heads_by_rate(found: dict[str, Any]) -> dict[tuple[int, int], float]:
    """Return how often each decoder-encoder head attends most to an aligned word."""
    return {
        (layer, number): head["words"]["alignment"]["rate"]
        for layer, heads in enumerate(found["heads"]["dec-enc"])
        for number, head in enumerate(heads)
        if head is not None
    }


def models(folders: list[Path], names: list[str]) -> list[list[str]]:
    """Return a row for each model."""
    whole = [heads_by_rate(read(folder / "whole.chosen.json")) for folder in folders]
    aligning = [sorted(rates, key=rates.__getitem__)[-ALIGNING:] for rates in whole]
    rows = []
    for name in names:
        left = [heads_by_rate(read(folder / f"{name}.chosen.json")) for folder in folders]
        row = [name, with_range(".2g")([len(heads) for heads in left])]
        row.append(with_range(".2g")([len(heads.keys() & best) for heads, best in zip(left, aligning, strict=True)]))
        for kind in KINDS:
            row.append(cell([read(folder / f"{name}.{kind}.json")["written_alignments"] for folder in folders]))
        rows.append(row)
    return rows


def aligner(corpus: Path, files: str) -> list[list[str]]:
    """Return the rows of another aligner, none if it did not run."""
    if not Path(f"{files}.forward").is_file():
        return []
    gold = read_alignments(str(corpus / "test.align"))
    lines = [int(line) for line in (corpus / "test.lines").read_text().split()]
    forward, reverse = (
        [set(links) for links in read_alignments(f"{files}.{direction}")] for direction in ("forward", "reverse")
    )
    both = [a & b for a, b in zip(forward, reverse, strict=True)]
    either = [a | b for a, b in zip(forward, reverse, strict=True)]
    rows = []
    for name, links in (("forward", forward), ("reverse", reverse), ("intersection", both), ("union", either)):
        found = Alignments({i: sorted(links[line]) for i, line in enumerate(lines)}).errors(gold, gold)
        rows.append([f"{Path(files).name}, {name}", "", "", cell([found]), "", ""])
    return rows


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("corpus", type=Path, metavar="CORPUS", nargs="?")
    parser.add_argument("aligner", metavar="ALIGNER", nargs="?", default="")
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="the models, in the order of the rows")
    parser.add_argument("--by", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.by:
        print(read(args.by)["written_alignments"]["by"])
        return
    rows = models(args.folders, args.models) + aligner(args.corpus, args.aligner)
    kinds = [f"{kind}: AER  P  R" for kind in KINDS.values()]
    print(text_table(["half by", "dec-enc heads", f"of {ALIGNING} best", *kinds], rows))
