"""What smaller models cost and save: a sentence, a table, plots, and translations that change (no torch)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial

from fairseq_headgates.data.results import HINT, Evaluation, differences
from fairseq_headgates.data.statistics import Difference
from fairseq_headgates.drawing.evaluations import cells_of, difference_cells
from fairseq_headgates.drawing.panels import Panel, draw_sizes, row_of
from fairseq_headgates.drawing.result import Plot, Result, Table, Word, short_names
from fairseq_headgates.drawing.tables import p_value_text, rounded
from fairseq_headgates.files import read_record
from fairseq_headgates.heads import Signature

SENTENCES, WORDS, CHARACTERS = 3, 30, 40  # that are shown of translations, of one, and of a word
COLLAPSED = 0.5  # of the score of the first model: below it, a model does not choose sentences


def results(contents: Sequence[object]) -> Iterator[Result]:
    """Yield what files of `headgates evaluate` say: scores and translations of models on the same data."""
    found = [read_record(Evaluation, each, "an evaluation", HINT) for each in contents]
    for group in same_data(found):
        names, first = short_names([each.checkpoint for each in group]), group[0]
        changes: list[dict[str, Difference]] = [{}, *differences(first, group[1:])]
        rows = [_row(first, each, change) for each, change in zip(group, changes, strict=True)]
        header = list(dict.fromkeys(title for row in rows for title in row))
        cells = [[name, *(row.get(title, "") for title in header)] for name, row in zip(names, rows, strict=True)]
        title = f"{len(group)} model{'s' * (len(group) > 1)} on the subset {first.subset}"
        panels = _panels(group, names) if len({each.parameters for each in group}) > 1 else []
        yield Result(
            kind="Results",
            title=title,
            signature=first.signature,
            sentence=_sentence(group, names, changes),
            note="Scores with 95% confidence intervals, and changes from the first model with their p-value.",
            tables=[Table("", ["model", *header], cells)],
            figures=[Plot("", partial(row_of, panels))] if panels else [],
        )
        if sentences := _translations(group, names):
            yield Result(
                kind="Translations",
                title=title,
                note=f"Marked: what differs from {names[0]}, the first model. [...]: words that only it has.",
                tables=sentences,
            )


def _panels(group: Sequence[Evaluation], names: Sequence[str]) -> list[Panel]:
    """Return plots of the first loss and of the first score over the number of parameters."""
    models, lines = dict(zip(names, group, strict=True)), dict[str, dict[str, list[tuple[float, float]]]]()
    for subset, loss in [*group[0].losses.items()][:1]:
        lines[f"{subset} bits/{loss.unit}"] = {
            name: [(each.parameters, each.losses[subset].mean)]
            for name, each in models.items()
            if subset in each.losses
        }
    for score in [*group[0].scores][:1]:
        lines[score] = {name: [(each.parameters, each.scores[score].score)] for name, each in models.items()}
    return [Panel(title, partial(draw_sizes, lines=points, x="parameters", y=title)) for title, points in lines.items()]


def same_data(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Return the evaluations of the same data together, in their order."""
    found: dict[str, list[Evaluation]] = {}
    for each in evaluations:
        of_data = Signature.parse(each.signature).data(each.subset)
        of_data.pop("data" if each.references else "", None)  # a folder that may have moved
        found.setdefault(json.dumps([of_data, each.references]), []).append(each)
    return [*found.values()]


