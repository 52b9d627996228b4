#!/usr/bin/env python3
"""Print the table of a recipe: model, heads kept per attention type, parameters, BLEU, chrF, validation loss.

    results.py RUN_DIR [RUN_DIR ...] [--metric NAME] [--seed N] [--paper wmt|opensubtitles] [--tsv FILE]
               [--json FILE]

Each folder holds what lib/models.sh writes: heads.json, scores.json, nll.json, and, if it is compared with a control,
significance.json. `diff` is the difference of BLEU from the control, `p` its p-value in a paired bootstrap test.
Folders in several parent folders (OUT_DIR/seed1, OUT_DIR/seed2, ...) are models of several seeds: the table has means
and ranges. --paper adds a table with the layout of table 2 of Voita et al. 2019: RUN and RUN_scratch in one row, with
the row of the paper that keeps the most similar fraction of heads. The TSV has a row for each run and seed with all
numbers. The JSON is a sweep file, for `headgates report`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, exit_code
from evaluated import SCRATCH, Run, difference, in_order
from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import results_table, text_table
from seeds import over_seeds
from swept import as_json, models


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


def one_by_one(runs: list[Run]) -> str:
    """Return the table with a row for each run of one seed."""
    rows = {
        run.name: {kind: "{}/{}".format(*run.heads[kind]) for kind in (*TYPES, "total") if kind in run.heads}
        | {
            "params": f"{run.parameters / 1e6:.2f}M",
            "BLEU": f"{run.bleu:.2f}",
            "diff": f"{difference(run, runs):+.2f}",
            "p": "-" if run.p is None else f"{run.p:.3f}",
            "chrF": f"{run.chrf:.2f}",
            "nll": f"{run.nll:.3f}",
        }
        | {name: f"{score:.4g}" for name, score in run.metrics.items()}
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
    """Return the row of the paper (48 heads of each type) that keeps the most similar fraction of heads."""
    kept, heads = map(sum, zip(*(run.heads[kind] for kind in TYPES), strict=True))
    return min(rows, key=lambda row: abs(sum(row.heads) / 144 - kept / heads), default=None)


def tsv(runs: list[Run], data: str | None) -> str:
    """Return a row for each run and seed: more decimals, signatures, and the nearest row of the paper."""
    names = ("BLEU", "chrF2")
    header = ["model", "seed", *TYPES, "total", "of", "parameters", *names, *(f"{name} signature" for name in names)]
    header += ["nll", "control", "diff", *(f"p {name}" for name in names), "p signature", *runs[0].metrics]
    lines = ["\t".join([*header, *(["paper heads", "paper BLEU"] if data else [])])]
    for run in runs:
        scores = [run.scores[name][what] for what in ("score", "signature") for name in names]
        diff = difference(run, [other for other in runs if other.seed == run.seed])
        compared = run.compared or {}
        p = [compared.get(name, {}).get("p", "-") for name in names]
        cells = [run.name, run.seed, *run.kept(), *run.heads["total"], run.parameters, *scores, run.nll, run.control]
        cells += [round(diff, 6), *p, compared.get("BLEU", {}).get("signature", "-"), *run.metrics.values()]
        if data:
            row = nearest(run, PAPER[data].get(run.kind, []))
            bleu = row and (row.scratch if run.is_from_scratch else row.trained)
            cells += [slashed(row.heads), bleu] if row else "--"
        lines.append("\t".join(map(str, cells)))
    return "\n".join([*lines, ""])


def read(folders: list[Path], metrics: list[str], seed: str) -> list[list[Run]]:
    """Return the runs of each seed, in the order of the table."""
    groups: dict[Path, list[Path]] = {}
    for folder in folders:
        groups.setdefault(folder.resolve().parent, []).append(folder)
    return [
        in_order(
            Run.read(folder, metrics, parent.name.removeprefix("seed") if len(groups) > 1 else seed) for folder in group
        )
        for parent, group in groups.items()
    ]


LEGEND = """\
diff, p: BLEU against the control ({}), paired bootstrap
nll: bits per token on the validation set (lower is better)"""


def work(args: argparse.Namespace) -> None:
    seeds = read(args.folders, args.metric, args.seed)
    runs = [run for of_seed in seeds for run in of_seed]
    print(one_by_one(runs) if len(seeds) == 1 else over_seeds(seeds))
    print(LEGEND.format(", ".join(dict.fromkeys(run.control for run in runs))))
    print(*(f"{name}: {score['signature']}" for name, score in runs[-1].scores.items()), sep="\n")
    for of_seed in seeds if args.paper else []:
        seed = f", seed {of_seed[0].seed}" if len(seeds) > 1 else ""
        print(f"\nBLEU as in table 2 of Voita et al. 2019 ({args.paper}{seed}):")
        print(as_published(of_seed, args.paper))
    if args.tsv:
        write_whole(args.tsv, tsv(runs, args.paper), force=True)
    if args.json:
        write_whole(args.json, json.dumps(as_json(models(seeds)), indent=1) + "\n", force=True)


def main() -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="read RUN_DIR/metric.NAME.json")
    parser.add_argument("--seed", default="-", metavar="N", help="the seed of the folders, for the TSV")
    parser.add_argument("--paper", choices=list(PAPER))
    parser.add_argument("--tsv", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    return exit_code("results.py", work, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
