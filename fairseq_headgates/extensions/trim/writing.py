"""Trim the vocabulary of a checkpoint and of the data, and compare the models."""

from __future__ import annotations

import copy
import shutil
from argparse import Namespace
from collections.abc import Collection, Mapping
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
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.extensions.trim import folder
from fairseq_headgates.extensions.trim.vocabulary import always_kept, chosen, removed_probability, trim_checkpoint
from fairseq_headgates.messages import Progress
from fairseq_headgates.plugin.models.building import build_model

MODEL = "model.pt"  # the checkpoint in the new folder


class Vocabularies:
    """The dictionaries of a task, and the files that have their symbols.

    Args:
        session: the session of the command
        corpus: a part of its data

    Attributes:
        dictionaries: by the stack that embeds their symbols
        same: whether they are equal
        folders: the folders of texts
        files: the files of dictionaries: path, folder of the new one within the new folder, stack, lines

    Raises:
        ValueError: for data that are not one folder with the dictionaries of the model
    """

    def __init__(self, session: Session, corpus: Corpus):
        self.args, self.task, self.progress = session.fairseq, session.task, session.progress
        roots = [Path(path) for path in utils.split_paths(self.args.data)]
        if len(roots) > 1 or any(getattr(self.args, name, None) for name in ("source_dict", "target_dict")):
            raise ValueError(
                "a vocabulary is trimmed with one folder of data and its dictionaries: leave out other folders, "
                "--source-dict and --target-dict"
            )
        self.root = roots[0]
        self.dictionaries = corpus.objective.dictionaries()
        first, *others = self.dictionaries.values()
        self.same = all(first.symbols == other.symbols for other in others)
        self.folders = [each for each in corpus.objective.folders(str(self.root)) if each != self.root / "label"]
        files = [
            (path, each.relative_to(self.root), self.stack(language))
            for each in self.folders
            for language, path in folder.dictionary_files(each).items()
        ]
        if fixed := getattr(self.args, "fixed_dictionary", None):
            files.append((Path(fixed), Path(), next(iter(self.dictionaries))))
        self.files = [
            (path, place, stack, folder.dictionary_lines(path, self.dictionaries[stack]))
            for path, place, stack in files
        ]
        self.pieces = subwords_of(first.symbols) == "sentencepiece"

    def stack(self, language: str) -> str:
        """Return the stack whose dictionary a text of a language has."""
        target = not self.same and language == self.args.target_lang
        return list(self.dictionaries)[-1 if target else 0]

    def kept(self, subsets: Collection[str], size: int | None) -> dict[str, Tensor]:
        """Return the numbers of the symbols that each stack keeps. Raise ValueError for a subset without texts."""
        counts = {stack: torch.zeros(len(each), dtype=torch.long) for stack, each in self.dictionaries.items()}
        texts = [text for each in self.folders for text in folder.texts(each)]
        for subset in subsets:
            if not any(folder.is_of(subset, name) for _, name, _ in texts):
                raise ValueError(f"there is no subset {subset!r} in {self.root}: name others with --keep")
        for prefix, name, language in texts:
            if any(folder.is_of(subset, name) for subset in subsets):
                folder.count(prefix, counts[self.stack(language)], self.progress(f"count {prefix.name}"))
        found: dict[str, Tensor] = {}
        for stack, dictionary in self.dictionaries.items():
            stored = dictionary.nspecial + max(len(lines) for *_, of, lines in self.files if self.same or of == stack)
            always = always_kept(dictionary, no_words(self.task, "target" if stack == "decoder" else "source"), stored)
            found[stack] = next(iter(found.values())) if self.same and found else chosen(counts[stack], always, size)
        return found

    def write(self, kept: Mapping[str, Tensor], target: Path) -> tuple[Namespace, dict[str, tuple[int, int]]]:
        """Write dictionaries and data. Return the options that read them, and the unknown and all tokens of subsets."""
        unknown: dict[str, tuple[int, int]] = {}
        numbers = {stack: torch.full((len(each),), each.unk()) for stack, each in self.dictionaries.items()}
        for stack, symbols in kept.items():
            numbers[stack][symbols] = torch.arange(len(symbols))
        for each in self.folders:
            place = target / each.relative_to(self.root)
            place.mkdir(exist_ok=True)
            for prefix, subset, language in folder.texts(each):
                stack, progress = self.stack(language), self.progress(f"write {prefix.name}")
                unk = self.dictionaries[stack].unk()
                lost, number = folder.renumber(prefix, place / prefix.name, numbers[stack], unk, progress)
                before = unknown.get(subset, (0, 0))
                unknown[subset] = (before[0] + lost, before[1] + number)
            folder.copy_alignments(each, place)
        if self.root not in self.folders:  # those of classifiers
            shutil.copytree(self.root / "label", target / "label")
        for path, relative, stack, lines in self.files:
            special = self.dictionaries[stack].nspecial
            left = [lines[i - special] for i in kept[stack].tolist() if special <= i < special + len(lines)]
            place = target / relative
            (place / path.name).write_text("".join(f"{line}\n" for line in left), encoding="utf-8")
            if self.pieces:  # as `spm_encode --vocabulary` reads them
                pieces = "".join(f"{folder.symbol_of(line)}\t1\n" for line in left)
                (place / f"{path.stem}.pieces").write_text(pieces, encoding="utf-8")
        args = copy.copy(self.args)
        args.data, args.dataset_impl = str(target), None
        if getattr(args, "fixed_dictionary", None):
            args.fixed_dictionary = str(target / Path(args.fixed_dictionary).name)
        return args, unknown


