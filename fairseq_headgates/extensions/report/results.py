"""What smaller models cost and save: a sentence, a table, and translations with the words that change (no torch)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_headgates.data.results import Evaluation, differences
from fairseq_headgates.data.statistics import Difference
from fairseq_headgates.drawing.evaluations import cells_of
from fairseq_headgates.drawing.tables import p_value_text, rounded
from fairseq_headgates.extensions.report.content import Input
from fairseq_headgates.heads import Signature

SENTENCES, WORDS, CHARACTERS = 10, 30, 40  # that are shown of translations, of one, and of a word
# Names of files that say nothing without that of their folder.
GENERAL = ("pruned.pt", "checkpoint_last.pt", "checkpoint_best.pt", "evaluation.json")


class Word(NamedTuple):
    """A word of a translation, and whether it is not in the one of the first model."""

    text: str
    changed: bool


Sentence = tuple[int, list[tuple[str, "list[Word] | None"]]]


@dataclass(frozen=True)
class Comparison:
    """Evaluations of the same data, compared with the first.

    Attributes:
        headline: a sentence on the smallest model, "" if none is smaller than the first
        subset: the subset of the predictions
        header: titles of the columns
        rows: cells of each model
        sentences: the number of each sentence that is shown, with (names, words) of the reference, of the first model,
            and of models that translate it in another way; the words of the last are None: models that do not
    """

    headline: str
    subset: str
    header: list[str]
    rows: list[list[str]]
    sentences: list[Sentence]


def labels(paths: Sequence[str]) -> list[str]:
    """Return short names for files and folders: their own, or that of the folder; the paths if two are equal."""
    found = []
    for path in map(Path, paths):
        stem = path.stem if path.suffix in (".pt", ".json") else path.name
        found.append((path.parent.name if path.name in GENERAL else stem) or str(path))
    return [path if found.count(name) > 1 else name for path, name in zip(paths, found, strict=True)]


def checkpoints_of(inputs: Sequence[Input]) -> dict[str, str]:
    """Return the checkpoint of each file whose signatures all name the same one."""
    found: dict[str, set[str]] = {}
    for each in inputs:
        found.setdefault(each.name, set()).add(Signature.parse(each.signature).parts.get("ckpt", ""))
    return {path: min(of_file) for path, of_file in found.items() if len(of_file) == 1 and "" not in of_file}


def names_of(checkpoints: Mapping[str, str], files: Sequence[tuple[str, Any]]) -> list[str]:
    """Return a short name for each of several (file, result): that of the checkpoint of the file, if it is known.

    Files of the same checkpoint are told apart by their own names.
    """
    paths = list(dict.fromkeys(path for path, _ in files))
    known = list(dict.fromkeys(checkpoints[path] for path in paths if path in checkpoints))
    of_file, of_model = (dict(zip(each, labels(each), strict=True)) for each in (paths, known))
    names = {path: of_model.get(checkpoints.get(path, ""), of_file[path]) for path in paths}
    shared = {name for name, number in Counter(names.values()).items() if number > 1}
    return [f"{names[path]} ({of_file[path]})" if names[path] in shared else names[path] for path, _ in files]


def groups(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Return the evaluations of the same data together, in their order."""
    found: dict[str, list[Evaluation]] = {}
    for each in evaluations:
        of_data = Signature.parse(each.signature).data(each.subset)
        of_data.pop("data" if each.references else "", None)  # a folder that may have moved
        found.setdefault(json.dumps([of_data, each.references]), []).append(each)
    return [*found.values()]


def compare(group: Sequence[Evaluation]) -> Comparison:
    """Compare evaluations of the same data with the first of them."""
    names, first = labels([each.checkpoint for each in group]), group[0]
    changes: list[dict[str, Difference]] = [{}, *differences(first, group[1:])]
    rows = [_row(first, each, found) for each, found in zip(group, changes, strict=True)]
    header = list(dict.fromkeys(title for row in rows for title in row))
    cells = [[name, *(row.get(title, "") for title in header)] for name, row in zip(names, rows, strict=True)]
    headline = _headline(group, names, changes)
    return Comparison(headline, first.subset, ["model", *header], cells, _sentences(group, names))


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
            value = rounded(changes[name].value, "+.4f" if name in losses else "+.2f")
            row[f"change of {title}"] = f"{value} (p {p_value_text(changes[name].p)})"
    perplexities = {title: cell for title, cell in cells.items() if title.endswith(("perplexity", "per word"))}
    return row | ({} if model.scores else perplexities)


def _headline(group: Sequence[Evaluation], names: Sequence[str], changes: Sequence[Mapping[str, Difference]]) -> str:
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


def _sentences(group: Sequence[Evaluation], names: Sequence[str]) -> list[Sentence]:
    """Return the translations of some sentences, those that most models translate in another way than the first."""
    references = group[0].references or []
    if not all(isinstance(each, str) for each in references):
        return []
    first, *others = [each.predictions or [] for each in group]
    changed = [sum(of_model[i] != first[i] for of_model in others) for i in range(len(references))]
    shown = sorted(sorted(range(len(references)), key=changed.__getitem__, reverse=True)[:SENTENCES])
    found: list[Sentence] = []
    for i in shown:
        rows: list[tuple[str, list[Word] | None]] = [("reference", _words(references[i])), (names[0], _words(first[i]))]
        same = [name for name, of_model in zip(names[1:], others, strict=True) if of_model[i] == first[i]]
        for name, of_model in zip(names[1:], others, strict=True):
            if name not in same:
                rows.append((name, _words(of_model[i], first[i])))
        found.append((i + 1, [*rows, *([(", ".join(same), None)] if same else [])]))
    return found


def _words(text: str, first: str | None = None) -> list[Word]:
    """Return the words of a translation, with marks on those that another one lacks, and [...] for those it adds."""
    words, before = text.split(), text.split() if first is None else first.split()
    found: list[Word] = []
    for change, _, _, start, end in SequenceMatcher(None, before, words, False).get_opcodes():
        shown = words[start:end] or ["[...]"]
        found += [Word(word[:CHARACTERS] + "…" * (len(word) > CHARACTERS), change != "equal") for word in shown]
    return [*found[:WORDS], Word("…", False)] if len(found) > WORDS else found
