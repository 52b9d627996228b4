"""What the commands that read data share: options, workers, loading, progress, signatures, journals, output."""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import nn
from tqdm import tqdm

from fairseq_headgates import __version__
from fairseq_headgates.analysis import importance
from fairseq_headgates.analysis.options import ScoreOptions
from fairseq_headgates.checkpoints.building import load_model
from fairseq_headgates.cli.fairseq_options import changed_options, fairseq_options
from fairseq_headgates.cli.output import check_picture, picture, say, warn, write
from fairseq_headgates.evaluation.binarised import digest
from fairseq_headgates.evaluation.corpus import Corpus, check_target, files_of, load_corpus
from fairseq_headgates.evaluation.metrics import Metric, metric_of
from fairseq_headgates.evaluation.objectives import objective_of
from fairseq_headgates.evaluation.options import setup_task
from fairseq_headgates.evaluation.workers import device_of, join_workers, leave_workers
from fairseq_headgates.files import check_writable
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import HeadTable, Signature
from fairseq_headgates.inference.packed_linear import int8_obstacle, is_quantised, usable_dtype
from fairseq_headgates.messages import logging_only
from fairseq_headgates.plugin.models.language_model import read_characters
from fairseq_headgates.plugin.options.declared import DEFAULTS
from fairseq_headgates.safety.checkpoint import updates_of

# Options that do not change the results: a stopped command resumes with others. The content of the data and of the
# checkpoint is compared, not their place.
IRRELEVANT = (
    *("distributed", "device_id", "num_workers", "max_tokens", "batch_size", "log", "no_progress", "cpu"),
    *("path", "data"),
)
OUT_OF_MEMORY = "out of memory: pass a smaller --max-tokens or --beam"


@dataclass(frozen=True)
class Loaded:
    """A model on its device, the corpus, and the signature of both."""

    model: nn.Module
    corpus: Corpus
    signature: Signature

    def with_model(self, model: nn.Module) -> Loaded:
        """Return another model with the same corpus and signature."""
        return replace(self, model=model)


