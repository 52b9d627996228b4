#!/usr/bin/env python3
"""Paired bootstrap test of a run against its control (Koehn 2004), with sacrebleu's PairedTest.

    significance.py REFERENCE CONTROL_DIR RUN_DIR [--lowercase]

reads CONTROL_DIR/test.hyp and RUN_DIR/test.hyp, and prints JSON: the name of the control, and for BLEU and chrF2 the
p-value with sacrebleu's signature. The seed and the number of resamples are fixed. (The command `sacrebleu --paired-bs
--format json` of sacrebleu 2.6 fails: Object of type float32 is not JSON serializable.)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, Result

from commands import ArgumentParser, exit_code

SEED, RESAMPLES = 12345, 1000  # the defaults of sacrebleu


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
    os.environ["SACREBLEU_SEED"] = str(SEED)
    metrics = {
        "BLEU": BLEU(lowercase=lowercase, references=[reference]),
        "CHRF": CHRF(lowercase=lowercase, references=[reference]),
    }
    test = PairedTest([("control", control), ("run", run)], metrics, None, test_type="bs", n_samples=RESAMPLES)
    signatures, scores = test()
    return {name: {"p": p_value(*scores[name]), "signature": sign.format()} for name, sign in signatures.items()}


def p_value(control: Result, run: Result) -> float:
    """Return the p-value, 1 for equal scores, where sacrebleu returns 1 / (RESAMPLES + 1) if the texts are equal."""
    return 1.0 if control.score == run.score else float(run.p_value)


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
