#!/usr/bin/env python3
"""Print the table of a recipe: model, heads kept per attention type, parameters, BLEU, chrF.

    results.py RUN_DIR [RUN_DIR ...] [--paper wmt|opensubtitles] [--tsv FILE]

Each folder holds `scores.json` (sacrebleu) and `heads.json` (`headgates show --json`). The first is the baseline, from
which BLEU differences are taken. --paper adds a table with the layout of table 2 of Voita et al. 2019: RUN and
RUN_scratch in one row, with the row of the paper that keeps the most similar share of heads. The TSV has a row for each
run with all numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import ArgumentParser, exit_code
from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import results_table, text_table


@dataclass(frozen=True)
class Published:
    """A row of Voita et al. 2019: heads (encoder, decoder, decoder-encoder), BLEU from trained, BLEU from scratch."""

    heads: tuple[int, int, int]
    trained: str
    scratch: str = "-"


# Table 2; for the encoder alone section 6.2, which gives differences from the baseline.
PAPER = {
    "wmt": {
        "baseline": [Published((48, 48, 48), "29.6")],
        "all": [
            Published((14, 31, 30), "29.62", "29.47"),
            Published((12, 21, 25), "29.36", "28.95"),
            Published((8, 13, 15), "29.06", "28.56"),
            Published((5, 9, 12), "28.90", "28.41"),
        ],
        "enc-self": [Published((10, 48, 48), "-0.15")],
    },
    "opensubtitles": {
        "baseline": [Published((48, 48, 48), "32.4")],
        "all": [
            Published((27, 31, 46), "32.24", "32.23"),
            Published((13, 17, 31), "32.23", "31.98"),
            Published((6, 9, 13), "32.27", "31.84"),
        ],
        "enc-self": [Published((4, 48, 48), "-0.25")],
    },
}
SCRATCH = "_scratch"


@dataclass(frozen=True)
class Run:
    """The results in one folder."""

    name: str
    heads: dict[str, tuple[int, int]]
    parameters: int
    scores: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Run:
        try:
            shown, listed = (
                json.loads((folder / name).read_text(encoding="utf-8")) for name in ("heads.json", "scores.json")
            )
            scores = {score["name"]: score for score in listed}
            heads = {kind: (kept, total) for kind, (kept, total) in shown["heads"].items()}
            run = cls(folder.name, heads, int(shown["parameters"]), scores)
            for name in ("BLEU", "chrF2"):
                float(scores[name]["score"]), scores[name]["signature"]
            heads["total"]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(
                f"{folder} has no heads.json of `headgates show --json`, or no scores.json of `sacrebleu -m bleu chrf "
                "--format json`: give the folder of a finished run"
            ) from None
        return run

    @property
    def bleu(self) -> float:
        return self.scores["BLEU"]["score"]

    @property
    def kind(self) -> str:
        """The attention types with gates; the name of a run without gates."""
        return self.name.partition("_lambda")[0]

    @property
    def is_from_scratch(self) -> bool:
        return self.name.endswith(SCRATCH)

    def kept(self) -> list[int | str]:
        return [self.heads.get(kind, "-")[0] for kind in TYPES]


def one_by_one(runs: list[Run]) -> str:
    """Return the table with a row for each run."""
    rows = {
        run.name: {kind: "{}/{}".format(*run.heads[kind]) for kind in (*TYPES, "total") if kind in run.heads}
        | {
            "params": f"{run.parameters / 1e6:.2f}M",
            "BLEU": f"{run.bleu:.2f}",
            "diff": f"{run.bleu - runs[0].bleu:+.2f}",
            "chrF": f"{run.scores['chrF2']['score']:.2f}",
        }
        for run in runs
    }
    return results_table(rows)


def as_published(runs: list[Run], data: str) -> str:
    """Return the table with the layout of the paper."""
    header = ["model", "heads e/d/d-e", "trained", "scratch", "| paper: heads", "trained", "scratch"]
    by_name = {run.name: run for run in runs}
    rows = []
    for run in runs:
        if run.is_from_scratch:
            continue
        scratch = by_name.get(run.name + SCRATCH)
        row = [run.name, slashed(run.kept()), f"{run.bleu:.2f}", f"{scratch.bleu:.2f}" if scratch else "-"]
        published = nearest(run, PAPER[data].get(run.kind, []))
        rows.append([*row, *([slashed(published.heads), published.trained, published.scratch] if published else "---")])
    return text_table(header, rows)


def slashed(numbers: Any) -> str:
    return "/".join(map(str, numbers))


def nearest(run: Run, rows: list[Published]) -> Published | None:
    """Return the row of the paper (48 heads of each type) that keeps the most similar share of heads."""
    kept, heads = map(sum, zip(*(run.heads[kind] for kind in TYPES), strict=True))
    return min(rows, key=lambda row: abs(sum(row.heads) / 144 - kept / heads), default=None)


def tsv(runs: list[Run], data: str | None) -> str:
    """Return a row for each run: full precision, signatures of the scores and the nearest row of the paper."""
    header = ["model", *TYPES, "total", "of", "parameters", "BLEU", "chrF2", "BLEU signature", "chrF2 signature"]
    lines = ["\t".join([*header, *(["paper heads", "paper BLEU"] if data else [])])]
    for run in runs:
        counts = [*run.kept(), *run.heads["total"]]
        scores = [run.scores[name][what] for what in ("score", "signature") for name in ("BLEU", "chrF2")]
        cells = [run.name, *counts, run.parameters, *scores]
        if data:
            row = nearest(run, PAPER[data].get(run.kind, []))
            bleu = row and (row.scratch if run.is_from_scratch else row.trained)
            cells += [slashed(row.heads), bleu] if row else "--"
        lines.append("\t".join(map(str, cells)))
    return "\n".join([*lines, ""])


def work(args: argparse.Namespace) -> None:
    runs = [Run.read(folder) for folder in args.folders]
    print(one_by_one(runs), *(f"{name}: {score['signature']}" for name, score in runs[-1].scores.items()), sep="\n")
    if args.paper:
        print(f"\nBLEU as in table 2 of Voita et al. 2019 ({args.paper}):")
        print(as_published(runs, args.paper))
    if args.tsv:
        write_whole(args.tsv, tsv(runs, args.paper), force=True)


def main() -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--paper", choices=list(PAPER))
    parser.add_argument("--tsv", metavar="FILE")
    return exit_code("results.py", work, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