class Session:
    """The options of one command, those of fairseq, its task, and whether this worker writes the output."""

    def __init__(self, args: Any, needs_target: bool = True):
        self.args = args
        self.fairseq = fairseq_options(args.command, args.rest)
        self.data_options, self.search_options = changed_options(self.fairseq)
        self.needs_target = needs_target
        self.warned: set[str] = set()
        self.paths = utils.split_paths(self.fairseq.path)
        if len({Path(path).resolve() for path in self.paths}) < len(self.paths):
            raise ValueError(f"--path {self.fairseq.path} names a checkpoint twice: name each once")
        join_workers(self.fairseq)
        self.writes = self.fairseq.distributed_rank == 0
        if device_of(self.fairseq).type != "cuda":
            self.data_options.pop("fp16", None)  # a CPU computes in single precision
        self.task = setup_task(self.fairseq)
        self.objective = objective_of(self.task)

    def only_path(self) -> str:
        """Return the one checkpoint of --path. Raise ValueError if there are several."""
        if len(self.paths) != 1:
            number = len(self.paths)
            raise ValueError(
                f"--path names {number} checkpoints: give one (`headgates evaluate` and `curve` take several)"
            )
        return self.paths[0]

    def load(self, path: str) -> Loaded:
        """Load a checkpoint, build its model on the device, and read the corpus."""
        model, origin = self.model(path)
        corpus = self.corpus(model)
        return Loaded(model, corpus, self.signature(corpus).with_parts(origin))

    def checkpoint(self, path: str) -> tuple[dict[str, Any], nn.Module, dict[str, int | str]]:
        """Load a checkpoint. Return it, its model on the device, and the parts of a signature that name it."""
        state, model = load_model(path, self.args.trust)
        read_characters(model, self.task.source_dictionary)
        model.to(device_of(self.fairseq))
        return state, model, {"ckpt": short_name(path), "updates": updates_of(state), "v": __version__}

    def model(self, path: str) -> tuple[nn.Module, dict[str, int | str]]:
        """Load a checkpoint for inference. Return its model, and the parts of a signature that name it."""
        _, model, origin = self.checkpoint(path)
        if self.fairseq.fp16 and device_of(self.fairseq).type == "cuda":
            model.half()
        mode = getattr(self.args, "inference_mode", DEFAULTS["inference_mode"])  # None: as stored
        model.inference_mode = mode or model.inference_mode
        if self.inference_dtype(model) == "int8":
            model.make_generation_fast_()  # type: ignore[operator]
            if is_quantised(model):
                origin["dtype"] = "int8"
            else:
                self.warn_once("int8 has no effect: no linear layer of the model is large enough to be quantised")
        return model, origin

    def inference_dtype(self, model: Any) -> str:
        """Set the precision of inference, and return it; only commands with --inference-dtype choose it."""
        chosen = getattr(self.args, "inference_dtype", DEFAULTS["inference_dtype"])
        if chosen is not None:
            model.inference_dtype = chosen
            if chosen == "int8" and (obstacle := int8_obstacle(model)):
                raise ValueError(f"--inference-dtype int8 is not possible: {obstacle}")
        model.inference_dtype = usable_dtype(model, model.inference_dtype)  # warns once
        return model.inference_dtype

    def corpus(self, model: nn.Module, subset: str | None = None, sentences: int | None = None) -> Corpus:
        """Return the batches of a subset (default: --gen-subset), or of its first sentences, for a model."""
        chosen = argparse.Namespace(**{**vars(self.fairseq), "gen_subset": subset or self.fairseq.gen_subset})
        first = self.args.sentences if sentences is None else sentences
        corpus = load_corpus(chosen, self.task, model, first)
        if self.needs_target:
            check_target(corpus, f"headgates {self.args.command}")
        return corpus

    def with_subset(self, loaded: Loaded, subset: str) -> Loaded:
        """Return the same model with the corpus of a subset and its signature."""
        if subset == loaded.corpus.subset:
            return loaded
        corpus = self.corpus(loaded.model, subset)
        return Loaded(loaded.model, corpus, loaded.signature.with_parts(self.signature(corpus).parts))

    def scores(self, loaded: Loaded, method: str) -> HeadTable:
        """Compute importance scores, with a signature of all that they depend on."""
        args = self.args
        options = ScoreOptions(args.gradient_unit, args.normalize, args.rule, self.fairseq.seed, self.progress(method))
        table = importance.score(loaded.model, loaded.corpus.task, loaded.corpus.batches, method, options)
        signature = loaded.signature.of_method(method, options.signature_parts(method))
        return HeadTable(table.values, method, str(signature))

    def metric(self, name: str, loaded: Loaded) -> Metric | None:
        """Return a metric, see `evaluation.metrics.metric_of`. Print its warning once."""
        metric = metric_of(name, loaded.model, loaded.corpus)
        if metric and metric.warning:
            self.warn_once(metric.warning)
        return metric

    def warn_once(self, message: str) -> None:
        """Print a warning, in the first worker, unless it was printed before."""
        if self.writes and message not in self.warned:
            warn(self.args.command, message)
            self.warned.add(message)

    def name(self, path: str) -> str:
        """Return the name of a checkpoint: its last folder and name, if that distinguishes it from the others."""
        short = short_name(path)
        return short if sum(short_name(other) == short for other in self.paths) == 1 else path

    def signature(self, corpus: Corpus) -> Signature:
        """Return the signature of a corpus."""
        return self.origin(corpus.subset).with_parts({"sents": corpus.sentences})

    def origin(self, subset: str) -> Signature:
        """Return the signature of the data, with all options that are not fairseq's defaults and change results."""
        folders = ":".join(short_name(folder) for folder in utils.split_paths(self.fairseq.data))
        options = _listed(self.data_options, self.objective.signed)
        parts = {"data": folders, **self.objective.signature(), "options": options, "split": subset}
        return Signature({name: part for name, part in parts.items() if part or name not in ("options", "split")})

    @property
    def search(self) -> Signature:
        """The options of the search that change translations."""
        args = self.fairseq
        parts = {"beam": args.beam, "lenpen": args.lenpen, "post": args.post_process, "tok": args.tokenizer}
        parts |= {"bpe": args.bpe}
        if args.sampling:  # random numbers are drawn batch by batch
            parts |= {"seed": args.seed, "batch": f"{args.max_tokens}-{args.batch_size}-{args.distributed_world_size}"}
        if options := _listed(self.search_options, ("beam", "lenpen", "post_process", "tokenizer", "bpe")):
            parts["search-options"] = options
        return Signature({}).with_parts(parts)

    def progress(self, text: str) -> Callable[[Iterable], Iterable]:
        """Return a function that wraps an iterable in a progress bar, on a terminal."""
        visible = self.writes and sys.stderr.isatty()
        return partial(tqdm, desc=text, disable=not visible, leave=False)

    def journal(self, path: str) -> ResumeJournal:
        """Return the journal of work with a checkpoint: a file beside the one of --out.

        Its first line names all that the results depend on: the options of the search, and the content of the
        checkpoint, of --gen-subset and of the dictionaries. Options that choose heads (scores, --select-subset) are not
        part of it: results are stored by the heads that are masked.
        """
        if not self.args.out:
            return ResumeJournal(None, "")
        place = f"{self.args.out}.part{self.paths.index(path) or ''}"
        relevant = {name: str(value) for name, value in vars(self.fairseq).items() if not name.startswith(IRRELEVANT)}
        chosen = (getattr(self.args, name, "") for name in ("mode", "inference_dtype"))
        command = (self.args.command, *chosen, self.args.sentences, __version__, self.search)
        files = files_of(self.task, self.fairseq.data, self.fairseq.gen_subset)
        content: dict[str, Any] = {
            "checkpoint": digest([path]),
            "data": digest(files),
            "dictionaries": self._dictionaries(),
        }
        if getattr(self.args, "refit", False):
            subset = self.args.refit_subset
            files = files_of(self.task, self.fairseq.data, subset)
            content["refit"] = {"data": digest(files), "subset": subset, "sentences": self.args.refit_sentences}
        work = json.dumps([*map(str, command), content, relevant], sort_keys=True)
        return ResumeJournal(place, work, self.writes, self.args.force)

    def _dictionaries(self) -> list[str]:
        """Return a digest of the symbols of each dictionary."""
        found = (self.task.source_dictionary, self.task.target_dictionary)
        return [hashlib.sha256("\n".join(each.symbols).encode()).hexdigest() for each in found if each is not None]

    def write(self, path: str | None, content: str | bytes) -> None:
        """Write a file, in the first worker, if `path` is given."""
        if path and self.writes:
            write(path, content, self.args.force)

    def plot(self, path: str | None, draw: Callable[[], Any]) -> None:
        """Write a picture, in the first worker, if `path` is given; `draw` returns matplotlib's figure."""
        if path and self.writes:
            content, lacking = picture(path, draw)
            if lacking:
                other = "x.html or x.svg" if self.args.command in ("attention", "explain") else "x.svg"
                warn(self.args.command, f"{path} {lacking}: use --plot {other}")
            self.write(path, content)

    def say(self, text: str) -> None:
        """Print a result, in the first worker."""
        if self.writes:
            say(text)


