"""The table of language models."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_headgates.drawing.panels import Panel
from results import columns
from results.columns import PUBLISHED, Column, Value, speed, with_range
from results.papers import SHIM, SHIM_HEADS
from results.plots import over_heads
from results.rows import Row

SUBSETS = ("valid", "test")
NAMES = ("loss", "perplexity", "perplexity_per_word", "tokens", "unknown", "words")  # in the TSV


def measured(subset: str, name: str) -> Value:
    """Return the function for what is measured on a subset."""

    return lambda row: getattr(row.evaluation.losses[subset], "mean" if name == "loss" else name)


def perplexity(subset: str) -> Column:
    values = {f"{subset} {name}": measured(subset, name) for name in NAMES}
    return Column(subset, measured(subset, "perplexity"), with_range(".2f"), values)


def per_word(subset: str) -> Column:
    return Column(f"{subset}/word", measured(subset, "perplexity_per_word"), with_range(".2f"), {})


def heads(values: Sequence[tuple[int, int]]) -> str:
    """Format the mean number of heads kept, with the range where the seeds differ."""
    kept = sorted({value[0] for value in values})
    return columns.heads(values) + (f" ({kept[0]}..{kept[-1]})" if len(kept) > 1 else "")


COLUMNS = [
    columns.total("heads", "heads", heads),
    columns.PARAMETERS,
    *map(perplexity, SUBSETS),
    *map(per_word, SUBSETS),
    Column("tokens/s", speed, with_range(",.0f"), {"tokens per second": speed}, optional=True),
]


def published(row: Row) -> str | None:
    """Return the heads that Shim et al. 2021 keep; None for a run that they do not have."""
    kept = SHIM.get(float(row.run.value)) if row.run.method == "l0" else None if row.run.method else SHIM_HEADS
    return f"{kept}/{SHIM_HEADS}" if kept else None


PAPERS = {"shim": Column("paper", published, tsv={"paper heads": published}, order=PUBLISHED)}


def legend(seeds: Sequence[Sequence[Row]], paper: str, bpe: int) -> str:
    """Return what the columns mean, and the size of the text."""
    first = seeds[0][0]
    token = f"token (BPE, {bpe:,} merges)" if bpe else "token (a word)"
    lines = [
        f"valid, test: perplexity per {token}; valid/word, test/word: per word of the text",
        "The end of a line counts as a token and as a word.",
    ]
    for subset in SUBSETS:
        tokens, words, unknown = (measured(subset, name)(first) for name in ("tokens", "words", "unknown"))
        lines.append(f"{subset} set: {tokens:,} tokens, {words:,} words, {100 * unknown / tokens:.2f}% unknown tokens")
    lines += ["tokens/s: evaluation of the test set, one model at a time"] * (speed(first) is not None)
    return "\n".join([*lines, *(["paper: heads kept in Shim et al. 2021"] if paper else [])])


def panels(seeds: Sequence[Sequence[Row]]) -> list[Panel]:
    score = measured("test", "perplexity_per_word")
    return [over_heads("perplexity per word (test)", seeds, score)]
