"""Estimate how long a recipe of full size takes on this machine, from the log of a short run.

    python3 recipes/lib training.plan OUT_DIR [--tokens 16000] [--updates 100000] [--prune-updates 60000]
        [--gated 8] [--controls 2] [--scratch 6] [--seeds 1] [--every 2048]

OUT_DIR is the folder of a recipe with one seed that trained its baseline, and best a gated run too, at the real model
size for some hundred updates (UPDATES=300 PRUNE_UPDATES=300). The time of an update is the median in fairseq's log
without its first line, scaled by the number of tokens if the updates had another size; the time of a validation with
its checkpoint comes from the same log. If a gated run was trained, the plan also says when its first gate can close by
the learning rate schedule, which may be after the end of the short run.
"""

from __future__ import annotations

import argparse
import re
import statistics
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from commands import ArgumentParser, whole
from fairseq_headgates.drawing.tables import text_table

TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)"
VALIDATION = re.compile(
    rf"{TIME} \| INFO \| fairseq_cli.train \| begin validation.*?{TIME} \| INFO \| [^\n]*Saved", re.S
)
CLOSES = re.compile(r"closing a gate takes [^\n]* at update (\d+) at the earliest")
INNER = re.compile(r"\| train_inner \|.*?wps=([\d.]+), ups=[\d.]+, wpb=([\d.]+)(?:[^\n]*gb_free=([\d.]+))?")

GATED = re.compile(r"_lambda[^_]+(_rate[^_]+)?$|_heads[^_]+(_subset)?$")


@dataclass(frozen=True)
class Measured:
    """Seconds and target tokens of an update, seconds of a validation, and the least free GPU memory in GB."""

    update: float
    tokens: float
    validation: float
    free: float | None

    @classmethod
    def read(cls, log: Path) -> Measured:
        text = log.read_text(encoding="utf-8")
        rows = [[float(number or "nan") for number in row] for row in INNER.findall(text)][1:]
        if not rows:
            raise ValueError(f"{log} has fewer than two lines of train_inner: train for more updates")
        pauses = [seconds_between(*times) for times in VALIDATION.findall(text)]
        return cls(
            statistics.median(per_update / max(per_second, 0.1) for per_second, per_update, _ in rows),
            statistics.median(per_update for _, per_update, _ in rows),
            statistics.median(pauses) if pauses else 0.0,
            min((free for _, _, free in rows if free == free), default=None),
        )

    def hours(self, updates: int, every: int, scale: float) -> float:
        """Return the hours of a whole training run, with updates `scale` times as large as the measured ones."""
        return (updates * self.update * scale + updates // every * self.validation) / 3600


def seconds_between(begin: str, end: str) -> float:
    first, last = (datetime.strptime(time, "%Y-%m-%d %H:%M:%S") for time in (begin, end))
    return (last - first).total_seconds()


def tokens_per_update(out: Path) -> int | None:
    """Return the recipe's setting TOKENS_PER_UPDATE."""
    found = re.search(r"TOKENS_PER_UPDATE=(\d+)", (out / "settings.txt").read_text(encoding="utf-8"))
    return int(found[1]) if found else None


def gated_log(out: Path) -> Path | None:
    """Return the log of a run with gates, of all types if there is one."""
    logs = sorted(path for path in out.glob("*/train.log") if GATED.search(path.parent.name))
    return logs[0] if logs else None


def plan(args: argparse.Namespace) -> str:
    scale = args.tokens / (tokens_per_update(args.out) or args.tokens)
    log_text = (args.out / "baseline" / "train.log").read_text(encoding="utf-8")
    plain = Measured.read(args.out / "baseline" / "train.log")
    log = gated_log(args.out)
    gated = Measured.read(log) if log else plain
    device = re.search(r"rank +0: capabilities.*?name = ([^\n;]+)", log_text)
    phases = {
        "baseline": plain.hours(args.updates, args.every, scale),
        "controls": args.controls * plain.hours(args.prune_updates, args.every, scale),
        "gated runs": args.gated * gated.hours(args.prune_updates, args.every, scale),
        "from scratch": args.scratch
        * sum(plain.hours(updates, args.every, scale) for updates in (args.updates, args.prune_updates)),
    }
    hours = [f"{args.seeds * number:,.1f}" for number in (*phases.values(), sum(phases.values()))]
    free = "-" if plain.free is None else f"{plain.free:.1f} GB"
    name = device[1].strip() if device else "CPU"
    table = text_table(["hours on", *phases, "all", "free memory"], [[name, *hours, free]])
    speed = f"{plain.tokens / plain.update:,.0f} target tokens a second, gated {gated.tokens / gated.update:,.0f}"
    closes = CLOSES.search(log.read_text(encoding="utf-8")) if log else None
    first = f"\nno gate can close before update {int(closes[1]):,} of {args.prune_updates:,}" if closes else ""
    return f"measured: {speed}; {plain.validation:.0f} s for a validation{first}\n{table}"


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--tokens", type=whole(), default=16_000, help="source tokens for each update")
    parser.add_argument("--updates", type=whole(), default=100_000, help="updates of the baseline")
    parser.add_argument("--prune-updates", type=whole(), default=60_000, help="updates of a gated run")
    parser.add_argument("--gated", type=whole(0), default=8, help="number of gated runs")
    parser.add_argument("--controls", type=whole(0), default=2, help="number of controls: baseline+, baseline+frozen")
    parser.add_argument("--scratch", type=whole(0), default=6, help="number of runs from scratch")
    parser.add_argument("--seeds", type=whole(), default=1, help="number of seeds")
    parser.add_argument("--every", type=whole(), default=2048, help="updates between checkpoints")
    print(plan(parser.parse_args(argv)))
