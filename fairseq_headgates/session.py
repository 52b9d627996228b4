"""One command at work on models and their data: options, loading, progress, what is written."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq import options, utils
from torch import nn
from tqdm import tqdm

from fairseq_headgates import evaluation, importance
from fairseq_headgates.checkpoints import load_model, updates_of
from fairseq_headgates.files import Journal, check_writable, replacing, write_whole

# Options that change how, but not what is computed: work that was stopped goes on with others.
ELSEWHERE = ("distributed", "device_id", "num_workers", "max_tokens", "batch_size", "path", "log", "no_progress", "cpu")
USAGE = "%(prog)s DATA --path CKPT [options] [options of fairseq-generate]"


def fairseq_options(command: str, rest: Sequence[str]) -> argparse.Namespace:
    """The options of fairseq-generate among `rest`. Exits with 2, as argparse does, for others."""
    parser = options.get_generation_parser()
    parser.prog, parser.usage = f"headgates {command}", USAGE
    parser.set_defaults(required_batch_size_multiple=1)  # fairseq drops what does not fill the last batch
    try:
        args = options.parse_args_and_arch(parser, list(rest))
    except OSError as error:  # of --user-dir
        raise ValueError(f"cannot import --user-dir ({error}): give the folder of a package, or leave it out") from None
    if args.path is None:
        raise ValueError("no checkpoint is given: add --path CKPT")
    _refuse_unused(args)
    return args


def _refuse_unused(args: argparse.Namespace) -> None:
    """What would be passed over without a word."""
    unused = {
        "--model-overrides": args.model_overrides != "{}",
        "--lm-path": args.lm_path is not None,
        "--constraints": args.constraints is not None,
        "--replace-unk": args.replace_unk is not None,
        "--num-shards": args.num_shards not in (0, 1),
        f"--scoring {args.scoring}": args.scoring not in ("bleu", "sacrebleu"),
    }
    given = [option for option, is_given in unused.items() if is_given]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used here: leave it out")
    if args.beam < 1:
        raise ValueError(f"--beam is {args.beam}: it must be at least 1")


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
        data = f"{short_name(self.fairseq.data)}|langs:{'-'.join(filter(None, languages))}"
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
        """Where long work with a checkpoint keeps what it has found: beside the file that it is to write."""
        place = f"{self.args.out}.part{self.paths.index(path) or ''}" if self.args.out else None
        when = Path(path).stat().st_mtime_ns  # of the checkpoint: trained on, it is another
        told = {name: str(value) for name, value in vars(self.fairseq).items() if not name.startswith(ELSEWHERE)}
        own = (self.args.command, getattr(self.args, "mode", ""), self.args.sentences, _version())
        work = json.dumps([*map(str, own), str(Path(path).resolve()), when, told], sort_keys=True)
        return Journal(place, work, self.writes, self.args.force)

    def write(self, path: str | None, text: str) -> None:
        if path and self.writes:
            write_whole(path, text, self.args.force)

    def plot(self, path: str | None, draw: Callable[[], Any]) -> None:
        if path and self.writes:
            from matplotlib import rc_context

            kind = Path(path).suffix.lstrip(".") or "png"
            with replacing(path, self.args.force) as temporary, rc_context({"svg.fonttype": "none"}):  # text stays text
                draw().savefig(temporary, format=kind, dpi=150)

    def say(self, text: str) -> None:
        if self.writes:
            print(text)


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
    with _quiet():
        if getattr(args, "plot", None):
            _check_plot(args.plot)
        yield Session(args, needs_target)
        evaluation.leave_workers()


@contextmanager
def _quiet():
    """Only warnings of the libraries, none of those that are about their own future."""
    loggers = [logging.getLogger(name) for name in ("fairseq", "sacrebleu", "hydra", "matplotlib")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.WARNING)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _check_plot(path: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'fairseq-headgates[plots]'") from None
    kinds = Figure().canvas.get_supported_filetypes()
    kind = Path(path).suffix.lstrip(".") or "png"
    if kind not in kinds:
        raise ValueError(f"--plot {path}: no picture of the kind {kind!r} can be drawn; choose .png, .pdf or .svg")


def short_name(path: str) -> str:
    """The last folder and the name: what tells checkpoints and data of several runs apart."""
    return "/".join(Path(path).resolve().parts[-2:])


def _version() -> str:
    from fairseq_headgates import __version__

    return __version__