@contextmanager
def session(args: Any, needs_target: bool = True, pages: bool = False) -> Iterator[Session]:
    """Within the context, a `Session`. Refuse outputs that cannot be written at its beginning.

    With `pages`, --plot can also be a web page (.html).
    """
    names = ("out", "plot", "tsv", "hypotheses", "write_alignments")
    outputs = {name.replace("_", "-"): path for name in names if (path := getattr(args, name, None)) is not None}
    for name, path in outputs.items():
        if not path:
            raise ValueError(f"--{name} is empty: give the name of a file")
        check_writable(path, args.force)
    if len({Path(path).resolve() for path in outputs.values()}) < len(outputs):
        raise ValueError(f"{' and '.join(f'--{name}' for name in outputs)} name the same file: give each its own")
    for name in ("scores", "score_method", "score_subset", "select_subset"):
        if getattr(args, name, None) == "":
            raise ValueError(f"--{name.replace('_', '-')} is empty: give a name, or leave it out")
    with _quiet(), _one_line_errors():
        if getattr(args, "plot", None):
            check_picture(args.plot, pages)
        yield Session(args, needs_target)
        leave_workers()


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the context, libraries show only warnings of their loggers."""
    with warnings.catch_warnings(), logging_only(logging.WARNING, "fairseq", "sacrebleu", "hydra", "matplotlib"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Within the context, errors of the environment become a ValueError of one line."""
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


def _listed(options: Mapping[str, str], others: Sequence[str]) -> str:
    """Return options, except `others`, as text."""
    return ",".join(f"{name.replace('_', '-')}={value}" for name, value in options.items() if name not in others)


def short_name(path: str) -> str:
    """Return the last folder and the name of a path."""
    return "/".join(Path(path).resolve().parts[-2:])
