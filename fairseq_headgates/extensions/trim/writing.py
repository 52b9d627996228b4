"""Trim the vocabulary of a checkpoint and of the data, and compare the models."""

from __future__ import annotations

import copy
import shutil
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor, nn

from fairseq_headgates.attention.modules import number_of_parameters
from fairseq_headgates.cli.session import Session
from fairseq_headgates.data.corpus import Corpus, load_corpus
from fairseq_headgates.data.metrics import metric_of
from fairseq_headgates.data.symbols import no_words, subwords_of
from fairseq_headgates.data.task import setup_task
from fairseq_headgates.extensions.trim import folder
from fairseq_headgates.extensions.trim.vocabulary import always_kept, chosen, removed_probability, trim_checkpoint
from fairseq_headgates.plugin.models.building import build_model

MODEL = "model.pt"  # the checkpoint in the new folder


@dataclass(frozen=True)
class Trimmed:
    """What a trimmed model lost.

    Attributes:
        symbols: those of each dictionary before and after, by its stack ("encoder", "decoder")
        parameters: of the model, before and after
        unknown: tokens that become <unk>, and all tokens, by subset
        probability: mean probability of removed symbols, None for classifiers
        changed: number of translations that differ, None where nothing is translated
        pieces: whether the subwords are those of SentencePiece
    """

    symbols: Mapping[str, tuple[int, int]]
    parameters: tuple[int, int]
    unknown: Mapping[str, tuple[int, int]]
    probability: float | None
    changed: int | None
    pieces: bool


class Vocabularies:
    """The dictionaries of a task, and the files that have their symbols.

    Args:
        session: the session of the command
        corpus: a part of its data

    Attributes:
        dictionaries: by the stack that embeds their symbols; equal dictionaries are one
        folders: the folders of texts
    """

    def __init__(self, session: Session, corpus: Corpus):
        self.args, self.task = session.fairseq, session.task
        self.progress = session.progress
        self.dictionaries = corpus.objective.dictionaries()
        first, *others = self.dictionaries
        self.same = not others or self.dictionaries[first].symbols == self.dictionaries[others[0]].symbols
        root = Path(utils.split_paths(self.args.data)[0])
        self.folders = [each for each in corpus.objective.folders(str(root)) if each != root / "label"]
        self.root = root

    def stack(self, language: str) -> str:
        """Return the stack whose dictionary a text of a language has."""
        target = not self.same and language == self.args.target_lang
        return list(self.dictionaries)[-1 if target else 0]

    def kept(self, subsets: list[str], size: int | None) -> dict[str, Tensor]:
        """Return the numbers of the symbols that each stack keeps. Raise ValueError for a subset without texts."""
        counts = {stack: torch.zeros(len(each), dtype=torch.long) for stack, each in self.dictionaries.items()}
        for subset in subsets:
            texts = [text for each in self.folders for text in folder.token_files(each, subset)]
            if not texts:
                raise ValueError(f"there is no subset {subset!r} in {self.root}: name others with --keep")
            for prefix, language in texts:
                stack = self.stack(language)
                counts[stack] += folder.count(prefix, len(counts[stack]), self.progress(f"count {prefix.name}"))
        found: dict[str, Tensor] = {}
        for stack, dictionary in self.dictionaries.items():
            if found and self.same:
                found[stack] = next(iter(found.values()))
                continue
            stored = max(len(folder.dictionary_lines(path)) for path in self._files(stack)) + dictionary.nspecial
            side = "target" if stack == "decoder" else "source"
            always = always_kept(dictionary, no_words(self.task, side), stored)
            found[stack] = chosen(counts[stack], always, size)
        return found

    def write(self, kept: Mapping[str, Tensor], target: Path) -> tuple[Namespace, dict[str, tuple[int, int]]]:
        """Write dictionaries and data. Return the options that read them, and the unknown and all tokens of subsets."""
        unknown: dict[str, tuple[int, int]] = {}
        for each in self.folders:
            place = target / each.relative_to(self.root)
            place.mkdir(exist_ok=True)
            for language, path in folder.dictionary_files(each).items():
                self._write_dictionary(path, place, self.stack(language), kept)
            for prefix, language in folder.token_files(each):
                stack, subset = self.stack(language), prefix.name.partition(".")[0]
                dictionary = self.dictionaries[stack]
                numbers = torch.full((len(dictionary),), dictionary.unk())
                numbers[kept[stack]] = torch.arange(len(kept[stack]))
                progress = self.progress(f"write {prefix.name}")
                lost, number = folder.renumber(prefix, place / prefix.name, numbers, dictionary.unk(), progress)
                before = unknown.get(subset, (0, 0))
                unknown[subset] = (before[0] + lost, before[1] + number)
            folder.copy_others(each, place)
        if self.root not in self.folders:  # those of classifiers
            shutil.copytree(self.root / "label", target / "label")
        args = copy.copy(self.args)
        args.data = str(target)
        if fixed := getattr(args, "fixed_dictionary", None):
            self._write_dictionary(Path(fixed), target, next(iter(kept)), kept)
            args.fixed_dictionary = str(target / Path(fixed).name)
        return args, unknown

    def _write_dictionary(self, path: Path, place: Path, stack: str, kept: Mapping[str, Tensor]) -> None:
        folder.write_dictionary(path, place / path.name, self.dictionaries[stack], kept[stack])
        if subwords_of(self.dictionaries[stack].symbols) == "sentencepiece":
            folder.write_pieces(place / path.name, place / f"{path.stem}.pieces")

    def _files(self, stack: str) -> list[Path]:
        """Return the files of a dictionary."""
        if fixed := getattr(self.args, "fixed_dictionary", None):
            return [Path(fixed)]
        files = (folder.dictionary_files(each).items() for each in self.folders)
        return [path for each in files for language, path in each if self.stack(language) == stack]