def trim(
    session: Session, state: dict[str, Any], model: nn.Module, corpus: Corpus, target: Path, keep: Collection[str],
    size: int | None
) -> str:  # fmt: skip
    """Write the trimmed checkpoint and the data to a folder. Return a table of both models, and what was removed.

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
    before = {stack: len(each) for stack, each in vocabularies.dictionaries.items()}
    smaller_state = trim_checkpoint(state, kept, before)
    smaller = build_model(smaller_state).to(next(model.parameters()).device)
    args, unknown = vocabularies.write(kept, target)
    torch.save(smaller_state, target / MODEL)
    symbols = [(f"{each:,}", f"{len(kept[stack]):,}") for stack, each in before.items()]
    names = ["symbols"] if vocabularies.same else ["symbols of the source", "symbols of the target"]
    rows = [
        *([name, *numbers] for name, numbers in zip(names, symbols, strict=False)),
        ["parameters", *(f"{number_of_parameters(each):,}" for each in (model, smaller))],
        ["MB", *(f"{_bytes(each) / 1e6:,.1f}" for each in (state, smaller_state))],
    ]
    lines = [text_table(["", "before", "after"], rows), ""]
    lines += [
        f"tokens of {name} that become <unk>: {lost:,} of {number:,}"
        for name, (lost, number) in sorted(unknown.items())
    ]
    measured = f"{corpus.sentences} sentences of {corpus.subset}"
    probability = removed_probability(model, corpus, list(kept.values())[-1])
    if probability is not None:
        lines.append(f"mean probability of the removed symbols, {measured}: {probability:.2g}")
    if "bleu" in corpus.objective.metrics:
        with_new = load_corpus(args, setup_task(args), smaller, session.options.sentences, corpus.subset)
        progress = session.progress("translate")
        found = [_translations(each, data, progress) for each, data in ((model, corpus), (smaller, with_new))]
        changed = sum(old != new for old, new in zip(*found, strict=True))
        lines.append(f"translations that differ, {measured}: {changed}")
    if vocabularies.pieces:
        lines.append("to encode new text: spm_encode --vocabulary FILE.pieces --model as before")
    return "\n".join(lines)


def _bytes(state: Mapping[str, Any]) -> int:
    """Return the size of the weights of a checkpoint, of shared ones once."""
    weights = [each for each in state["model"].values() if torch.is_tensor(each)]
    return sum({(each.data_ptr(), each.nbytes): each.nbytes for each in weights}.values())


def _translations(model: nn.Module, corpus: Corpus, progress: Progress) -> list[str]:
    metric = metric_of("bleu", model, corpus)
    assert metric is not None
    return metric.predict(metric.prepared(model), progress)
