"""The sections of a report: what is drawn of each kind of input, and the tables below it (no torch)."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_headgates.extensions.page.content import Experiment, ModelHeads, Training
from fairseq_headgates.extensions.page.grids import Grids, closed_grids, function_grids, gate_grids, score_grids
from fairseq_headgates.extensions.page.panels import (
    Panel,
    checkpoint_panels,
    function_panels,
    overlap_panel,
    sweep_panels,
    training_panels,
)
from fairseq_headgates.heads import AttentionMap, HeadId, HeadTable, Signature
from fairseq_headgates.plugin.gate_log import thinned
from fairseq_headgates.report.evaluations import evaluation_table, translation_table
from fairseq_headgates.report.functions import GROUPS, function_table, group_counts
from fairseq_headgates.report.maps import by_type
from fairseq_headgates.report.panels import curve_panels
from fairseq_headgates.report.tables import (
    best_head_table,
    curve_table,
    gate_table,
    layer_tables,
    open_counts,
    overlap_table,
    score_table,
    text_table,
)
from fairseq_headgates.report.text import text_style

FRAMES = 100  # steps of the animation
TRANSLATIONS = 10  # sentences whose translations are shown
TITLES_AND_INTROS = {
    "heads": (
        "Heads",
        "Each number is the evaluation gate of a head: open above 0, closed at 0 (dashed). Hatched heads are removed "
        "from the weights. A head without a gate counts as 1.",
    ),
    "bleu": (
        "Quality and heads kept",
        "BLEU, perplexity or accuracy, and the number of heads that pruned models keep.",
    ),
    "overlap": (
        "Heads in common",
        "The heads that two masks both keep, divided by those that at least one keeps. By chance: random masks that "
        "keep as many heads.",
    ),
    "translations": (
        "Evaluations",
        "Scores of models on the same data, with 95% confidence intervals, and translations of the first sentences.",
    ),
    "functions": (
        "Functions",
        "P: positional, S: syntactic (needs trees), R: rare tokens, A: alignment (needs alignments). An empty cell is "
        "a head without a function at the thresholds of the file.",
    ),
    "scores": (
        "Importance",
        "A higher score means a more important head. The colours of each figure range from its lowest to its highest "
        "score.",
    ),
    "ablation": ("Ablation", "Increase of the loss when heads are masked."),
    "training": (
        "Training",
        "Cross-entropy as fairseq logs it in nll_loss, without label smoothing and penalty; in training with dropout. "
        "Open heads are means over the updates between two lines of the log.",
    ),
    "attention": (
        "Attention maps",
        "Rows are queries, columns are keys; cells are attention weights in percent, printed from 10% up. Maps of "
        "heads with a closed gate are grey; a removed head has no map.",
    ),
}
SWEEP_NOTE = (
    "BLEU: mean of the seeds, bars: their range; horizontal lines: models without pruning. Heads by type and layer are "
    "those of the method with the most models. In the table, diff is BLEU minus BLEU of the control."
)
GROUPS_NOTE = (
    "Open heads by function, as in Voita et al. 2019. A head with several functions counts for the first of "
    "positional, syntactic, rare, alignment."
)
FRAMES_NOTE = (
    "Darker: closed with a higher probability in training. A head whose P(gate = 0) is above 0.5 can still be open in "
    "evaluation."
)
INK = "#010203"  # stands for the colour of the text of the page
# Colours of lines that can be told apart in all common kinds of colour blindness (Okabe and Ito 2008), and that have a
# contrast of at least 3 with a white and with a dark page.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#B5679A", "#8C6D1F"]


@dataclass(frozen=True)
class Figure:
    """One figure of the page.

    Attributes:
        title: its title
        table: the same as text
        grids: grids of heads
        plots: (title, SVG)
        frames: P(gate = 0) over a training, for the slider
        maps: attention maps of one sentence, by attention type: (type, title, maps)
        note: how to read it
    """

    title: str
    table: str = ""
    grids: Grids = field(default_factory=dict)
    plots: Sequence[tuple[str, str]] = ()
    frames: Mapping[str, Any] | None = None
    maps: Sequence[tuple[str, str, list[AttentionMap]]] = ()
    note: str = ""


def sections(found: Experiment) -> dict[str, list[Figure]]:
    """Return the figures of each section that has some, with figures for everything in the experiment."""
    figures: dict[str, list[Figure]] = {
        "heads": [*map(_heads, found.models)],
        "bleu": [*_each(_sweep, found.sweeps), *_kept(found.models), *_each(_curve, found.curves)],
        "translations": [*_evaluations(found)],
        "overlap": [*_each(_overlap, found.overlaps)],
        "functions": [*_functions_by_checkpoint(found.functions), *_each(_functions, found.functions)],
        "scores": [
            Figure(f"{table.name} ({name})", score_table(table), score_grids(table), note=table.signature)
            for name, table in found.scores
        ],
        "ablation": [*_each(_ablation, found.ablations)],
        "training": [*_trainings(found.trainings)],
        "attention": [
            Figure(f"{name}, sentence {number}", maps=by_type(maps))
            for name, sentences in found.attention
            for number, maps in sentences.items()
        ],
    }
    return {name: of_section for name, of_section in figures.items() if of_section}


def _each(figure: Callable[[str, Any], Figure], files: Sequence[tuple[str, Any]]) -> Iterator[Figure]:
    """Yield a figure for each of several files."""
    for name, content in files:
        with _complete(name):
            drawn = figure(name, content)
        yield drawn


def _heads(model: ModelHeads) -> Figure:
    kept, total = open_counts(model.gate)["total"]
    title = f"{model.name}: {kept} of {total} heads, {model.parameters / 1e6:.2f}M parameters"
    return Figure(title, gate_table(model.open_probability, model.gate), gate_grids(model))


def _sweep(name: str, models: Sequence[Mapping[str, Any]]) -> Figure:
    scores = {"BLEU": ".2f", "diff": "+.2f", "nll": ".3f"}
    rows = [
        [
            model["name"],
            *(f"{number:g}" for number in model["heads"].values()),
            *(_range(model[score], form) for score, form in scores.items()),
        ]
        for model in models
    ]
    table = text_table(["model", *models[0]["heads"], *scores], rows)
    return Figure(name, table, plots=_drawn(sweep_panels(models)), note=SWEEP_NOTE)


def _range(values: Sequence[float], form: str) -> str:
    """Return the mean of the seeds, and their range."""
    mean = sum(values) / len(values)
    return f"{mean:{form}}" + (f" ({min(values):{form}}..{max(values):{form}})" if len(values) > 1 else "")


def _kept(models: Sequence[ModelHeads]) -> Iterator[Figure]:
    """Compare the checkpoints that have the same attention types and numbers of layers."""
    groups: dict[tuple[tuple[str, int], ...], list[dict[str, Any]]] = {}
    for name, model in zip(_short([model.name for model in models]), models, strict=True):
        heads = {attention_type: count for attention_type, (count, _) in open_counts(model.gate).items()}
        layers = {each: [sum(gate > 0 for gate in row) for row in rows] for each, rows in model.gate.values.items()}
        shape = tuple((attention_type, len(rows)) for attention_type, rows in layers.items())
        groups.setdefault(shape, []).append({"name": name, "heads": heads, "layers": layers})
    for group in groups.values():
        if len(group) > 1:
            group.sort(key=lambda model: model["heads"]["total"])
            by_layer = ([" ".join(map(str, row)) for row in model["layers"].values()] for model in group)
            rows = [[m["name"], str(m["heads"]["total"]), *row] for m, row in zip(group, by_layer, strict=True)]
            table = text_table(["checkpoint", "total", *(f"{each} by layer" for each in group[0]["layers"])], rows)
            yield Figure("Heads kept by each checkpoint", table, plots=_drawn(checkpoint_panels(group)))


def _curve(name: str, points: Sequence[Mapping[str, Any]]) -> Figure:
    origins = [str(points[0][key]) for key in ("signature", "measured") if key in points[0]]
    return Figure(name, curve_table(points), plots=_drawn(curve_panels(points)), note="; measured on ".join(origins))


def _overlap(name: str, pairs: Sequence[Mapping[str, Any]]) -> Figure:
    return Figure(name, overlap_table(pairs), plots=_drawn([overlap_panel(pairs)]))


def _evaluations(found: Experiment) -> Iterator[Figure]:
    """Compare the evaluations of the same data, in the order of the inputs."""
    groups: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, data in found.evaluations:
        with _complete(name):
            of_data = Signature.parse(data["signature"]).data(data["subset"])
            of_data.pop("data" if data.get("references") else "", None)  # a folder that may have moved
            groups.setdefault(json.dumps([of_data, data.get("references")]), {})[name] = data
    for group in groups.values():
        with _complete(next(iter(group))):
            named = dict(zip(_short([*group]), group.values(), strict=True))
            table = f"{evaluation_table(named)}\n\n{translation_table(named, TRANSLATIONS)}".rstrip()
        yield Figure(f"{next(iter(group.values()))['subset']}, {len(group)} evaluated", table)


def _functions(name: str, result: Mapping[str, Any]) -> Figure:
    return Figure(name, function_table(result), function_grids(result), note=str(result["signature"]))


def _functions_by_checkpoint(functions: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Figure]:
    """Compare the functions of the heads that several checkpoints keep."""
    if len(functions) < 2:
        return
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name, (path, result) in zip(_short([name for name, _ in functions]), functions, strict=True):
        with _complete(path):
            for attention_type in result["heads"]:
                counts.setdefault(attention_type, {})[name] = group_counts(result, attention_type)
    rows = [
        [attention_type, name, str(sum(number.values())), *map(str, number.values())]
        for attention_type, by_name in counts.items()
        for name, number in by_name.items()
    ]
    table, plots = text_table(["type", "file", "open", *GROUPS, "none"], rows), _drawn(function_panels(counts))
    yield Figure("Functions of the heads of each checkpoint", table, plots=plots, note=GROUPS_NOTE)


def _short(paths: Sequence[str]) -> list[str]:
    """Return the names of the folders or of the files, the first that all differ; else the paths."""
    for names in ([Path(path).parent.name for path in paths], [Path(path).stem for path in paths]):
        if "" not in names and len({*names}) == len(names):
            return names
    return [*paths]


def _ablation(name: str, data: Mapping[str, Any]) -> Figure:
    increase = HeadTable(data["nll_difference"])
    loss = increase.map(lambda value: float("nan") if value is None else float(value), "increase of bits")
    single = data["mode"] == "single"
    tables = [score_table(loss)]
    for metric in ("bleu", "accuracy"):
        if f"{metric}_difference" in data:
            change = _by_head(data[f"{metric}_difference"], loss)
            p = _by_head({head: p for head, p in data.get("p_value", {}).items() if p is not None}, loss)
            tables += layer_tables(change, p, metric) if single else [best_head_table(change, p)]
    what = "each head masked" if single else "each head as the only one of its layer"
    return Figure(f"{name}: {what}", "\n\n".join(tables), score_grids(loss), note=str(data["signature"]))


def _by_head(values: Mapping[str, float], table: HeadTable) -> dict[HeadId, float]:
    """Return values by head. Raise ValueError or KeyError for a head that is not in the table."""
    known = {head for head, _ in table.items()}
    found = {HeadId.parse(head): float(value) for head, value in values.items()}
    if not found.keys() <= known:
        raise ValueError("heads that the model does not have")
    return found


def _trainings(trainings: Sequence[Training]) -> Iterator[Figure]:
    for training in trainings:
        with _complete(training.name):
            plots = _drawn(training_panels(training.series))
        if plots:
            yield Figure(training.name, _last_values(training), plots=plots)
        if training.gates:
            yield _animation(training)


def _last_values(training: Training) -> str:
    """Return the numbers at each validation."""
    points = {name.removeprefix("valid "): dict(found) for name, found in training.series.items() if "valid " in name}
    names = [name for name in points if name in ("loss", "nll_loss") or name.startswith("heads_open")]
    updates = sorted({update for name in names for update in points[name]})
    rows = [[str(update), *(f"{points[name].get(update, float('nan')):g}" for name in names)] for update in updates]
    return text_table(["update", *names], rows) if rows else ""


def _animation(training: Training) -> Figure:
    """P(gate = 0) with a slider over the updates."""
    records = thinned(training.gates, FRAMES)
    attention_types = records[0].closed.types
    rows = [
        [str(record.update), *(f"{sum(1 - p for p in record.closed.heads(each)):.1f}" for each in attention_types)]
        for record in thinned(training.gates, 20)
    ]
    rounded = [record.closed.map(lambda p: round(p, 2), "P(gate = 0)").values for record in records]
    return Figure(
        f"{training.name}: P(gate = 0)",
        text_table(["update", *(f"expected open {attention_type}" for attention_type in attention_types)], rows),
        closed_grids(records[-1].closed),
        frames={
            "updates": [record.update for record in records],
            "closed": [[values[each] for values in rounded] for each in attention_types],  # in the order of the grids
        },
        note=FRAMES_NOTE,
    )


@contextmanager
def _complete(name: str) -> Iterator[None]:
    """Within the context, whatever is wrong with the content of a file is a ValueError that names it."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RuntimeError):
        raise ValueError(f"{name} lacks values, or has others than its format allows: write it again") from None


def _drawn(panels: Sequence[Panel]) -> list[tuple[str, str]]:
    """Return the titles of panels, and their plots as SVG."""
    return [(panel.title, _svg(panel)) for panel in panels]


def _svg(panel: Panel) -> str:
    """Draw a panel for a page: lines and text in the colour of its text, and no names that other plots have."""
    from cycler import cycler
    from matplotlib.figure import Figure as Drawing

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = dict.fromkeys(inked, INK) | {"axes.prop_cycle": cycler(color=COLOURS)}
    style |= {"legend.framealpha": 0.0, "svg.hashsalt": panel.title}
    content = io.StringIO()
    with text_style(style):
        drawing = Drawing(figsize=(4.2, 3.4), layout="constrained")
        axes = drawing.subplots()
        panel.draw(axes)
        axes.patch.set_alpha(0)
        drawing.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = content.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
