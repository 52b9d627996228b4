"""`headgates correlate`: compute the correlation of score files (no torch)."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from fairseq_headgates.cli.command import Answer, argument, command, option
from fairseq_headgates.cli.options import Output, types
from fairseq_headgates.cli.parser import Once, chosen_types
from fairseq_headgates.drawing.tables import agreement_table, matrix
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import DATA, HeadTable, Signature, read_scores
from fairseq_headgates.scores.options import SCORES


@command(
    "correlate",
    "headgates correlate two.json",
    "headgates correlate valid.json test.json --each-type --top 4",
)
class Correlate(Output):
    """Compute the correlation of score files.

    Compute Pearson and Spearman correlations of all pairs of scores in the files: of several methods on the same data,
    or of one method on several data sets or checkpoints.
    """

    needs_models: ClassVar[bool] = False

    files: list[str] = argument(
        metavar="FILE", nargs="+", reads="the score file", help="score files of `headgates score --out`"
    )
    method: str | None = option(
        metavar="M[,M...]", action=Once, help="compare only the scores of these methods (default: all)"
    )
    types: str | None = types("compare only these attention types (default: those that both scores have)")
    each_type: bool = option(default=False, help="also compare each attention type alone")
    top: int | None = option(
        metavar="K",
        type=int,
        help="print the overlap of the K highest-scored heads (default: a quarter of the heads)",
    )
    any: bool = option(
        default=False, help="also compare scores that differ in both method and model or data (default: an error)"
    )

    def run(self, session: Any) -> Answer:
        """Correlate each pair of scores."""
        from fairseq_headgates.scores.agreement import agreement, common_types

        tables, types, pairs = _tables(self), chosen_types(self.types), []
        for (first, a), (second, b) in itertools.combinations(tables.items(), 2):
            _check_mixed(first, a, second, b, self.any)
            common = types or common_types(a, b)
            for group in [common, *([(attention_type,) for attention_type in common] if self.each_type else [])]:
                agreed = agreement(HeadTable(a.layers, first), HeadTable(b.layers, second), group, self.top)
                pairs.append({"a": first, "b": second, "types": ",".join(group), **asdict(agreed)})
        content, text = to_json(pairs), agreement_table(pairs)
        if len(tables) > 2 and not self.each_type:
            between = matrix("Spearman", list(tables), {(p["a"], p["b"]): p["spearman"] for p in pairs})
            text = f"{between}\n\n{text}"
        return Answer(text=text, json=content, files={"out": content + "\n"})


def _tables(options: Correlate) -> dict[str, HeadTable]:
    """Return the scores to compare, by method, by file, or by both, whichever distinguishes them."""
    names = None if options.method is None else [name.strip() for name in options.method.split(",")]
    for i, path in enumerate(options.files):
        if any(Path(path).resolve() == Path(other).resolve() for other in options.files[:i]):
            raise ValueError(f"{path} is given twice: name each file once")
    stored = [(path, table) for path in options.files for table in read_scores(path)]
    chosen = [(path, table) for path, table in stored if names is None or table.name in names]
    for name in names or []:
        if all(table.name != name for _, table in stored):
            raise ValueError(
                f"no file has scores of {name!r}: they hold {', '.join(sorted({t.name for _, t in stored}))}"
            )
    if len(chosen) < 2:
        raise ValueError(f"the number of scores is {len(chosen)}: at least two are needed, name more files or methods")
    methods, files = {table.name for _, table in chosen}, {path for path, _ in chosen}
    if len(files) == 1:
        return {table.name: table for _, table in chosen}
    return {path if len(methods) == 1 else f"{path}:{table.name}": table for path, table in chosen}


def _check_mixed(first: str, a: HeadTable, second: str, b: HeadTable, anything: bool) -> None:
    """Raise ValueError for scores that differ in method and in model or data: their agreement means nothing."""
    origins = [_origin(table) for table in (a, b)]
    differ = [key for key in origins[0].keys() & origins[1].keys() if origins[0][key] != origins[1][key]]
    if anything or a.name == b.name or not differ:
        return
    origin = ", ".join(f"{key} {origins[0][key]} and {origins[1][key]}" for key in sorted(differ))
    raise ValueError(
        f"{first} and {second} differ in both method ({a.name}, {b.name}) and origin ({origin}): compare scores of one "
        "method, or of one model and the same data, or pass --any"
    )


def _origin(table: HeadTable) -> dict[str, str]:
    """Return the parts of a signature that name the model and, if the scores depend on them, the data."""
    parts = Signature.parse(table.signature).parts
    if table.name in SCORES and not SCORES[table.name].needs_data:
        return {key: parts[key] for key in ("ckpt", "updates") if key in parts}
    options = {"options": parts.get("options", "fairseq's defaults")}
    return {key: parts[key] for key in ("ckpt", "updates", *DATA, "split", "sents") if key in parts} | options
