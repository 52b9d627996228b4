#!/usr/bin/env python3
"""What the recipes of full size will take, computed from the log of a run that was measured.

    plan.py OUT_DIR [--tokens 16000] [--updates 100000] [--prune-updates 60000] [--gated 6] [--scratch 4] [--every 2048]

OUT_DIR is the folder of a recipe whose baseline, and best a gated run too, have trained at the real model size for some
hundred updates (UPDATES=300 PRUNE_UPDATES=300). The time of an update is the median of fairseq's log after its first
line, in proportion to the tokens where updates were of another size; validation with its checkpoint is timed by the
same log.

The first row is that machine. The others are COMPUTED, not measured: the time on another kind of GPU is in proportion
to the peak rate of half-precision matrix products in its maker's data sheet, and N GPUs take 1/N of the time of one.
Take them for an order of magnitude. From a run on a CPU nothing is computed for GPUs.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from batches import fitting_tokens
from rules import option, whole

from fairseq_headgates.cli.parser import ArgumentParser
from fairseq_headgates.report import text_table

# Peak of dense half-precision products, TFLOP/s, and memory, GB, of the data sheets.
GPUS = {
    "T4": (65, 16),
    "V100": (125, 32),
    "RTX 3090": (142, 24),
    "RTX 4090": (330, 24),
    "L40S": (362, 48),
    "A100": (312, 80),
    "H100": (989, 80),
    "H200": (989, 141),
}
TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
VALIDATION = re.compile(
    rf"{TIME} \| INFO \| fairseq_cli.train \| begin validation.*?{TIME} \| INFO \| [^\n]*Saved", re.S
)
INNER = re.compile(r"\| train_inner \|.*?wps=([\d.]+), ups=[\d.]+, wpb=([\d.]+)(?:[^\n]*gb_free=([\d.]+))?")


@dataclass(frozen=True)
class Measured:
    """Of one training: seconds and target tokens of an update, seconds of a validation, the least free memory in GB."""

    update: float
    tokens: float
    validation: float
    free: float | None

    @classmethod
    def read(cls, log: Path) -> Measured:
        text = log.read_text(encoding="utf-8")
        rows = [[float(number or "nan") for number in row] for row in INNER.findall(text)][1:]
        if not rows:
            raise ValueError(f"{log} has no two lines of train_inner: train for more updates")
        pauses = [seconds_between(*times) for times in VALIDATION.findall(text)]
        return cls(
            statistics.median(per_update / max(per_second, 0.1) for per_second, per_update, _ in rows),
            statistics.median(per_update for _, per_update, _ in rows),
            statistics.median(pauses) if pauses else 0.0,
            min((free for _, _, free in rows if free == free), default=None),
        )

    def hours(self, updates: int, every: int, scale: float) -> float:
        """Of a whole training, with updates `scale` times as large as those measured."""
        return (updates * self.update * scale + updates // every * self.validation) / 3600


def seconds_between(begin: str, end: str) -> float:
    first, last = (datetime.strptime(time, "%Y-%m-%d %H:%M:%S") for time in (begin, end))
    return (last - first).total_seconds()


def tokens_per_update(out: Path) -> int | None:
    """What the recipe was set to."""
    found = re.search(r"TOKENS_PER_UPDATE=(\d+)", (out / "settings.txt").read_text(encoding="utf-8"))
    return int(found[1]) if found else None


def gated_log(out: Path) -> Path | None:
    """The log of the gated run with gates on most types."""
    logs = sorted(path for path in out.glob("*_lambda*/train.log") if "_scratch" not in path.parent.name)
    return logs[0] if logs else None


def plan(args: argparse.Namespace) -> str:
    scale = args.tokens / (tokens_per_update(args.out) or args.tokens)
    plain = Measured.read(args.out / "baseline" / "train.log")
    log = gated_log(args.out)
    gated = Measured.read(log) if log else plain
    log_text = (args.out / "baseline" / "train.log").read_text(encoding="utf-8")
    device = re.search(r"rank +0: capabilities.*?name = ([^\n;]+)", log_text)
    name = device[1].strip() if device else "this machine, CPU"
    phases = {
        "baseline": plain.hours(args.updates, args.every, scale),
        "gated runs": args.gated * gated.hours(args.prune_updates, args.every, scale),
        "from scratch": args.scratch * plain.hours(args.updates, args.every, scale),
    }
    rows = [[name, "1", *cells(phases, 1.0), "-" if plain.free is None else f"{plain.free:.1f} GB free"]]
    known = next((kind for kind in GPUS if device and kind in name), None)
    if known:
        for kind, (peak, memory) in GPUS.items():
            for count in (1, 8):
                factor = GPUS[known][0] / peak / count
                tokens = fitting_tokens(memory * 1e9, 512, 2048, 6, 32_000, 2)
                rows.append([f"{kind} (computed)", str(count), *cells(phases, factor), f"--max-tokens {tokens:,}"])
    table = text_table(["hours", "GPUs", *phases, "all", "memory"], rows)
    speed = f"{plain.tokens / plain.update:,.0f} target tokens a second, gated {gated.tokens / gated.update:,.0f}"
    return f"measured: {speed}; {plain.validation:.0f} s for a validation\n{table}"


def cells(phases: dict[str, float], factor: float) -> list[str]:
    return [f"{hours * factor:,.1f}" for hours in (*phases.values(), sum(phases.values()))]


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--tokens", type=option(whole()), default=16_000, help="source tokens for each update")
    parser.add_argument("--updates", type=option(whole()), default=100_000)
    parser.add_argument("--prune-updates", type=option(whole()), default=60_000)
    parser.add_argument("--gated", type=option(whole(0)), default=6, help="gated runs")
    parser.add_argument("--scratch", type=option(whole(0)), default=4, help="runs from scratch")
    parser.add_argument("--every", type=option(whole()), default=2048, help="updates from one checkpoint to the next")
    args = parser.parse_args()
    try:
        print(plan(args))
    except (OSError, ValueError) as error:
        print(f"plan.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
