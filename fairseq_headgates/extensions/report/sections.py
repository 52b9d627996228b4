"""The sections of a report: what is drawn of each kind of input, and the tables below it (no torch)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairseq_headgates.drawing.functions import GROUPS, function_table, group_counts
from fairseq_headgates.drawing.maps import by_type
from fairseq_headgates.drawing.panels import compression_panels, curve_panels
from fairseq_headgates.drawing.tables import (
    best_head_table,
    curve_table,
    gate_table,
    layer_tables,
    open_counts,
    overlap_table,
    score_table,
    text_table,
)
from fairseq_headgates.drawing.text import text_style
from fairseq_headgates.extensions.report.content import Experiment, ModelHeads
from fairseq_headgates.extensions.report.grids import (
    Grids,
    function_grids,
    gate_grids,
    neuron_grids,
    score_grids,
)
from fairseq_headgates.extensions.report.panels import (
    Panel,
    function_panels,
    overlap_panel,
    sweep_panels,
)
from fairseq_headgates.extensions.report.results import (
    Comparison,
    checkpoints_of,
    compare,
    groups,
    labels,
    names_of,
)
from fairseq_headgates.heads import AttentionMap, Contributions, HeadId, HeadTable
from fairseq_headgates.heads.functions import open_heads

Names = Callable[[Sequence[tuple[str, Any]]], list[str]]  # `names_of` with its checkpoints
TITLES_AND_INTROS = {
    "results": (
        "Results",
        "Scores of models on the same data with 95% confidence intervals, and changes from the first model with their "
        "p-value. Words of a translation that the first model does not have at this place are marked; [...]: words "
        "that only the first model has.",
    ),
    "compression": (
        "Compression",
        "Loss and score of models from which headgates compress removed more and more, without training.",
    ),
    "heads": (
        "Heads and neurons",
        "Blue: kept or open, with the value of a gate below 1. Hatched: removed from the weights. Dashed: closed by a "
        "gate of 0. A bar shows the share of the neurons that a layer keeps.",
    ),
    "curves": ("Fewer and fewer heads", "BLEU, loss or accuracy over the number of heads that are kept or removed."),
    "overlap": (
        "Heads in common",
        "The heads that two masks both keep, divided by those that at least one keeps. By chance: random masks that "
        "keep as many heads.",
    ),
    "functions": (
        "Functions of heads",
        "P: positional, S: syntactic (needs trees), R: rare tokens, A: alignment (needs alignments). An empty cell is "
        "a head without a function at the thresholds of the file.",
    ),
    "scores": (
        "Importance of heads",
        "A higher score, and a stronger colour, means a more important head.",
    ),
    "ablation": ("Ablation", "Increase of the loss when heads are masked."),
    "explanations": (
        "Explanations",
        "Rows are predictions; cells are the contributions of source tokens and of the target prefix in percent, "
        "negative ones in red. The source share is the sum of the absolute contributions of the source tokens.",
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
        maps: attention maps of one sentence, by attention type: (type, title, maps)
        explained: contributions of one sentence
        comparison: evaluated models
        note: how to read it
    """

    title: str
    table: str = ""
    grids: Grids = field(default_factory=dict)
    plots: Sequence[tuple[str, str]] = ()
    maps: Sequence[tuple[str, str, list[AttentionMap]]] = ()
    explained: Contributions | None = None
    comparison: Comparison | None = None
    note: str = ""


def sections(found: Experiment) -> dict[str, list[Figure]]:
    """Return the figures of each section that has some, with figures for everything in the experiment."""
    of_files, of_models = partial(names_of, {}), partial(names_of, checkpoints_of(found.inputs))
    figures: dict[str, list[Figure]] = {
        "results": [*_results(found)],
        "compression": [*_compressions(found.compressions, of_models)],
        "heads": [*_heads(found.models)],
        "curves": [*_each(_sweep, found.sweeps, of_files), *_each(_curve, found.curves, of_files)],
        "overlap": [*_each(_overlap, found.overlaps, of_files)],
        "functions": [
            *_functions_by_checkpoint(found.functions, of_models),
            *_each(_functions, found.functions, of_models),
        ],
        "scores": [
            Figure(f"{table.name} ({name})", score_table(table), score_grids(table), note=table.signature)
            for name, (_, table) in zip(of_models(found.scores), found.scores, strict=True)
        ],
        "ablation": [*_each(_ablation, found.ablations, of_models)],
        "explanations": [
            Figure(f"{name}, sentence {number}", explained=explained)
            for name, (_, sentences) in zip(of_models(found.explanations), found.explanations, strict=True)
            for number, explained in sentences.items()
        ],
        "attention": [
            Figure(f"{name}, sentence {number}", maps=by_type(maps))
            for name, (_, sentences) in zip(of_models(found.attention), found.attention, strict=True)
            for number, maps in sentences.items()
        ],
    }
    return {name: of_section for name, of_section in figures.items() if of_section}