def _row(first: Evaluation, model: Evaluation, changes: Mapping[str, Difference]) -> dict[str, str]:
    """Return the columns of a model: size, scores, each followed by its change, speed, and loss."""
    cells = cells_of(model.as_json())
    row = {"heads": cells["heads"], "parameters": cells["parameters"]}
    row |= {title: cell for title, cell in cells.items() if title.endswith("/s")}
    if changes:
        row["parameters"] += f" ({rounded(model.parameters / first.parameters - 1, '+.0%')})"
    losses = {f"loss {subset}": f"{subset} bits/{loss.unit}" for subset, loss in model.losses.items()}
    for name, title in {**{name: name for name in model.scores}, **losses}.items():
        row |= {title: cells[title], f"change of {title}": ""}
        if name in changes:
            value, p = difference_cells(name, changes[name])
            row[f"change of {title}"] = f"{value} (p {p})"
    perplexities = {title: cell for title, cell in cells.items() if title.endswith(("perplexity", "per word"))}
    return row | ({} if model.scores else perplexities)


def _sentence(group: Sequence[Evaluation], names: Sequence[str], changes: Sequence[Mapping[str, Difference]]) -> str:
    """Return a sentence on the smallest of several models: what was removed, what that costs and saves."""
    whole = group[0]
    smallest = min(range(len(group)), key=lambda number: group[number].parameters)
    model = group[smallest]
    if model.parameters >= whole.parameters:
        return ""
    (kept, heads), removed = model.heads["total"], 1 - model.parameters / whole.parameters
    text = f"{names[smallest]} keeps {kept} of {heads} heads and has {removed:.0%} fewer parameters than {names[0]}"
    name = next(iter(whole.scores), None)
    if name and (change := changes[smallest].get(name)):
        (low, high), score = model.scores[name].interval, model.scores[name].score
        text += (
            f". {name}: {score:.2f} (95% interval {low:.2f} to {high:.2f}) instead of {whole.scores[name].score:.2f}"
        )
        text += f", p {p_value_text(change.p)}"
    if whole.speed and model.speed and whole.speed.interval and model.speed.interval:
        (slow, fast), (least, most) = whole.speed.interval, model.speed.interval
        if least > fast or most < slow:  # else the difference may be noise
            text += f", and {least / fast:.2f} to {most / slow:.2f} times as fast"
    return f"{text}."


def _translations(group: Sequence[Evaluation], names: Sequence[str]) -> list[Table]:
    """Return the translations of some sentences: those with the most different ones of models that have not collapsed.

    The rows are the reference, the first model, and models that translate the sentence in another way; then those that
    do not.
    """
    references = group[0].references or []
    first, *others = [each.predictions or [] for each in group]
    if not (others and references) or not all(isinstance(each, str) for each in references):
        return []
    scores = [each.scores["BLEU"].score for each in group]
    kept = [of_model for of_model, score in zip(others, scores[1:], strict=True) if score >= COLLAPSED * scores[0]]
    different = [len({first[i], *(of_model[i] for of_model in kept)}) for i in range(len(references))]
    shown = sorted(range(len(references)), key=different.__getitem__, reverse=True)[:SENTENCES]
    tables = []
    for i in sorted(i for i in shown if different[i] > 1):
        rows: list[list[str | list[Word]]] = [["reference", _words(references[i])], [names[0], _words(first[i])]]
        same = [name for name, of_model in zip(names[1:], others, strict=True) if of_model[i] == first[i]]
        for name, of_model in zip(names[1:], others, strict=True):
            if name not in same:
                rows.append([name, _words(of_model[i], first[i])])
        rows += [[", ".join(same), f"the same as {names[0]}"]] if same else []
        tables.append(Table(f"sentence {i + 1}", ["model", "translation"], rows))
    return tables


def _words(text: str, first: str | None = None) -> list[Word]:
    """Return the words of a translation, with marks on those that another one lacks, and [...] for those it adds."""
    words, before = text.split(), text.split() if first is None else first.split()
    found: list[Word] = []
    for change, _, _, start, end in SequenceMatcher(None, before, words, False).get_opcodes():
        shown = words[start:end] or ["[...]"]
        found += [Word(word[:CHARACTERS] + "…" * (len(word) > CHARACTERS), change != "equal") for word in shown]
    return [*found[:WORDS], Word("…")] if len(found) > WORDS else found
