#!/usr/bin/env python3
"""Paired bootstrap test of a run against its control (Koehn 2004), as in `headgates ablate --metric bleu`.

    significance.py REFERENCE CONTROL_DIR RUN_DIR [--lowercase]

reads CONTROL_DIR/test.hyp and RUN_DIR/test.hyp, and prints JSON: the name of the control, and for BLEU and chrF2 the
p-value with sacrebleu's signature. The seed and the number of resamples are fixed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, exit_code
from fairseq_headgates.evaluation import paired_bootstrap


def lines(path: Path) -> list[str]:
    """Return the lines of a file as sacrebleu counts them: they end at \\n alone, not at other Unicode line ends."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


def compare(reference: list[str], control: list[str], run: list[str], lowercase: bool = False) -> dict[str, Any]:
    """Return {metric: {"p": p-value, "signature": ...}} of the difference between two translations."""
    if not len(reference) == len(control) == len(run):
        raise ValueError(
            f"{len(reference)} references, {len(control)} lines of the control and {len(run)} of the run: "
            "they must be translations of the same sentences"
        )
    metrics = {"BLEU": BLEU(lowercase=lowercase), "CHRF": CHRF(lowercase=lowercase)}
    found = paired_bootstrap(metrics, {"control": control, "run": run}, reference)
    return {name: {"p": by.p_values["run"], "signature": by.signature} for name, by in found.items()}


def work(args: argparse.Namespace) -> None:
    texts = [lines(path) for path in (args.reference, args.control / "test.hyp", args.run / "test.hyp")]
    print(json.dumps({"control": args.control.name, **compare(*texts, args.lowercase)}))


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("reference", type=Path, metavar="REFERENCE")
    parser.add_argument("control", type=Path, metavar="CONTROL_DIR")
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--lowercase", action="store_true", help="as sacrebleu --lowercase --chrf-lowercase")
    return exit_code("significance.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
