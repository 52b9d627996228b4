"""Signatures of results: a line of text that names data, options, checkpoint and version."""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils

from fairseq_headgates.cli.fairseq_options import changed_options
from fairseq_headgates.cli.options import Refit
from fairseq_headgates.data.binarised import digest
from fairseq_headgates.data.corpus import Corpus, files_of
from fairseq_headgates.data.objectives import objective_of
from fairseq_headgates.data.task import setup_task
from fairseq_headgates.data.workers import device_of
from fairseq_headgates.heads import Signature

# Options that do not change the results: a stopped command resumes with others. The content of the data and of the
# checkpoint is compared, not their place.
IRRELEVANT = (
    *("distributed", "device_id", "num_workers", "max_tokens", "batch_size", "log", "no_progress", "cpu"),
    *("path", "data"),
)


class Signatures:
    """What results depend on: the options of fairseq, of which only those are named that are not its defaults.

    Attributes:
        fairseq: the options of fairseq-generate
        places: the folders of the data, or the files of the text
        task: fairseq's task of these options
        objective: what its models compute; see `data.objectives`
    """

    def __init__(self, fairseq: argparse.Namespace, text: Sequence[str] | None = None):
        self.fairseq, self.places = fairseq, text or utils.split_paths(fairseq.data)
        self._data_options, self._search_options = changed_options(fairseq)  # before the task adds its own
        self.task = setup_task(fairseq)
        self.objective = objective_of(self.task)
        if device_of(fairseq).type != "cuda":
            self._data_options.pop("fp16", None)  # a CPU computes in single precision

    def signature(self, corpus: Corpus) -> Signature:
        """Return the signature of a corpus."""
        return self.origin(corpus.subset).with_parts({"sents": corpus.sentences})

    def origin(self, subset: str) -> Signature:
        """Return the signature of the data, with all options that are not fairseq's defaults and change results."""
        places = ":".join(map(short_name, self.places))
        options = _listed(self._data_options, self.objective.signed)
        parts = {"data": places, **self.objective.signature(), "options": options, "split": subset}
        return Signature({name: part for name, part in parts.items() if part or name not in ("options", "split")})

    @property
    def search(self) -> Signature:
        """The options of the search that change translations."""
        args = self.fairseq
        parts = {"beam": args.beam, "lenpen": args.lenpen, "post": args.post_process, "tok": args.tokenizer}
        parts |= {"bpe": args.bpe}
        if args.sampling:  # random numbers are drawn batch by batch
            parts |= {"seed": args.seed, "batch": f"{args.max_tokens}-{args.batch_size}-{args.distributed_world_size}"}
        if options := _listed(self._search_options, ("beam", "lenpen", "post_process", "tokenizer", "bpe")):
            parts["search-options"] = options
        return Signature({}).with_parts(parts)

    def content(self, checkpoint: str, refit: Refit | None) -> list[Any]:
        """Return digests of all files that results with a checkpoint depend on, and the options that change results."""
        dictionaries = (self.task.source_dictionary, self.task.target_dictionary)
        symbols = ["\n".join(each.symbols).encode() for each in dictionaries if each is not None]
        content: dict[str, Any] = {
            "checkpoint": digest([checkpoint]),
            "data": self._digest(self.fairseq.gen_subset),
            "dictionaries": [hashlib.sha256(each).hexdigest() for each in symbols],
        }
        if refit:
            subset, sentences = refit.refit_subset, refit.refit_sentences
            content["refit"] = {"data": self._digest(subset), "subset": subset, "sentences": sentences}
        relevant = {name: str(value) for name, value in vars(self.fairseq).items() if not name.startswith(IRRELEVANT)}
        return [content, relevant]

    def _digest(self, subset: str) -> str:
        return digest(files_of(self.task, self.fairseq.data, subset))


def _listed(options: Mapping[str, str], others: Sequence[str]) -> str:
    """Return options, except `others`, as text."""
    return ",".join(f"{name.replace('_', '-')}={_short(each)}" for name, each in options.items() if name not in others)


def _short(value: str) -> str:
    """Return a value, a long one by its beginning and a digest: M2M-100 has 9,900 language pairs."""
    return value if len(value) <= 80 else f"{value[:40]}...{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def short_name(path: str) -> str:
    """Return the last folder and the name of a path."""
    return "/".join(Path(path).resolve().parts[-2:])
