"""A subset of binarised data in batches, found and batched by fairseq with the options of fairseq-generate."""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import BaseWrapperDataset
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import stacks_of
from fairseq_headgates.data.binarised import check_sizes, subset_files
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.data.objectives import Classes, Objective, objective_of, options_of
from fairseq_headgates.data.symbols import no_words
from fairseq_headgates.data.task import to_config
from fairseq_headgates.data.workers import all_reduce, device_of, gather
from fairseq_headgates.messages import first_line, logging_only

logger = logging.getLogger(__name__)

# What a checkpoint is by its stacks of layers, and a --task for it.
MODELS = {
    ("encoder", "decoder"): ("a translator", "translation"),
    ("decoder",): ("a language model", "language_modeling"),
    ("encoder",): ("an encoder", "sentence_prediction or masked_lm"),
}


class FirstSentences(BaseWrapperDataset):
    """The first `number` sentences of a data set."""

    def __init__(self, dataset: Any, number: int):
        super().__init__(dataset)
        self.number = min(number, len(dataset))

    def __len__(self) -> int:
        return self.number

    def ordered_indices(self) -> Any:
        """Return the indices in the order of the data set, without those of other sentences."""
        indices = self.dataset.ordered_indices()
        return indices[indices < self.number]


@dataclass(frozen=True)
class Corpus:
    """A subset of binarised data: the batches of this worker, and the task with its dictionaries.

    `sentences` counts those of all workers, `lines` also those that are skipped; `args` are the options of
    fairseq-generate. Of `part` alone, numbers of sentences in the data (default: all), targets and positions count.
    """

    task: Any
    batches: Sequence[Sample]
    subset: str = ""
    sentences: int = 0
    args: Any = None
    lines: int = 0
    part: range | None = None

    @property
    def pad(self) -> int:
        """Index of the padding in the target dictionary."""
        return self.task.target_dictionary.pad()

    @cached_property
    def cfg(self) -> Any:
        """The options as fairseq's commands pass them on."""
        return to_config(self.args)

    @cached_property
    def objective(self) -> Objective:
        """What the task predicts."""
        return objective_of(self.task)

    def losses(self, model: nn.Module, sample: Sample, sampled: bool = False) -> Tensor:
        """Return the loss of every number of the target, in bits, 0 for those that do not count: [B, T].

        With `sampled`, targets are drawn from the model's own distribution.
        """
        losses = self.objective.losses(model, sample, sampled)
        return losses if self.part is None else losses.masked_fill(~self._in_part(sample)[:, None], 0.0)

    def counted(self, sample: Sample) -> Tensor:
        """Return which numbers of the target count: [B, T]."""
        counted = self.objective.counted(sample)
        return counted if self.part is None else counted & self._in_part(sample)[:, None]

    def _in_part(self, sample: Sample) -> Tensor:
        assert self.part is not None
        return (sample["id"] >= self.part.start) & (sample["id"] < self.part.stop)

    def held_out(self, share: float) -> tuple[Corpus, Corpus]:
        """Return the corpus without its last sentences, of all workers, and these: a share of all, at least one."""
        numbers = self.numbers()
        first = numbers[-max(1, round(share * len(numbers)))]
        return self._only(range(first)), self._only(range(first, sys.maxsize))

    def _only(self, part: range) -> Corpus:
        """Return the corpus of some sentences. Batches keep the others if a model remembers them."""
        corpus = replace(self, part=part)
        if getattr(self.task, "consecutive", False):
            return corpus
        rows = [(sample, corpus._in_part(sample)) for sample in self.batches]
        return replace(corpus, batches=[_rows(sample, chosen) for sample, chosen in rows if chosen.any()])

    @cached_property
    def no_words(self) -> dict[str, list[int]]:
        """Symbols of the source and of the target that are no words."""
        return {side: no_words(self.task, side) for side in ("source", "target")}

    def words(self, tokens: Tensor, side: str) -> Tensor:
        """Return which tokens of the "source" or "target" are words: not padding, EOS, <s> or those of languages."""
        return torch.isin(tokens, tokens.new_tensor(self.no_words[side]), invert=True)

    def in_order(self, of_batches: Iterable[Iterable[Any]]) -> list[Any]:
        """Return values of the sentences of all workers in their order, from those of each sentence of each batch."""
        found: dict[int, Any] = {}
        for sample, values in zip(self.batches, of_batches, strict=True):
            found.update(zip(sample["id"].tolist(), values, strict=True))
        return [value for _, value in sorted(gather(found).items())]

    def numbers(self) -> list[int]:
        """Return the numbers in the data of the sentences of all workers, from 0; some may be skipped."""
        return self.in_order(sample["id"].tolist() for sample in self.batches)

    def positions(self, sample: Sample, attention_type: str, states: Tensor) -> Tensor:
        """Return which states [T, B, ...] of the queries of an attention type are not of padding: [T, B].

        These are all in an encoder of speech, which has no tokens.
        """
        names = ("src_tokens",) if attention_type == "enc-self" else ("prev_output_tokens", "src_tokens")
        tokens = next(sample["net_input"][name] for name in names if name in sample["net_input"])
        real = tokens.ne(self.pad).transpose(0, 1)
        real = real if real.shape == states.shape[:2] else torch.ones_like(states[..., 0], dtype=torch.bool)
        return real if self.part is None else real & self._in_part(sample)

    @property
    def eos(self) -> int:
        """Index of end of sentence in the target dictionary."""
        return self.task.target_dictionary.eos()


