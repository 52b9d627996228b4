"""One command at work on models and their data: options, loading, progress, what is written."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import nn
from tqdm import tqdm

from fairseq_headgates import evaluation, importance
from fairseq_headgates.checkpoints import load_model, updates_of
from fairseq_headgates.evaluation.binarised import digest
from fairseq_headgates.evaluation.options import fairseq_options, first_line, logging_only
from fairseq_headgates.files import Journal, check_writable, replacing, write_whole

# Options that change how, but not what is computed: work that was stopped goes on with others. The content of the data
# and of the checkpoint counts, not their place.
ELSEWHERE = (
    *("distributed", "device_id", "num_workers", "max_tokens", "batch_size", "log", "no_progress", "cpu"),
    *("path", "data"),
)


OUT_OF_MEMORY = "out of memory: pass a smaller --max-tokens or --beam"


@dataclass(frozen=True)
class Loaded:
    """A checkpoint's model where it computes, its name, and the corpus."""

    model: nn.Module
    corpus: evaluation.Corpus
    signature: str


class Session:
    """What one command works with: its options, fairseq's, and whether this process is the one that writes."""

    def __init__(self, args: argparse.Namespace, needs_target: bool = True):
        self.args = args
        self.fairseq = fairseq_options(args.command, args.rest)
        self.needs_target = needs_target
        self.paths = utils.split_paths(self.fairseq.path)
        if len({Path(path).resolve() for path in self.paths}) < len(self.paths):
            raise ValueError(f"--path {self.fairseq.path} names a checkpoint twice: name each once")
        evaluation.join_workers(self.fairseq)
        self.writes = self.fairseq.distributed_rank == 0
        self.task = evaluation.setup_task(self.fairseq)

    def load(self, path: str) -> Loaded:
        state, model = load_model(path, self.args.trust)
        device = evaluation.device_of(self.fairseq)
        if self.fairseq.fp16 and device.type == "cuda":
            model.half()
        corpus = self.corpus(model)
        signature = f"ckpt:{short_name(path)}|updates:{updates_of(state)}"
        return Loaded(model.to(device), corpus, f"{self.signature(corpus)}|{signature}|v:{_version()}")

    def corpus(self, model: nn.Module, subset: str | None = None) -> evaluation.Corpus:
        chosen = argparse.Namespace(**{**vars(self.fairseq), "gen_subset": subset or self.fairseq.gen_subset})
        corpus = evaluation.load_corpus(chosen, self.task, model, self.args.sentences)
        if self.needs_target:
            evaluation.check_target(corpus, f"headgates {self.args.command}")
        return corpus

    def name(self, path: str) -> str:
        """What a checkpoint is called: by its last folder and name, where that tells it from the others."""
        short = short_name(path)
        return short if sum(short_name(other) == short for other in self.paths) == 1 else path

    def signature(self, corpus: evaluation.Corpus) -> str:
        languages = (getattr(self.task.cfg, f"{side}_lang", None) for side in ("source", "target"))
        folders = ":".join(short_name(folder) for folder in utils.split_paths(self.fairseq.data))
        data = f"{folders}|langs:{'-'.join(filter(None, languages))}"
        return f"data:{data}|split:{corpus.subset}|sents:{corpus.sentences}"

    def progress(self, text: str) -> Callable[[Iterable], Iterable]:
        shown = self.writes and sys.stderr.isatty()
        return partial(tqdm, desc=text, disable=not shown, leave=False)

    def method_options(self, text: str = "") -> importance.Options:
        args = self.args
        return importance.Options(args.abs, args.normalize, args.rule, self.fairseq.seed, self.progress(text))

    @property
    def search(self) -> str:
        """The options of the search that change translations."""
        args = self.fairseq
        return f"beam:{args.beam}|lenpen:{args.lenpen}|post:{args.post_process}|tok:{args.tokenizer}|bpe:{args.bpe}"

    def journal(self, path: str) -> Journal:
        """Return where long work with a checkpoint keeps its results: a file beside the one that it is to write.

        Its first line names all that these results depend on: the options of the search, the content of the checkpoint,
        of `--gen-subset` and of the dictionaries. What chooses heads (scores, --select-subset) is not part of it:
        results are kept by the heads that are masked.
        """
        if not self.args.out:
            return Journal(None, "")
        place = f"{self.args.out}.part{self.paths.index(path) or ''}"
        told = {name: str(value) for name, value in vars(self.fairseq).items() if not name.startswith(ELSEWHERE)}
        own = (self.args.command, getattr(self.args, "mode", ""), self.args.sentences, _version())
        files = evaluation.files_of(self.task, self.fairseq.data, self.fairseq.gen_subset)
        content = {"checkpoint": digest([path]), "data": digest(files), "dictionaries": self._dictionaries()}
        return Journal(place, json.dumps([*map(str, own), content, told], sort_keys=True), self.writes, self.args.force)

    def _dictionaries(self) -> list[str]:
        """Return a digest of the symbols of each dictionary."""
        found = (self.task.source_dictionary, self.task.target_dictionary)
        return [hashlib.sha256("\n".join(each.symbols).encode()).hexdigest() for each in found if each is not None]

    def write(self, path: str | None, text: str) -> None:
        if path and self.writes:
            write_whole(path, text, self.args.force)

    def plot(self, path: str | None, draw: Callable[[], Any]) -> None:
        if path and self.writes:
            picture = _drawn(path, draw)
            with replacing(path, self.args.force) as temporary:
                temporary.write_bytes(picture)

    def say(self, text: str) -> None:
        if self.writes:
            say(text)


