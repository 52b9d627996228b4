"""The table of a recipe with several seeds: means and ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

from evaluated import Run, difference
from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import results_table, rounded

LEVEL = 0.05


def over_seeds(seeds: Sequence[Sequence[Run]]) -> str:
    """Return the table with a row for each model; each seed has the same models.

    Raises:
        ValueError: if a seed lacks a model
    """
    models = {run.name: [_same(run.name, runs) for runs in seeds] for run in seeds[0]}
    for runs in seeds[1:]:
        for run in runs:
            if run.name not in models:
                raise ValueError(
                    f"seed {seeds[0][0].seed} has no {run.name}, which seed {run.seed} has: run the recipe again"
                )
    return results_table({name: _row(runs, seeds) for name, runs in models.items()})


def _same(name: str, runs: Sequence[Run]) -> Run:
    for run in runs:
        if run.name == name:
            return run
    raise ValueError(f"seed {runs[0].seed} has no {name}, which another seed has: run the recipe again")


def _row(runs: Sequence[Run], seeds: Sequence[Sequence[Run]]) -> dict[str, str]:
    differences = [difference(run, of_seed) for run, of_seed in zip(runs, seeds, strict=True)]
    return (
        {
            kind: mean_heads([run.heads[kind][0] for run in runs], runs[0].heads[kind][1])
            for kind in (*TYPES, "total")
            if kind in runs[0].heads
        }
        | {
            "params": f"{mean(run.parameters for run in runs) / 1e6:.2f}M",
            "BLEU": with_range((run.bleu for run in runs), ".2f"),
            "diff": with_range(differences, "+.2f"),
            **significant(run.p for run in runs),
            "chrF": f"{mean(run.chrf for run in runs):.2f}",
            "nll": with_range((run.nll for run in runs), ".3f"),
        }
        | {name: with_range((run.metrics[name] for run in runs), ".4g") for name in runs[0].metrics}
    )


def significant(p_values: Iterable[float | None]) -> dict[str, str]:
    """Return the column that counts seeds with a significant difference; None is the p-value of a control."""
    found = [p < LEVEL for p in p_values if p is not None]
    return {f"p<{LEVEL}": f"{sum(found)}/{len(found)}" if found else "-"}


def mean_heads(kept: Sequence[int], heads: int) -> str:
    """Return the mean number of heads kept of `heads`, with a decimal where the seeds differ."""
    return f"{mean(kept):.{int(len(set(kept)) > 1)}f}/{heads}"


def with_range(values: Iterable[float], form: str) -> str:
    """Format the mean, and the lowest and highest value: 37.45 (37.20..37.70)."""
    found = list(values)
    middle, low, high = (rounded(value, form) for value in (mean(found), min(found), max(found)))
    return f"{middle} ({low}..{high})"
