#!/usr/bin/env python3
"""Prints one table for the runs of a recipe: model, heads kept per attention type, parameters, BLEU, chrF.

    results.py RUN_DIR [RUN_DIR ...]

Each folder holds `scores.json` (sacrebleu) and `heads.json` (`headgates show --json`); the first is the baseline,
against which BLEU differences are given.
"""

import json
import sys
from pathlib import Path

from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import results_table


def main(folders: list[str]) -> None:
    runs, signatures = {}, []
    first_bleu = None
    for folder in map(Path, folders):
        shown = json.loads((folder / "heads.json").read_text(encoding="utf-8"))
        heads = shown["heads"]
        scores = {score["name"]: score for score in json.loads((folder / "scores.json").read_text(encoding="utf-8"))}
        bleu, chrf = scores["BLEU"], scores["chrF2"]
        first_bleu = bleu["score"] if first_bleu is None else first_bleu
        kept = {kind: "{}/{}".format(*heads[kind]) for kind in (*TYPES, "total") if kind in heads}
        difference = f"{bleu['score'] - first_bleu:+.2f}"
        runs[folder.name] = kept | {
            "params": f"{shown['parameters'] / 1e6:.2f}M",
            "BLEU": f"{bleu['score']:.2f}",
            "diff": difference,
            "chrF": f"{chrf['score']:.2f}",
        }
        signatures = [f"{name}: {score['signature']}" for name, score in scores.items()]
    print(results_table(runs), *signatures, sep="\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