def _rows(batch: Any, chosen: Tensor) -> Any:
    """Return the rows of a batch that are `chosen` [B], of its tensors [B, ...] in dictionaries."""
    if isinstance(batch, Mapping):
        return {name: _rows(value, chosen) for name, value in batch.items()}
    return batch[chosen] if torch.is_tensor(batch) and batch.shape[:1] == chosen.shape else batch


def files_of(task: Any, folder: str, subset: str) -> list[Path]:
    """Return the files that fairseq reads for a subset: those of its languages in the first folder of DATA."""
    first = utils.split_paths(folder)[0]
    folders = objective_of(task).folders(first)
    if folders != [Path(first)]:  # of first or second sentences, and of labels
        found = {part: subset_files(str(part), subset) for part in folders}
        if missing := next((part for part, files in found.items() if not files and part.name == "input1"), None):
            # fairseq would leave them out
            raise ValueError(f"there is no subset {subset!r} in {missing}: binarise the second sentences, too")
        return [path for files in found.values() for path in files]
    options = options_of(task)
    source, target = (getattr(options, f"{side}_lang", None) for side in ("source", "target"))
    if not source or not target:
        return subset_files(first, subset)
    pairs = (f"{source}-{target}", f"{target}-{source}")  # fairseq takes the second where the first does not exist
    found_pairs = (subset_files(first, subset, [f"{pair}.{source}", f"{pair}.{target}"]) for pair in pairs)
    aligned = [f"align.{pairs[0]}"] if getattr(options, "load_alignments", False) else []
    return next(filter(None, found_pairs), []) + (subset_files(first, subset, aligned) if aligned else [])


def load_corpus(
    args: Namespace, task: Any, model: nn.Module, sentences: int | None = None, subset: str | None = None
) -> Corpus:
    """Return the batches of a subset (default: `--gen-subset`), or of its first `sentences`, for a model."""
    subset = subset or args.gen_subset
    dataset = load_dataset(args, task, model, subset)
    if sentences is not None:
        if sentences < 1:
            raise ValueError(f"--sentences is {sentences}: it must be at least 1")
        dataset = FirstSentences(dataset, sentences)
    with logging_only(logging.ERROR, "fairseq"):
        batches = list(_batches(args, task, dataset, model))
    check_tokens(batches, task, args.data, subset)
    device = device_of(args)
    batches = [utils.move_to_cuda(batch, device) for batch in batches] if device.type == "cuda" else batches
    number, lines = int(all_reduce(torch.tensor(sum(len(batch["id"]) for batch in batches)))), len(dataset)
    multiple = args.required_batch_size_multiple
    reason = "longer than --max-source-positions or --max-target-positions, or than the maximum of the model"
    reason += f", or left over in the last batch by --required-batch-size-multiple {multiple}" if multiple > 1 else ""
    if not number:
        raise ValueError(f"all sentences of {subset!r} are skipped: they are {reason}")
    if number < lines and args.distributed_rank == 0:
        logger.warning("%d of %d sentences of %r are skipped: they are %s", lines - number, lines, subset, reason)
    return Corpus(task, batches, subset, number, args, lines)


def load_dataset(args: Namespace, task: Any, model: nn.Module, subset: str) -> Any:
    """Return the data set of a subset. Raise ValueError if it cannot be read, is empty, or does not fit."""
    _check_task(task, model)
    _check_vocabulary(task, model, args.data)
    if subset not in task.datasets:
        _read(task, subset, args.data)
    dataset = task.dataset(subset)
    if len(dataset) == 0:
        raise ValueError(f"the subset {subset!r} of {args.data} is empty: choose another with --gen-subset")
    return dataset