@contextmanager
def session(args: argparse.Namespace, needs_target: bool = True):
    """A `Session` that leaves the other processes at its end; what cannot be written is refused at its beginning."""
    outputs = {name: path for name in ("out", "plot", "tsv") if (path := getattr(args, name, None)) is not None}
    for name, path in outputs.items():
        if not path:
            raise ValueError(f"--{name} is empty: give the name of a file")
        check_writable(path, args.force)
    if len({Path(path).resolve() for path in outputs.values()}) < len(outputs):
        raise ValueError(f"{' and '.join(f'--{name}' for name in outputs)} name one file: give each its own")
    for name in ("scores", "score_method", "score_subset", "select_subset"):
        if getattr(args, name, None) == "":
            raise ValueError(f"--{name.replace('_', '-')} is empty: give a name, or leave it out")
    with _quiet(), _one_line_errors():
        if getattr(args, "plot", None):
            _check_plot(args.plot)
        yield Session(args, needs_target)
        evaluation.leave_workers()


@contextmanager
def _quiet():
    """Within the context, only warnings of the libraries are shown, none of those that are about their own future."""
    with warnings.catch_warnings(), logging_only(logging.WARNING, "fairseq", "sacrebleu", "hydra", "matplotlib"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _one_line_errors():
    """Within the context, errors that are no fault of the program are a ValueError of one line."""
    try:
        yield
    except MemoryError:
        raise ValueError(OUT_OF_MEMORY) from None
    except RuntimeError as error:
        if "allocate memory" in str(error) or "out of memory" in str(error):
            raise ValueError(OUT_OF_MEMORY) from None
        if torch.distributed.is_initialized() and any(name in str(error) for name in ("gloo", "NCCL", "Connection")):
            raise ValueError("another worker has stopped: see its error") from None
        raise


def say(text: str) -> None:
    """Print the result of a command. Raise ValueError if standard output cannot be written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (what is left is not written again at exit)
        raise ValueError(f"cannot write to standard output ({error.strerror}): make room, or use --out") from None


def _check_plot(path: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'fairseq-headgates[plots]'") from None
    kinds = Figure().canvas.get_supported_filetypes()
    kind = _kind(path)
    if kind not in kinds:
        raise ValueError(f"--plot {path}: no picture of the kind {kind!r} can be drawn; choose .png, .pdf or .svg")


def _drawn(path: str, draw: Callable[[], Any]) -> bytes:
    """Return the content of a picture file. It is drawn in memory: without room on the disk, JPEG never ends."""
    from matplotlib import rc_context

    kind = _kind(path)
    picture = io.BytesIO()
    target = io.TextIOWrapper(picture, "utf-8", write_through=True) if kind == "pgf" else picture
    try:
        with rc_context({"svg.fonttype": "none"}):  # text stays text
            draw().savefig(target, format=kind, dpi=150)
        return picture.getvalue()
    except Exception as error:  # a program is missing, such as that of LaTeX
        raise ValueError(f"cannot draw {path} ({first_line(error)}): choose .png, .pdf or .svg") from None


def _kind(path: str) -> str:
    """Return the format that the name of a picture says."""
    return Path(path).suffix.lstrip(".") or "png"


def short_name(path: str) -> str:
    """The last folder and the name: what tells checkpoints and data of several runs apart."""
    return "/".join(Path(path).resolve().parts[-2:])


def _version() -> str:
    from fairseq_headgates import __version__

    return __version__
