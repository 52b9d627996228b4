"""The session of a command that reads data: workers, the task, and loading checkpoints and corpora."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from fairseq import utils
from torch import nn

from fairseq_headgates import __version__
from fairseq_headgates.cli.fairseq_options import fairseq_options
from fairseq_headgates.cli.options import ChosenSentences, Data, LoadsCheckpoint, Refit, Scores, Text
from fairseq_headgates.cli.output import check_picture, progress, warn
from fairseq_headgates.cli.signature import Signatures, short_name
from fairseq_headgates.data.corpus import Corpus, check_target, load_corpus
from fairseq_headgates.data.metrics import Metric, metric_of
from fairseq_headgates.data.symbols import spell_numbers
from fairseq_headgates.data.task import to_config
from fairseq_headgates.data.text import binarise, copy_dictionaries
from fairseq_headgates.data.workers import device_of, join_workers, leave_workers
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import HeadTable, Signature
from fairseq_headgates.inference.packed_linear import set_precision, without_effect
from fairseq_headgates.messages import Progress, logging_only
from fairseq_headgates.plugin.models.building import load_model
from fairseq_headgates.plugin.models.language_model import read_characters
from fairseq_headgates.safety.checkpoint import updates_of
from fairseq_headgates.scores import importance
from fairseq_headgates.scores.options import ScoreOptions


@dataclass(frozen=True)
class Loaded:
    """A model on its device, the corpus, and the signature of both."""

    model: nn.Module
    corpus: Corpus
    signature: Signature


class Session(Signatures):
    """One run of a command that reads data: its options, those of fairseq and its task, and where it prints.

    Attributes:
        options: the options of the command
        paths: the checkpoints of --path
        needs_target: whether the data must have targets
        subsets: the subsets of the data that were read
        writes: whether this is the first worker, the only one that writes and prints
    """

    def __init__(self, options: LoadsCheckpoint, needs_target: bool, folder: str = ""):
        rest, text = options.fairseq_arguments() or [], options.text
        fairseq = fairseq_options(options.command, rest, options.subset, bool(text))
        self.options, self.needs_target = options, needs_target
        self.paths = utils.split_paths(fairseq.path)
        if len({Path(path).resolve() for path in self.paths}) < len(self.paths):
            raise ValueError(f"--path {fairseq.path} names a checkpoint twice: name each once")
        join_workers(fairseq)
        self.writes, self._warned = fairseq.distributed_rank == 0, set[str]()
        self.subsets, self._journals = set[str](), list[ResumeJournal]()
        if text and (fairseq.data is None or isinstance(options, Text)):
            dictionaries = copy_dictionaries(fairseq, text, Path(folder), options.trust)
            if isinstance(options, Text):
                binarise(text, dictionaries, fairseq.gen_subset, options.fit_subset)
        super().__init__(fairseq, text)
        if fairseq.bpe == "gpt2" and options.shows_tokens:  # the others print none, or text that the BPE decodes
            spell_numbers(self.task, to_config(fairseq).bpe)

    def only_path(self) -> str:
        """Return the one checkpoint of --path. Raise ValueError if there are several."""
        if len(self.paths) != 1:
            number = len(self.paths)
            raise ValueError(
                f"--path names {number} checkpoints: give one (evaluate, curve and functions take several)"
            )
        return self.paths[0]

    def load(self, path: str) -> Loaded:
        """Load a checkpoint, build its model on the device, and read the corpus."""
        model, origin = self.model(path)
        corpus = self.corpus(model)
        return Loaded(model, corpus, self.signature(corpus).with_parts(origin))

    def checkpoint(self, path: str) -> tuple[dict[str, Any], nn.Module, dict[str, int | str]]:
        """Load a checkpoint. Return it, its model on the device, and the parts of a signature that name it."""
        state, model = load_model(path, self.options.trust, self.options.arch)
        read_characters(model, self.task.source_dictionary)
        model.to(device_of(self.fairseq))
        return state, model, {"ckpt": short_name(path), "updates": updates_of(state), "v": __version__}

    def model(self, path: str) -> tuple[nn.Module, dict[str, int | str]]:
        """Load a checkpoint for inference. Return its model, and the parts of a signature that name it."""
        model: Any
        _, model, origin = self.checkpoint(path)
        if self.fairseq.fp16 and device_of(self.fairseq).type == "cuda":
            model.half()
        if dtype := set_precision(model, self.options.precision()):
            if message := without_effect(model):
                self.warn_once(message)
            else:
                origin["dtype"] = dtype
        return model, origin

    def corpus(self, model: nn.Module, subset: str | None = None, sentences: int | None = None) -> Corpus:
        """Return the batches of a subset (default: --gen-subset), or of its first sentences, for a model."""
        corpus = load_corpus(self.fairseq, self.task, model, sentences or self.options.sentences, subset)
        if self.needs_target:
            check_target(corpus, f"headgates {self.options.command}")
        self.subsets.add(corpus.subset)
        return corpus

    def note_subset(self) -> None:
        """Print the name of the subset on stderr if the command has read it, and --gen-subset does not give it."""
        given = self.options.text or any(word.partition("=")[0] == "--gen-subset" for word in self.options.rest)
        if isinstance(self.options, Data) and self.writes and not given and self.fairseq.gen_subset in self.subsets:
            print(f"subset: {self.fairseq.gen_subset} (no --gen-subset is given)", file=sys.stderr)

    def with_subset(self, loaded: Loaded, subset: str) -> Loaded:
        """Return the same model with the corpus of a subset and its signature."""
        if subset == loaded.corpus.subset:
            return loaded
        corpus = self.corpus(loaded.model, subset)
        return Loaded(loaded.model, corpus, loaded.signature.with_parts(self.signature(corpus).parts))

    def scores(self, loaded: Loaded, method: str, chosen: Scores) -> HeadTable:
        """Compute importance scores, with a signature of all that they depend on."""
        options = ScoreOptions(
            chosen.gradient_unit, chosen.normalize, chosen.rule, self.fairseq.seed, self.progress(method)
        )
        table = importance.score(loaded.model, loaded.corpus.task, loaded.corpus.batches, method, options)
        signature = loaded.signature.of_method(method, options.signature_parts(method))
        return HeadTable(table.layers, method, str(signature))

    def metric(self, name: str, model: nn.Module, corpus: Corpus) -> Metric | None:
        """Return a metric, see `data.metrics.metric_of`. Print its warning once."""
        metric = metric_of(name, model, corpus)
        if metric and metric.warning:
            self.warn_once(metric.warning)
        return metric

    def name(self, path: str) -> str:
        """Return the name of a checkpoint: its last folder and name, if that distinguishes it from the others."""
        short = short_name(path)
        return short if sum(short_name(other) == short for other in self.paths) == 1 else path

    def progress(self, text: str) -> Progress:
        """Return a function that wraps an iterable in a progress bar, on a terminal."""
        return progress(text, shown=self.writes)

    def journal(self, path: str, mode: str = "", refit: Refit | None = None) -> ResumeJournal:
        """Return the journal of work with a checkpoint: a file beside the one of --out.

        Its first line names all that the results depend on; see `Signatures.content`. Options that choose heads
        (scores, --select-subset) are not part of it: results are stored by the heads that are masked.
        """
        options = self.options
        if not options.out:
            return ResumeJournal(None, "")
        command = (options.command, mode, options.precision(), options.sentences, __version__, self.search)
        work = json.dumps([*map(str, command), *self.content(path, refit)], sort_keys=True)
        place = f"{options.out}.part{self.paths.index(path) or ''}"
        self._journals.append(ResumeJournal(place, work, self.writes, options.force))
        return self._journals[-1]

    def warn_once(self, message: str) -> None:
        """Print a warning, unless it was printed before."""
        if self.writes and message not in self._warned:
            warn(self.options.command, message)
            self._warned.add(message)

    def discard_journals(self) -> None:
        """Remove the journals: the results are written."""
        for journal in self._journals:
            journal.discard()


@contextmanager
def open_session(options: LoadsCheckpoint, needs_target: bool = True) -> Iterator[Session]:
    """Within the context, a `Session`. Other libraries log only warnings.

    An error because another worker is lost becomes a ValueError that says so.
    """
    quiet = logging_only(logging.WARNING, "fairseq", "sacrebleu", "hydra", "matplotlib")
    with warnings.catch_warnings(), quiet:
        warnings.simplefilter("ignore")
        if plot := options.files_to_write().get("plot"):
            check_picture(plot, isinstance(options, ChosenSentences))
        try:
            with TemporaryDirectory(prefix="headgates-text-") if options.text else nullcontext("") as folder:
                session = Session(options, needs_target, folder)
                yield session
            session.note_subset()
            leave_workers()
        except RuntimeError as error:
            if torch.distributed.is_initialized() and any(n in str(error) for n in ("gloo", "NCCL", "Connection")):
                raise ValueError("another worker has stopped: see its error") from None
            raise
