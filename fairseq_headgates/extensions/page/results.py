"""What smaller models cost and save: a sentence, a table, and translations with the words that change (no torch)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from fairseq_headgates.evaluation.results import Evaluation, differences
from fairseq_headgates.heads import Signature
from fairseq_headgates.report.evaluations import cells_of
from fairseq_headgates.report.tables import p_value_text, rounded

TRANSLATIONS = 10  # sentences whose translations are shown
# Names of files that say nothing without that of their folder.
GENERAL = ("pruned", "checkpoint_last", "checkpoint_best", "evaluation", "train", "gates")


class Word(NamedTuple):
    """A word of a translation, and whether it is not in the one of the first model."""

    text: str
    changed: bool


@dataclass(frozen=True)
class Comparison:
    """Evaluations of the same data, compared with the first.

    Attributes:
        subset: the subset of the predictions
        header: titles of the columns
        rows: cells of each model
        sentences: the number of each sentence that is shown, with (name, words) of the reference and of each model;
            the words are None where they are those of the first model
    """

    subset: str
    header: list[str]
    rows: list[list[str]]
    sentences: list[tuple[int, list[tuple[str, list[Word] | None]]]]


def labels(paths: Sequence[str]) -> list[str]:
    """Return short names for files and folders: their own, or that of the folder; the paths if two are equal."""
    found = []
    for path in map(Path, paths):
        stem = path.stem if path.suffix in (".pt", ".json", ".jsonl", ".log", ".txt") else path.name
        found.append((path.parent.name if stem in GENERAL else stem) or str(path))
    return [path if found.count(name) > 1 else name for path, name in zip(paths, found, strict=True)]


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
    rows = [cells_of(each.as_json()) for each in group]
    for row, each, found in zip(rows[1:], group[1:], differences(first, group[1:]), strict=True):
        row["parameters"] += f" ({rounded(each.parameters / first.parameters - 1, '+.0%')})"
        for name, difference in found.items():
            form = "+.4f" if name.startswith("loss") else "+.2f"
            row[f"change of {name}"] = f"{rounded(difference.value, form)} (p {p_value_text(difference.p)})"
    header = list(dict.fromkeys(title for row in rows for title in row))
    cells = [[name, *(row.get(title, "") for title in header)] for name, row in zip(names, rows, strict=True)]
    return Comparison(first.subset, ["model", *header], cells, _sentences(group, names))


def headline(group: Sequence[Evaluation]) -> str:
    """Return a sentence on the smallest of several models: what was removed, what that costs and saves."""
    whole, *others = group
    smaller = [each for each in others if each.parameters < whole.parameters]
    if not smaller:
        return ""
    model = min(smaller, key=lambda each: each.parameters)
    names = dict(zip((each.checkpoint for each in group), labels([each.checkpoint for each in group]), strict=True))
    (kept, heads), removed = model.heads["total"], 1 - model.parameters / whole.parameters
    text = f"{names[model.checkpoint]} keeps {kept} of {heads} heads and has {removed:.0%} fewer parameters than "
    text += names[whole.checkpoint]
    name = next(iter(whole.scores), None)
    if name and (change := differences(whole, [model])[0].get(name)):
        (low, high), score = model.scores[name].interval, model.scores[name].score
        text += f". {name}: {score:.2f} (95% interval {low:.2f} to {high:.2f}) instead of {whole.scores[name].score:.2f}"
        text += f", p {p_value_text(change.p)}"
    if whole.speed and model.speed:
        text += f". Speed: {model.speed.per_second / whole.speed.per_second:.2f} times"
    return f"{text}."


def _sentences(
    group: Sequence[Evaluation], names: Sequence[str]
) -> list[tuple[int, list[tuple[str, list[Word] | None]]]]:
    """Return the translations of the first sentences, those first that not all models translate alike."""
    references = group[0].references or []
    if not all(isinstance(each, str) for each in references):
        return []
    texts = [each.predictions or [] for each in group]
    alike = [len({of_model[i] for of_model in texts}) == 1 for i in range(len(references))]
    shown = sorted(sorted(range(len(references)), key=lambda i: alike[i])[:TRANSLATIONS])
    return [
        (
            i + 1,
            [
                ("reference", [Word(word, False) for word in references[i].split()]),
                *((name, _changed(texts[0][i], of_model[i])) for name, of_model in zip(names, texts, strict=True)),
            ],
        )
        for i in shown
    ]


def _changed(first: str, other: str) -> list[Word] | None:
    """Return the words of a translation; None if it is the first one."""
    before, after = first.split(), other.split()
    if before == after and first is not other:
        return None
    same = {
        j for _, start, size in SequenceMatcher(None, before, after, False).get_matching_blocks()
        for j in range(start, start + size)
    }  # fmt: skip
    return [Word(word, j not in same) for j, word in enumerate(after)]