def _check_task(task: Any, model: Any) -> None:
    """Raise ValueError for a task that the model is not for, or for blocks of text that are too long for it."""
    objective, stacks = objective_of(task), tuple(stacks_of(model))
    mem_len: Any = getattr(getattr(model, "decoder", None), "mem_len", 0)
    if isinstance(objective, Classes) and len(stacks) == 2 and getattr(model, "classification_heads", None):
        raise ValueError(
            "the checkpoint is a classifier with a decoder (BART), and only those without are measured: choose heads "
            "by their gates (headgates prune), and evaluate with fairseq-validate"
        )
    if objective.stacks != stacks:
        kind, name = MODELS[stacks]
        raise ValueError(f"the checkpoint is {kind}: pass --task {name}, or another task of this kind")
    if isinstance(objective, Classes):
        objective.check_head(model)
    consecutive = getattr(task, "consecutive", False)
    if consecutive and not hasattr(model.decoder, "memories"):
        raise ValueError("the checkpoint is a model without a memory: pass --task language_modeling")
    if mem_len and not consecutive:
        raise ValueError("the checkpoint is a model with a memory: pass --task language_modeling_segments")
    longest = model.max_positions()
    if (length := objective.block_length()) and length > longest:
        raise ValueError(
            f"--tokens-per-sample is {length}: it must be at most {longest}, the number of positions of the model"
        )


def _check_vocabulary(task: Any, model: nn.Module, folder: str) -> None:
    for side, dictionary in objective_of(task).dictionaries().items():
        stack = getattr(model, side, None)
        embedding = getattr(getattr(stack, "sentence_encoder", stack), "embed_tokens", None)
        if embedding is None or dictionary is None:
            continue
        symbols = _symbols(model, embedding)
        if len(dictionary) != symbols:
            raise ValueError(
                f"the dictionary of {folder} has {len(dictionary)} symbols, the {side} of the checkpoint "
                f"{symbols}: binarise the data with the dictionaries of the checkpoint "
                "(fairseq-preprocess --srcdict, --tgtdict)"
            )


def _symbols(model: Any, embedding: Any) -> int:
    """Return the number of symbols of a vocabulary; embeddings of characters do not tell it, the output layer does."""
    if isinstance(embedding, CharacterTokenEmbedder):
        softmax = model.decoder.adaptive_softmax
        return model.decoder.output_projection.out_features if softmax is None else softmax.vocab_size
    return embedding.cutoff[-1] if isinstance(embedding, AdaptiveInput) else embedding.num_embeddings


def check_tokens(batches: Sequence[Sample], task: Any, folder: str, subset: str) -> None:
    """Raise ValueError for tokens that the dictionaries do not have, or for labels of other classes."""
    objective = objective_of(task)
    source = next(iter(objective.dictionaries().values()))
    for batch in batches:
        net_input = batch["net_input"]
        name = "src_tokens" if source is task.source_dictionary else "prev_output_tokens"  # those of speech are numbers
        sides = (
            ("token", net_input.get(name), len(source)),
            (objective.target, batch.get("target"), objective.targets()),
        )
        for what, tokens, number in sides:
            if tokens is None or not tokens.numel():
                continue
            for token in (int(tokens.min()), int(tokens.max())):
                if not 0 <= token < number:
                    raise ValueError(
                        f"the subset {subset!r} of {folder} has the {what} {token}, its dictionary {number} "
                        f"symbols: {objective.hint}"
                    )


def _read(task: Any, subset: str, folder: str) -> None:
    files = files_of(task, folder, subset)
    reason = ""
    with _silent_destructors():
        try:
            check_sizes(files)
            task.load_dataset(subset)
        except Exception as error:
            reason = (
                f"the subset {subset!r} of {folder} cannot be read ({first_line(error)}): check --dataset-impl "
                "and the other data options, or run fairseq-preprocess again"
            )
            if isinstance(error, FileNotFoundError) and not files:
                reason = (
                    f"there is no subset {subset!r} in {folder}: choose another with --gen-subset, or with "
                    "--score-subset, --select-subset, --loss-subset, --fit-subset or --refit-subset"
                )
    if reason:
        raise ValueError(reason)


@contextmanager
def _silent_destructors() -> Iterator[None]:
    """Within the context, nothing is printed when fairseq deletes a data set that it has not been able to open."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def _batches(args: Namespace, task: Any, dataset: Any, model: Any) -> Iterator[Sample]:
    task.dataset_to_epoch_iter.pop(dataset, None)  # the batches of a model with other positions, which fairseq keeps
    iterator = task.get_batch_iterator(
        dataset,
        max_tokens=4000 if args.max_tokens is None and args.batch_size is None else args.max_tokens,
        max_sentences=args.batch_size,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
        ignore_invalid_inputs=args.skip_invalid_size_inputs_valid_test,
        required_batch_size_multiple=args.required_batch_size_multiple,
        seed=args.seed,
        num_shards=args.distributed_world_size,
        shard_id=args.distributed_rank,
        num_workers=0,  # all batches are read before anything is computed: more loaders would not be faster
    )
    # Every worker gets the same number of batches: the last ones of some are empty.
    return (batch for batch in iterator.next_epoch_itr(shuffle=False) if batch and "net_input" in batch)


def check_target(corpus: Corpus, what: str) -> None:
    """Raise ValueError if the corpus has no target side."""
    if any(sample.get("target") is None for sample in corpus.batches):
        raise ValueError(f"the subset {corpus.subset!r} has no target side, which {what} needs: choose another subset")
