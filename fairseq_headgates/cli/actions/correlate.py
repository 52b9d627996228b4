"""Compute the correlation of score files (no torch)."""

import itertools
from dataclasses import asdict
from pathlib import Path

from fairseq_headgates.cli.commands.correlate import CorrelateOptions
from fairseq_headgates.cli.output import say
from fairseq_headgates.cli.parser import chosen_types
from fairseq_headgates.drawing.tables import agreement_table, matrix
from fairseq_headgates.files import to_json, write_whole
from fairseq_headgates.heads import DATA, HeadTable, Signature, read_scores
from fairseq_headgates.scores.agreement import agreement, common_types
from fairseq_headgates.scores.options import SCORES


def run(options: CorrelateOptions) -> None:
    """Run `headgates correlate`."""
    tables = _tables(options)
    types = chosen_types(options.types)
    pairs = []
    for (first, a), (second, b) in itertools.combinations(tables.items(), 2):
        _check_mixed(first, a, second, b, options.any)
        common = types or common_types(a, b)
        for group in [common, *([(attention_type,) for attention_type in common] if options.each_type else [])]:
            agreed = agreement(HeadTable(a.layers, first), HeadTable(b.layers, second), group, options.top)
            pairs.append({"a": first, "b": second, "types": ",".join(group), **asdict(agreed)})
    result = to_json(pairs)
    if options.out is not None:
        write_whole(options.out, result + "\n", options.force)
    text = agreement_table(pairs)
    if len(tables) > 2 and not options.each_type:
        between = matrix("Spearman", list(tables), {(p["a"], p["b"]): p["spearman"] for p in pairs})
        text = f"{between}\n\n{text}"
    say(result if options.json else text)


def _tables(options: CorrelateOptions) -> dict[str, HeadTable]:
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