def sentence(drawn: Mapping[str, Sequence[Figure]]) -> str:
    """Return what the page says first: on evaluated models, or on a model without some of its heads."""
    said = [figure.comparison.headline for figure in drawn.get("results", ()) if figure.comparison]
    said += [figure.title for figure in drawn.get("heads", ()) if figure.grids]
    return next(filter(None, said), "")


def _each(figure: Callable[[str, Any], Figure], files: Sequence[tuple[str, Any]], names: Names) -> Iterator[Figure]:
    """Yield a figure for each of several files."""
    for name, (path, content) in zip(names(files), files, strict=True):
        with _complete(path):
            drawn = figure(name, content)
        yield drawn


def _results(found: Experiment) -> Iterator[Figure]:
    """Compare the evaluations of the same data, in the order of the inputs."""
    paths = {id(each): path for path, each in found.evaluations}
    for group in groups([each for _, each in found.evaluations]):
        with _complete(paths[id(group[0])]):
            comparison = compare(group)
        number = f"{len(group)} model{'s' * (len(group) > 1)}"
        yield Figure(f"{number} on the subset {comparison.subset}", comparison=comparison)


def _compressions(files: Sequence[tuple[str, Mapping[str, Any]]], names: Names) -> Iterator[Figure]:
    """Draw the models of each file of `headgates compress --json`."""
    by_path: dict[str, list[Mapping[str, Any]]] = {}
    for path, each in files:
        by_path.setdefault(path, []).append(each)
    for name, (path, found) in zip(names([*by_path.items()]), by_path.items(), strict=True):
        with _complete(path):
            rows = [
                [" and ".join(each["units"]), f"{each['parameters'][1]:,}", f"{each['loss'][1]:.4f}"] for each in found
            ]
            drawn = Figure(
                f"Smaller versions of {name}",
                text_table(["removed", "parameters", f"bits per {found[0]['unit']}"], rows),
                plots=_drawn(compression_panels(found)),
                note=str(found[0]["signature"]),
            )
        yield drawn


def _heads(models: Sequence[ModelHeads]) -> Iterator[Figure]:
    """Draw what the models keep that have lost heads or neurons, or have gates; name the others."""
    whole = []
    for name, model in zip(labels([model.name for model in models]), models, strict=True):
        kept, total = open_counts(model.gate)["total"]
        title = f"{name}: {kept} of {total} heads, {model.parameters / 1e6:.2f}M parameters"
        neurons = neuron_grids(model)
        if all(gate == 1 for _, gate in model.gate.items()) and not neurons:
            whole.append(title)
        else:
            table = gate_table(model.open_probability, model.gate)
            yield Figure(title, table, {**gate_grids(model), **neurons})
    if whole:
        yield Figure("Models that keep all heads and neurons", note="; ".join(whole))


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


def _curve(name: str, points: Sequence[Mapping[str, Any]]) -> Figure:
    origins = [str(points[0][key]) for key in ("signature", "measured") if key in points[0]]
    return Figure(name, curve_table(points), plots=_drawn(curve_panels(points)), note="; measured on ".join(origins))


def _overlap(name: str, pairs: Sequence[Mapping[str, Any]]) -> Figure:
    return Figure(name, overlap_table(pairs), plots=_drawn([overlap_panel(pairs)]))


def _functions(name: str, result: Mapping[str, Any]) -> Figure:
    some = any(entry["functions"] for _, entry in open_heads(result))
    return Figure(name, function_table(result), function_grids(result) if some else {}, note=str(result["signature"]))


def _functions_by_checkpoint(functions: Sequence[tuple[str, Mapping[str, Any]]], names: Names) -> Iterator[Figure]:
    """Compare the functions of the heads that several checkpoints keep."""
    if len(functions) < 2:
        return
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name, (path, result) in zip(names(functions), functions, strict=True):
        with _complete(path):
            for attention_type in result["heads"]:
                counts.setdefault(attention_type, {})[name] = group_counts(result, attention_type)
    rows = [
        [attention_type, name, str(sum(number.values())), *map(str, number.values())]
        for attention_type, by_name in counts.items()
        for name, number in by_name.items()
    ]
    table, plots = text_table(["type", "model", "open", *GROUPS, "none"], rows), _drawn(function_panels(counts))
    yield Figure("Functions of the heads of each checkpoint", table, plots=plots, note=GROUPS_NOTE)


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
