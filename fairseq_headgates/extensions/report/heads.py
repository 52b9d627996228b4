"""The heads and neurons that checkpoints keep, as tables and a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from fairseq_headgates.attention.modules import attention_modules
from fairseq_headgates.drawing.figures import kept_heads
from fairseq_headgates.drawing.result import Plot, Result, Table, short_names
from fairseq_headgates.drawing.tables import gate_tables, open_counts
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.plugin.models.building import read_heads

KIND = "Heads and neurons"
NOTE = "Blue: open heads, with the value of a gate below 1. Grey: removed from the weights. Neurons: of each layer."


def heads_results(models: Sequence[tuple[str, tuple[dict[str, Any], nn.Module]]]) -> Iterator[Result]:
    """Yield the heads and neurons of several checkpoints, each a name, its state and its model."""
    rows: list[dict[str, str]] = []
    drawn, gated = {}, []
    for name, (path, (state, model)) in zip(short_names([path for path, _ in models]), models, strict=True):
        heads = read_heads(state, path, model)
        row = {"model": name, "parameters": f"{heads.parameters:,}"}
        row |= {each: f"{kept} of {total}" for each, (kept, total) in open_counts(heads.gate).items()}
        for side, dims in heads.ffn_dims.items():
            before = getattr(model.args, f"{side}_ffn_embed_dim")
            row[f"{side} neurons"] = f"{', '.join(map(str, dims))} of {before}"
        rows.append({("heads" if title == "total" else title): cell for title, cell in row.items()})
        if any(gate != 1 for gate in heads.gate.values()):
            drawn[name] = _without_removed(heads.gate, model)
        if any(0.005 <= p < 0.995 for p in heads.open_probability.values()):
            tables = gate_tables(heads.open_probability, heads.gate)
            gated.append(Result(kind=KIND, title=f"Gates of {name}", tables=tables))
    if rows:
        header = list(dict.fromkeys(title for row in rows for title in row))
        table = Table("", header, [[row.get(title, "all") for title in header] for row in rows])
        smallest = rows[min(range(len(rows)), key=lambda i: int(rows[i]["parameters"].replace(",", "")))]
        sentence = f"{smallest['model']} has {smallest['heads']} heads and {smallest['parameters']} parameters."
        figures = [Plot("", partial(kept_heads, drawn))] if drawn else []
        yield Result(kind=KIND, sentence=sentence, note=NOTE, tables=[table], figures=figures)
    yield from gated


def _without_removed(gate: HeadTable, model: nn.Module) -> HeadTable:
    """Return the gates, NaN for heads that are not in the weights."""
    kept = {(m.attention_type, m.layer, head) for m in attention_modules(model) for head in m.attention.kept}
    rows = {
        each: [[g if (each, i, j) in kept else float("nan") for j, g in enumerate(row)] for i, row in enumerate(layers)]
        for each, layers in gate.layers.items()
    }
    return HeadTable(rows, "gate")
