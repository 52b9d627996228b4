#!/usr/bin/env python3
"""Print the name of a model, and in three lines what was removed from a model, what that cost, and what it saves.

    removed.py RUN_DIR DATA OPTIONS...        OPTIONS: those of fairseq-generate

The folder holds what lib/models.sh writes, and lies beside that of its control. Both models translate the subset in
turn, twice after a first one that does not count; the speed is that of the fastest. With one thread on a CPU it
is measured in processor time, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

import torch

from commands import ArgumentParser, exit_code
from evaluated import Run
from fairseq_headgates import evaluation
from fairseq_headgates.checkpoints import load_model
from fairseq_headgates.cli.fairseq_options import fairseq_options

ROUNDS = 2


def what_was_removed(run: Run) -> str:
    """Return the number of heads removed of each type of attention."""
    removed = {kind: total - kept for kind, (kept, total) in run.heads.items()}
    kinds = ", ".join(f"{number} {kind}" for kind, number in removed.items() if number and kind != "total")
    return f"removed: {removed['total']} of {run.heads['total'][1]} heads ({kinds})"


def words_per_second(paths: list[Path], options: list[str]) -> list[float]:
    """Return the speed of beam search with each model."""
    args = fairseq_options("removed.py", [*options, "--path", str(paths[0])])
    task = evaluation.setup_task(args)
    systems = []
    for path in paths:
        model = load_model(str(path))[1]
        metric = evaluation.metric_of("bleu", model, evaluation.load_corpus(args, task, model))
        systems.append((metric, metric.prepared(model)))
    alone = evaluation.device_of(args).type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    fastest = [0.0] * len(systems)
    for turn in range(ROUNDS + 1):
        for number, (metric, model) in enumerate(systems):
            begun = clock()
            words = sum(len(line.split()) for line in metric.predict(model))
            if turn:
                fastest[number] = max(fastest[number], words / (clock() - begun))
    return fastest


def work(args: argparse.Namespace) -> None:
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")  # those of fairseq's libraries
    run = Run.read(args.run)
    control = Run.read(args.run.parent / run.control)
    paths = [control.folder / "checkpoint_last.pt", run.folder / "pruned.pt"]
    before, after = words_per_second(paths, [args.data, *args.options])
    smaller = 1 - run.parameters / control.parameters
    print(f"{run.name}:")
    print(what_was_removed(run))
    print(f"cost: {run.bleu - control.bleu:+.2f} BLEU against {control.name} (p = {run.p:.3f})")
    print(
        f"saved: {smaller:.0%} of {control.parameters / 1e6:.2f}M parameters; {after:,.0f} words per second instead of "
        f"{before:,.0f} ({after / before:.2f} times)"
    )


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTIONS")
    return exit_code("removed.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