def trim(
    session: Session, state: dict[str, Any], model: nn.Module, corpus: Corpus, target: Path, keep: list[str],
    size: int | None
) -> Trimmed:  # fmt: skip
    """Write the trimmed checkpoint and the data to a folder, and compare the models on a corpus.

    Args:
        session: the session of the command
        state: the checkpoint
        model: its model
        corpus: what is measured
        target: the folder
        keep: the subsets whose symbols are kept
        size: the largest number of symbols of a dictionary, None for all that occur
    """
    vocabularies = Vocabularies(session, corpus)
    kept = vocabularies.kept(keep, size)
    symbols = {stack: len(each) for stack, each in vocabularies.dictionaries.items()}
    smaller_state = trim_checkpoint(state, kept, symbols)
    smaller = build_model(smaller_state).to(next(model.parameters()).device)
    args, unknown = vocabularies.write(kept, target)
    torch.save(smaller_state, target / MODEL)
    probability = removed_probability(model, corpus, list(kept.values())[-1])
    changed = None
    if "bleu" in corpus.objective.metrics:
        with_new = load_corpus(args, setup_task(args), smaller, session.options.sentences, corpus.subset)
        found = [_translations(each, data) for each, data in ((model, corpus), (smaller, with_new))]
        changed = sum(before != after for before, after in zip(*found, strict=True))
    return Trimmed(
        {stack: (symbols[stack], len(kept[stack])) for stack in list(kept)[: 1 if vocabularies.same else None]},
        (number_of_parameters(model), number_of_parameters(smaller)),
        unknown,
        probability,
        changed,
        subwords_of(next(iter(vocabularies.dictionaries.values())).symbols) == "sentencepiece",
    )


def _translations(model: nn.Module, corpus: Corpus) -> list[str]:
    metric = metric_of("bleu", model, corpus)
    assert metric is not None
    return metric.predict(metric.prepared(model))
