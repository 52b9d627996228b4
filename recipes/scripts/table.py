"""Print the table of a recipe: a line for each model, means and ranges for several seeds.

OUT/seed{SEED}/{MODEL}/evaluation.json is a file of `headgates evaluate --out`. The columns follow from what the
evaluations hold.

The first model is the baseline. A model without =CONTROL is a control; with translations the baseline is compared with
the first other control. Models whose names differ only in numbers, such as half_0.01, are one line of the plot.

The TSV has a line for each model and seed, with all decimals. The JSON is a sweep file, for `headgates report`.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import headgates_start  # noqa: F401  (with it fairseq_headgates imports fairseq and torch only where they are needed)
from fairseq_headgates.cli.output import picture
from fairseq_headgates.data.results import Evaluation, read_evaluations
from fairseq_headgates.drawing.panels import row_of
from fairseq_headgates.drawing.sweep import sweep_panels
from fairseq_headgates.drawing.tables import rounded, text_table
from fairseq_headgates.files import parse_json, read_text, to_json, write_whole
from script_errors import errors_in_one_line

LEVEL = 0.05
TESTS = {"BLEU": "paired bootstrap", "accuracy": "McNemar's exact test"}
MEASURES = ("perplexity", "perplexity per word", "tokens", "unknown", "words")  # of language models
SWEPT = ("BLEU", "diff", "chrF2", "nll", "parameters", "words per second")  # of translation models
PLOTTED = ("BLEU", "accuracy", "test perplexity per word", "test perplexity")  # the first one that was measured
CURVE = "write it with `headgates curve --metric accuracy --out`"

# Voita et al. 2019, table 2, and of the encoder alone section 6.2: heads (encoder/decoder/decoder-encoder) of 144, BLEU
# after pruning (of the encoder alone the difference from the baseline), and from scratch.
VOITA = {
    "wmt baseline": ["48/48/48 29.6 -"],
    "wmt all": ["14/31/30 29.62 29.47", "12/21/25 29.36 28.95", "8/13/15 29.06 28.56", "5/9/12 28.90 28.41"],
    "wmt enc-self": ["10/48/48 -0.15 -"],
    "opensubtitles baseline": ["48/48/48 32.4 -"],
    "opensubtitles all": ["27/31/46 32.24 32.23", "13/17/31 32.23 31.98", "6/9/13 32.27 31.84"],
    "opensubtitles enc-self": ["4/48/48 -0.25 -"],
}
SHIM = {0.01: 106, 0.015: 87, 0.02: 59}  # heads that Shim et al. 2021 keep on WikiText-103, of 128, by lambda


class Row(NamedTuple):
    """A model of one seed; `pruned` if it is neither the baseline nor a control; `values` are its line of the TSV."""

    name: str
    pruned: bool
    evaluation: Evaluation
    values: dict[str, Any]


Seeds = Sequence[Row]  # the rows of a model, one for each seed


def in_order(words: Sequence[str]) -> dict[str, str]:
    """Return {model: its control, or ""} in the order of the table: the baseline, then each control and its models."""
    found = dict(word.partition("=")[::2] for word in words)
    baseline, *others = names = list(found)
    for name, control in found.items():
        if control and control not in names:
            raise ValueError(f"the control {control!r} of {name!r} is not a model: add --model {control}")
    others.sort(key=lambda name: (names.index(found[name] or name), bool(found[name])))
    return {name: found[name] for name in (baseline, *others)}


def read_seed(folder: Path, seed: str, models: Mapping[str, str], args: argparse.Namespace) -> list[Row]:
    """Return the rows of a seed; after the baseline come the points of its curves."""
    found = {name: read_evaluations(str(folder / name / "evaluation.json"))[0] for name in models}
    baseline, *others = models
    control_of_baseline = next((name for name in others if not models[name]), baseline)
    scores, measures, rows = [*found[baseline].scores], {name: measured(each) for name, each in found.items()}, []
    for name, evaluation in found.items():
        if measures[name].keys() != measures[baseline].keys():
            raise ValueError(f"{folder / name} and {baseline} have other scores, losses or speeds: evaluate them alike")
        values = {"model": name, "seed": seed, **measures[name]}
        if scores:
            control = models[name] or (control_of_baseline if name == baseline and "BLEU" in scores else name)
            test = None if name == control else evaluation.compare(found[control])
            diff = round(measures[name][scores[0]] - measures[control][scores[0]], 6)
            values |= {"control": control, "diff": diff} | {f"p {score}": test and test[score].p for score in scores}
            values["p signature"] = test and test[scores[0]].signature
        values |= {metric: last_number(folder / name / f"{metric}.txt") for metric in args.metric}
        rows.append(Row(name, name != baseline and bool(models[name]), evaluation, values))
    rows[1:1] = [point for method in args.curve for point in curve(folder / "curves" / f"{method}.json", rows[0])]
    return rows


def measured(found: Evaluation) -> dict[str, Any]:
    """Return what is measured of a model, with all decimals, by the names of the TSV."""
    several, (kept, whole) = len(found.layers) > 1, found.heads["total"]
    values: dict[str, Any] = {each: found.heads[each][0] for each in found.layers if several}
    values |= {"total" if several else "heads": kept, "of": whole, "parameters": found.parameters}
    values |= {name: round(score.score, 6) for name, score in found.scores.items()}
    values |= {f"{name} signature": score.signature for name, score in found.scores.items()}
    for subset, loss in found.losses.items():
        if loss.tokens:
            values[f"{subset} loss"] = loss.mean
            values |= {f"{subset} {name}": getattr(loss, name.replace(" ", "_")) for name in MEASURES}
        elif (subset, loss.unit) == ("valid", "token"):
            values["nll"] = loss.mean
    return values | ({f"{found.speed.unit} per second": found.speed.per_second} if found.speed else {})


def last_number(path: Path) -> float:
    """Return the number at the end of a file."""
    words = read_text(str(path), "the metric", "write its score there").split()
    try:
        return float(words[-1])
    except (IndexError, ValueError):
        raise ValueError(f"{path} must end with a number, the score") from None


def curve(path: Path, baseline: Row) -> list[Row]:
    """Return the points of a curve of the baseline, but for that of the whole model."""
    content, rows = parse_json(read_text(str(path), "the curve", CURVE), str(path), CURVE), []
    try:
        for point in [point for point in content["points"] if point["removed"]]:
            name, diff = f"{path.stem}-{point['removed']:g}%", point["accuracy"] - baseline.values["accuracy"]
            change = dict.fromkeys(baseline.values) | {each: baseline.values[each] for each in ("seed", "of")}
            change |= {"model": name, "control": baseline.name, "diff": round(diff, 6), "p accuracy": point["p_value"]}
            change |= {each: point[each] for each in ("heads", "parameters", "accuracy")}
            layers = {each: [sum(map(bool, layer)) for layer in mask] for each, mask in point["mask"].items()}
            heads = dict.fromkeys((*layers, "total"), (point["heads"], baseline.values["of"]))
            rows.append(Row(name, True, replace(baseline.evaluation, heads=heads, layers=layers), change))
    except (KeyError, TypeError):
        raise ValueError(f"{path} is not a curve of the accuracy of a classifier: {CURVE}") from None
    return rows


def published(row: Row, paper: str) -> str | None:
    """Return the heads that a paper keeps, with BLEU for translations; None for a model that it does not have."""
    if paper == "shim":
        numbers = re.findall(r"\d+\.\d+", row.name)
        kept = SHIM.get(float(numbers[-1])) if numbers else None if row.pruned else 128
        return f"{kept}/128" if kept else None
    heads = row.evaluation.heads
    removed = [each for each in row.evaluation.layers if heads[each][0] < heads[each][1]]
    types = row.name if not row.pruned else removed[0] if len(removed) == 1 else "all"
    rows = [line.split() for line in VOITA.get(f"{paper} {types}", [])]
    share = row.values["total"] / row.values["of"]
    nearest = min(rows, key=lambda each: abs(sum(map(int, each[0].split("/"))) / 144 - share), default=None)
    return f"{nearest[0]} {nearest[1 + ('scratch' in row.name)]}" if nearest else None


# Names in the TSV: title and format in the table.
COLUMNS = {
    "parameters": ("params", "M"),
    **{score: (score, ".2f") for score in ("BLEU", "accuracy")},
    "diff": ("diff", "+.2f"),
    **{f"p {score}": ("p", "p") for score in ("BLEU", "accuracy")},
    "chrF2": ("chrF", "mean"),
    "nll": ("nll", ".3f"),
    **{f"{subset} perplexity": (subset, ".2f") for subset in ("valid", "test")},
    **{f"{subset} perplexity per word": (f"{subset}/word", ".2f") for subset in ("valid", "test")},
    **{f"{unit} per second": (f"{unit}/s", ",.0f") for unit in ("words", "tokens", "sentences")},
    "paper": ("paper", ""),
}
# Titles: a line below the table.
NOTES = {
    "nll": "nll: bits per token on the validation set (lower is better)",
    "valid": "valid, test: perplexity per token; valid/word, test/word: per word of the text\n"
    "The end of a line counts as a token and as a word.",
    **{
        unit: f"{unit}: evaluation of the test set, one model at a time"
        for unit in ("words/s", "tokens/s", "sentences/s")
    },
    "paper": "paper: heads kept, and BLEU, in the most similar row of the paper",
}


def cell(values: Sequence[Any], form: str) -> str:
    """Return the mean of the seeds with the lowest and the highest value, or how many p-values are significant."""
    if None in values:
        return "-"
    if form == "p":
        return f"{sum(p < LEVEL for p in values)}/{len(values)}" if len(values) > 1 else f"{values[0]:.3f}"
    if form in ("mean", "M"):
        return f"{mean(values) / 1e6:.2f}M" if form == "M" else f"{mean(values):.2f}"
    if isinstance(values[0], str):
        return values[0]
    middle, low, high = (rounded(value, form) for value in (mean(values), min(values), max(values)))
    return f"{middle} ({low}..{high})" if len(values) > 1 else middle


def heads(rows: Seeds) -> dict[str, str]:
    """Return the mean number of heads kept, with a decimal where the seeds differ, and of one type with their range."""
    several, found = len(rows[0].evaluation.layers) > 1, {}
    for each in [*rows[0].evaluation.layers, "total"] if several else ["total"]:
        kept, whole = zip(*(row.evaluation.heads[each] for row in rows), strict=True)
        low, high = min(kept), max(kept)
        text = f"{mean(kept):.{int(low < high)}f}/{whole[0]}"
        found[each if several else "heads"] = text + f" ({low}..{high})" * (low < high and not several)
    return found


def table(models: Sequence[Seeds], metrics: Sequence[str]) -> str:
    """Return the table with a line for each model, and below it what the columns mean."""
    first, values = models[0][0].evaluation, models[0][0].values
    columns = COLUMNS | {metric: (metric, ".4g") for metric in metrics}
    columns = {key: column for key, column in columns.items() if key in values}
    titles = [f"p<{LEVEL}" if title == "p" and len(models[0]) > 1 else title for title, _ in columns.values()]
    lines = []
    for rows in models:
        cells = (cell([row.values[key] for row in rows], form) for key, (_, form) in columns.items())
        lines.append([rows[0].name, *heads(rows).values(), *cells])
    found = [text_table(["model", *heads(models[0]), *titles], lines)]
    for score in [*first.scores][:1]:
        controls = ", ".join(dict.fromkeys(rows[0].values["control"] for rows in models))
        found.append(f"diff, p: {score} against the control ({controls}), {TESTS[score]}")
    found += [NOTES[title] for title in titles if title in NOTES]
    for subset in [subset for subset, loss in first.losses.items() if loss.tokens]:
        tokens, words, unknown = (values[f"{subset} {name}"] for name in ("tokens", "words", "unknown"))
        found.append(f"{subset} set: {tokens:,} tokens, {words:,} words, {unknown / tokens:.2%} unknown tokens")
    signatures = {name: score.signature for name, score in first.scores.items()}
    found += [each if each.startswith(name) else f"{name}: {each}" for name, each in signatures.items()]
    return "\n".join(found)


def swept(models: Sequence[Seeds], scores: Sequence[str]) -> list[dict[str, Any]]:
    """Return the models of a sweep file: mean heads, and the scores of every seed."""
    found = []
    for rows in models:
        name, types, evaluations = rows[0].name, rows[0].evaluation.layers, [row.evaluation for row in rows]
        method = (re.sub(r"[-_=]?\d+(\.\d+)?%?", "", name) or name) if rows[0].pruned else None  # without numbers
        model: dict[str, Any] = {"name": name, "types": None, "method": method, "front": False}
        model["heads"] = {each: mean(of.heads[each][0] for of in evaluations) for each in (*types, "total")}
        layers = {each: zip(*(of.layers[each] for of in evaluations), strict=True) for each in types}
        model["layers"] = {each: [mean(kept) for kept in of_seeds] for each, of_seeds in layers.items()}
        found.append(model | {score: [row.values.get(score) for row in rows] for score in scores})
    return found


def sweep_file(models: Sequence[Seeds]) -> str:
    """Return the sweep file. On the front no other model has at most the parameters and at least the BLEU."""
    found = swept(models, SWEPT)
    points = [(mean(model["parameters"]), -mean(model["BLEU"])) for model in found]
    for model, (size, loss) in zip(found, points, strict=True):
        model["front"] = not any(a <= size and b <= loss and (a, b) != (size, loss) for a, b in points)
        model["words_per_second"] = model.pop("words per second")
    return to_json({"format": "headgates.sweep/1", "models": found}, indent=1) + "\n"


def work(args: argparse.Namespace) -> None:
    order = in_order(args.model)
    seeds = [read_seed(Path(args.out) / f"seed{seed}", seed, order, args) for seed in args.seeds]
    if any([row.name for row in rows] != [row.name for row in seeds[0]] for rows in seeds):
        raise ValueError("the curves of the seeds have other points: repeat them with the same --steps")
    models: list[Seeds] = [*zip(*seeds, strict=True)]
    values = models[0][0].values
    if args.paper and ("heads" if args.paper == "shim" else "BLEU") not in values:
        raise ValueError(f"--paper {args.paper} is of other models: leave it out")
    if args.json and not {"BLEU", "nll"} <= values.keys():
        raise ValueError("--json is for translations with the loss of the validation set: leave it out")
    for row in (row for rows in models if args.paper for row in rows):
        row.values["paper"] = published(row, args.paper)
    print(table(models, args.metric))
    if args.tsv:
        cells = [[*values], *(row.values.values() for rows in seeds for row in rows)]
        lines = [["-" if cell is None else str(cell) for cell in line] for line in cells]
        write_whole(args.tsv, "".join("\t".join(line) + "\n" for line in lines), force=True)
    if args.json:
        write_whole(args.json, sweep_file(models), force=True)
    if args.plot:
        score = next((score for score in PLOTTED if score in values), "nll")
        drawn = swept([rows for rows in models if None not in [row.values[score] for row in rows]], [score])
        write_whole(args.plot, picture(args.plot, lambda: row_of(sweep_panels(drawn, score))), force=True)


def main(argv: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("table.py", description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("out", metavar="OUT", help="the folder of the results of a recipe")
    parser.add_argument("--seeds", nargs="+", required=True, metavar="SEED")
    parser.add_argument("--model", action="append", required=True, metavar="NAME[=CONTROL]")
    metric = "a column with the number at the end of NAME.txt in the folder of each model"
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help=metric)
    curves = "of classifiers: rows with the points of OUT/seed{SEED}/curves/METHOD.json, a file of `headgates curve`"
    parser.add_argument("--curve", action="append", default=[], metavar="METHOD", help=curves)
    papers = "a column of Voita et al. 2019 (wmt, opensubtitles) or Shim et al. 2021 (shim)"
    parser.add_argument("--paper", choices=["wmt", "opensubtitles", "shim"], help=papers)
    for kind in ("tsv", "json", "plot"):
        parser.add_argument(f"--{kind}", metavar="FILE")
    work(parser.parse_args(argv))


if __name__ == "__main__":
    logging.disable(logging.INFO)  # of matplotlib, and of written files
    with errors_in_one_line():
        main()
