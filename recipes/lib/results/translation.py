"""The table of translation models, and that with the layout of Voita et al. 2019."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import text_table
from results import columns
from results.columns import COMPARED, LEVEL, PUBLISHED, Column, Value
from results.papers import VOITA, VOITA_HEADS, Published
from results.rows import Row

SCORES = ("BLEU", "chrF2")
DECIMALS = 6


def of_type(kind: str) -> Column:
    """Return the column of the heads of an attention type."""
    return Column(
        kind,
        lambda row: row.evaluation.heads.get(kind),
        columns.heads,
        {kind: lambda row: row.evaluation.heads[kind][0] if kind in row.evaluation.heads else None},
    )


def bleu(row: Row) -> float:
    return round(row.score("BLEU"), DECIMALS)


def chrf(row: Row) -> float:
    return round(row.score("chrF2"), DECIMALS)


def diff(row: Row) -> float:
    """Return the difference of the rounded BLEU, which is that of the numbers in the TSV."""
    return bleu(row) - round(row.score_of_control("BLEU"), DECIMALS)


def nll(row: Row) -> float:
    return row.loss("valid").mean


COLUMNS = [
    *map(of_type, TYPES),
    columns.total("total", columns.heads, "total"),
    columns.PARAMETERS,
    Column("BLEU", bleu, columns.with_range(".2f")),
    Column(
        "diff",
        diff,
        columns.with_range("+.2f"),
        {"control": lambda row: row.run.control, "diff": lambda row: round(diff(row), DECIMALS)},
        COMPARED,
    ),
    Column(
        "p",
        lambda row: row.p("BLEU"),
        columns.p_values,
        {
            "p BLEU": lambda row: row.p("BLEU"),
            "p chrF2": lambda row: row.p("chrF2"),
            "p signature": lambda row: row.differences["BLEU"].signature if row.differences else None,
        },
        COMPARED,
        f"p<{LEVEL}",
    ),
    Column(
        "chrF",
        chrf,
        columns.averaged(".2f"),
        {
            "chrF2": chrf,
            "BLEU signature": lambda row: row.evaluation.scores["BLEU"].signature,
            "chrF2 signature": lambda row: row.evaluation.scores["chrF2"].signature,
        },
    ),
    Column("nll", nll, columns.with_range(".3f")),
]


def of_table(args: argparse.Namespace) -> list[Column]:
    return [*COLUMNS, *([published(args.paper)] if args.paper else [])]


def legend(seeds: Sequence[Sequence[Row]], args: argparse.Namespace) -> str:
    rows = [row for of_seed in seeds for row in of_seed]
    controls = ", ".join(dict.fromkeys(row.run.control for row in rows))
    lines = [
        f"diff, p: BLEU against the control ({controls}), paired bootstrap",
        "nll: bits per token on the validation set (lower is better)",
        *(f"{name}: {rows[-1].evaluation.scores[name].signature}" for name in SCORES),
    ]
    for of_seed in seeds if args.paper else []:
        seed = f", seed {of_seed[0].seed}" if len(seeds) > 1 else ""
        lines += [f"\nBLEU as in table 2 of Voita et al. 2019 ({args.paper}{seed}):", as_published(of_seed, args.paper)]
    return "\n".join(lines)


# --- the paper ------------------------------------------------------------------------------------------------------


def published(paper: str) -> Column:
    """Return the column of the TSV with the row of the paper."""

    def of_paper(row: Row) -> str | None:
        found = nearest(row, paper)
        return found and (found.scratch if row.run.method == "scratch" else found.trained)

    def kept(row: Row) -> str | None:
        found = nearest(row, paper)
        return found and slashed(found.heads)

    values: dict[str, Value] = {"paper heads": kept, "paper BLEU": of_paper}
    return Column("", kept, tsv=values, order=PUBLISHED)


def as_published(rows: Sequence[Row], paper: str) -> str:
    """Return the table with the layout of the paper: a run and the same heads trained from scratch in one line."""
    scratch = {row.run.value: f"{bleu(row):.2f}" for row in rows if row.run.method == "scratch"}
    lines = []
    for row in rows:
        if row.run.method != "scratch":
            found = nearest(row, paper)
            kept = slashed(row.evaluation.heads[kind][0] for kind in TYPES)
            line = [row.run.name, kept, f"{bleu(row):.2f}", scratch.get(row.run.name, "-")]
            lines.append([*line, *((slashed(found.heads), found.trained, found.scratch) if found else "---")])
    header = ["model", "heads e/d/d-e", "trained", "scratch", "| paper: heads", "trained", "scratch"]
    return text_table(header, lines)


def nearest(row: Row, paper: str) -> Published | None:
    """Return the row of the paper that keeps the most similar fraction of heads."""
    kept, heads = row.evaluation.heads["total"]
    rows = VOITA[paper].get(row.run.types or row.run.name, [])
    return min(rows, key=lambda found: abs(sum(found.heads) / VOITA_HEADS - kept / heads), default=None)


def slashed(numbers: Iterable[int]) -> str:
    return "/".join(map(str, numbers))
