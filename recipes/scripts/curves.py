"""Print BLEU over the fraction of removed heads: a row for each curve, a column for each step.

    python3 curves.py CURVE.tsv [CURVE.tsv ...]

CURVE.tsv is a file of `headgates curve --tsv`. A row is named by its checkpoint (checkpoint3.pt: epoch 3) if there are
several, else by its scores.
"""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

from fairseq_headgates.drawing.tables import text_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="CURVE.tsv")
    curves: dict[tuple[str, str], dict[float, str]] = {}
    for path in parser.parse_args().files:
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines(), delimiter="\t"):
            if not row.get("bleu"):
                raise SystemExit(f"curves.py: {path} has no BLEU: run headgates curve with --metric bleu")
            if row["types"] == "all":
                curve = curves.setdefault((row["checkpoint"], row["by"]), {})
                curve[float(row["removed"])] = f"{float(row['bleu']):.2f}"
    several = len({checkpoint for checkpoint, _ in curves}) > 1
    steps = sorted({step for curve in curves.values() for step in curve})
    rows = []
    for (checkpoint, by), curve in curves.items():
        epoch = re.search(r"checkpoint(\d+)\.pt$", checkpoint)
        name = (epoch[1] if epoch else checkpoint) if several else by
        rows.append([name, *(curve.get(step, "-") for step in steps)])
    print(text_table(["epoch" if several else "by", *(f"-{step:g}%" for step in steps)], rows))


if __name__ == "__main__":
    main()
