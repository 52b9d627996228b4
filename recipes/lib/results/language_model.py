"""The table of language models."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fairseq_headgates.report import Panel
from results import columns
from results.columns import PUBLISHED, Column, Value
from results.papers import SHIM, SHIM_HEADS
from results.plots import over_heads
from results.rows import Row, lacks

SUBSETS = ("valid", "test")
# Names in the TSV, and of the loss of a subset.
MEASURED = {"loss": "mean", "perplexity": "perplexity", "perplexity_per_word": "perplexity_per_word"}
MEASURED |= {"tokens": "tokens", "unknown": "unknown", "words": "words"}


def measured(subset: str, name: str) -> Value:
    """Return the function for what is measured on a subset."""

    def value(row: Row) -> Any:
        found = getattr(row.loss(subset), MEASURED[name])
        if found is None:
            raise lacks(row.folder, f"{name} of the subset {subset}")
        return found

    return value


def perplexity(subset: str) -> Column:
    values = {f"{subset} {name}": measured(subset, name) for name in MEASURED}
    return Column(subset, measured(subset, "perplexity"), columns.with_range(".2f"), values)


def per_word(subset: str) -> Column:
    return Column(f"{subset}/word", measured(subset, "perplexity_per_word"), columns.with_range(".2f"), {})


def published(row: Row) -> str | None:
    """Return the heads that Shim et al. 2021 keep; None for a run that they do not have."""
    if not row.run.method:
        return f"{SHIM_HEADS}/{SHIM_HEADS}"
    kept = SHIM.get(float(row.run.value)) if row.run.method == "l0" else None
    return f"{kept}/{SHIM_HEADS}" if kept else None


COLUMNS = [
    columns.total("heads", columns.heads_with_range, "heads"),
    Column("paper", published, tsv={"paper heads": published}, order=PUBLISHED),
    columns.PARAMETERS,
    *map(perplexity, SUBSETS),
    *map(per_word, SUBSETS),
    Column("tokens/s", Row.speed, columns.with_range(",.0f"), {"tokens per second": Row.speed}, optional=True),
]


def of_table(args: argparse.Namespace) -> list[Column]:
    return [column for column in COLUMNS if args.paper or column.title != "paper"]


def legend(seeds: Sequence[Sequence[Row]], args: argparse.Namespace) -> str:
    """Return what the columns mean, and the size of the text."""
    first = seeds[0][0]
    tokens = f"token (BPE, {args.bpe:,} merges)" if args.bpe else "token (a word)"
    lines = [
        f"valid, test: perplexity per {tokens}; valid/word, test/word: per word of the text",
        "The end of a line counts as a token and as a word.",
    ]
    for subset in SUBSETS:
        number, words, unknown = (measured(subset, name)(first) for name in ("tokens", "words", "unknown"))
        lines.append(f"{subset} set: {number:,} tokens, {words:,} words, {100 * unknown / number:.2f}% unknown tokens")
    if first.speed() is not None:
        lines.append("tokens/s: evaluation of the test set, one model at a time")
    if args.paper:
        lines.append("paper: heads kept in Shim et al. 2021")
    return "\n".join(lines)


def panels(seeds: Sequence[Sequence[Row]]) -> list[Panel]:
    score = measured("test", "perplexity_per_word")
    return [over_heads("perplexity per word (test)", seeds, score, lambda row: "gates")]
