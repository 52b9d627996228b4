"""A model on real data: fairseq's batches, shared among processes; the loss on them, translations and their BLEU.

Data are found and batched by fairseq with the options of fairseq-generate. Shapes: B batch, T target length.
"""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed
import torch.nn.functional as F
from fairseq import tasks, utils
from fairseq.data import BaseWrapperDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli.generate import get_symbols_to_strip_from_output
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from torch import Tensor, nn

LN2 = float(numpy.log(2))
RESAMPLINGS = 1000  # of the paired bootstrap (Koehn 2004)
LOGITS = {"cpu": 2**20, "cuda": 2**26}  # so many are computed at a time

Sample = Mapping[str, Any]


# --- processes -------------------------------------------------------------------------------------------------------


def join_workers(args: Namespace) -> None:
    """Joins the other processes of `torchrun`, or those that fairseq's --distributed-* options name, if there are any.

    Afterwards `args` says this process's rank and their number. Raises ValueError for options that name no meeting
    place.
    """
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        args.distributed_init_method = "env://"
        args.distributed_rank, args.distributed_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        args.device_id = int(os.environ.get("LOCAL_RANK", args.distributed_rank))
    # fairseq's default is the number of visible GPUs; this command takes one of them, unless it is told more.
    by_default = not args.distributed_init_method and args.distributed_world_size == torch.cuda.device_count()
    if args.distributed_world_size <= 1 or by_default:
        args.distributed_rank, args.distributed_world_size = 0, 1
        return
    if not args.distributed_init_method:
        raise ValueError(
            f"--distributed-world-size {args.distributed_world_size} without a place to meet: start the command with "
            f"`torchrun --nproc-per-node {args.distributed_world_size} --no-python`, or give every process "
            "--distributed-init-method and --distributed-rank"
        )
    on_gpu = device_of(args).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(args.device_id)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            args.distributed_backend if on_gpu else "gloo",
            init_method=args.distributed_init_method,
            world_size=args.distributed_world_size,
            rank=args.distributed_rank,
        )


def leave_workers() -> None:
    """The opposite of `join_workers`, when all have done their work: one that failed must not wait for the others."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def total(sums: Tensor) -> Tensor:
    """The sum of a small tensor over all processes."""
    if not torch.distributed.is_initialized():
        return sums
    gathered = sums.cuda() if torch.distributed.get_backend() == "nccl" else sums.clone()
    torch.distributed.all_reduce(gathered)
    return gathered.to(sums.device)


def union(found: dict) -> dict:
    """The dictionaries of all processes as one."""
    if not torch.distributed.is_initialized():
        return found
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, found)
    return {key: value for part in parts for key, value in part.items()}


def device_of(args: Namespace) -> torch.device:
    """Where fairseq would compute."""
    if args.cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", args.device_id)


# --- data ------------------------------------------------------------------------------------------------------------


class FirstSentences(BaseWrapperDataset):
    """The first `number` sentences of a data set."""

    def __init__(self, dataset, number: int):
        super().__init__(dataset)
        self.number = min(number, len(dataset))

    def __len__(self) -> int:
        return self.number

    def ordered_indices(self):
        indices = self.dataset.ordered_indices()
        return indices[indices < self.number]


@dataclass(frozen=True)
class Corpus:
    """A subset of binarised data: this process's share of its batches, and what turns tokens into text.

    `sentences` counts those of all processes; `cfg` holds the options of fairseq-generate.
    """

    task: Any
    batches: Sequence[Sample]
    subset: str = ""
    sentences: int = 0
    cfg: Any = None

    @property
    def pad(self) -> int:
        return self.task.target_dictionary.pad()

    @property
    def eos(self) -> int:
        return self.task.target_dictionary.eos()


def setup_task(args: Namespace) -> Any:
    """fairseq's task with its dictionaries. Raises ValueError if the data are not there."""
    try:
        task = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    except Exception as error:  # fairseq raises no other for a missing folder, dictionary or language
        raise ValueError(
            f"cannot read the data in {args.data} ({_first_line(error)}): give a folder of fairseq-preprocess"
        ) from None
    for option in ("source_lang", "target_lang"):  # fairseq passes over one that stands alone
        wanted, found = getattr(args, option, None), getattr(task.cfg, option, None)
        if wanted and found != wanted:
            raise ValueError(
                f"--{option.replace('_', '-')} is {wanted}, the data in {args.data} have {found}: name both"
            )
    return task


def load_corpus(args: Namespace, task: Any, model: nn.Module, sentences: int | None = None) -> Corpus:
    """The batches of `--gen-subset`, or of its first `sentences`, for a model. Raises ValueError."""
    _check_vocabulary(task, model, args.data)
    dataset = _load_dataset(task, args.gen_subset, args.data)
    if sentences is not None:
        if sentences < 1:
            raise ValueError(f"--sentences is {sentences}: it must be at least 1")
        dataset = FirstSentences(dataset, sentences)
    if len(dataset) == 0:
        raise ValueError(_empty(args.gen_subset, args.data))
    try:
        batches = list(_batches(args, task, dataset, model))
    except ValueError as error:
        raise ValueError(_first_line(error)) from None
    except Exception as error:  # whatever its readers make of broken files
        raise ValueError(_damaged(args.gen_subset, args.data, error)) from None
    device = device_of(args)
    batches = [utils.move_to_cuda(batch, device) for batch in batches] if device.type == "cuda" else batches
    number = int(total(torch.tensor(sum(len(batch["id"]) for batch in batches))))
    if not number:
        raise ValueError(
            f"no sentence of {args.gen_subset!r} is left: all are longer than --max-source-positions and "
            "--max-target-positions, or than the model takes"
        )
    return Corpus(task, batches, args.gen_subset, number, convert_namespace_to_omegaconf(args))


def _check_vocabulary(task: Any, model: nn.Module, folder: str) -> None:
    for side, dictionary in (("encoder", task.source_dictionary), ("decoder", task.target_dictionary)):
        embedding = getattr(getattr(model, side, None), "embed_tokens", None)
        if embedding is not None and dictionary is not None and len(dictionary) != embedding.num_embeddings:
            raise ValueError(
                f"the dictionary of {folder} has {len(dictionary)} symbols, the {side} of the checkpoint "
                f"{embedding.num_embeddings}: give the data that it was trained on"
            )


def _load_dataset(task: Any, subset: str, folder: str) -> Any:
    files = [path for part in utils.split_paths(folder) for path in Path(part).glob(f"{subset}.*.bin")]
    if any(path.stat().st_size == 0 for path in files):  # which fairseq's memory map would fail on
        raise ValueError(_empty(subset, folder))
    try:
        task.load_dataset(subset)
    except FileNotFoundError:
        raise ValueError(f"there is no subset {subset!r} in {folder}: choose another with --gen-subset") from None
    except Exception as error:
        raise ValueError(_damaged(subset, folder, error)) from None
    return task.dataset(subset)


def _damaged(subset: str, folder: str, error: Exception) -> str:
    return f"the subset {subset!r} of {folder} cannot be read ({_first_line(error)}): run fairseq-preprocess again"


def _empty(subset: str, folder: str) -> str:
    return f"the subset {subset!r} of {folder} is empty: choose another with --gen-subset"


def _batches(args: Namespace, task: Any, dataset: Any, model: nn.Module) -> Iterator[Sample]:
    for option, value in (("--max-tokens", args.max_tokens), ("--max-sentences", args.batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{option} is {value}: it must be at least 1")
    if args.max_tokens is None and args.batch_size is None:
        args.max_tokens = 4000
    try:
        iterator = task.get_batch_iterator(
            dataset,
            max_tokens=args.max_tokens,
            max_sentences=args.batch_size,
            max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
            ignore_invalid_inputs=args.skip_invalid_size_inputs_valid_test,
            required_batch_size_multiple=args.required_batch_size_multiple,
            seed=args.seed,
            num_shards=args.distributed_world_size,
            shard_id=args.distributed_rank,
            num_workers=args.num_workers,
        )
    except Exception as error:  # how fairseq says that a sentence is too long
        if "max_positions" not in str(error) and "max_tokens" not in str(error):
            raise
        raise ValueError(f"{args.gen_subset}: {_first_line(error)}") from None
    # An epoch has the same number of batches for every process: the last ones of some are empty.
    return (batch for batch in iterator.next_epoch_itr(shuffle=False) if batch and "net_input" in batch)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# --- loss ------------------------------------------------------------------------------------------------------------


def token_losses(model: nn.Module, sample: Sample, pad: int) -> Tensor:
    """-log2 p of every target token, as fairseq logs `nll_loss`: [B, T], 0 on padding."""
    target = sample["target"]
    real = target.ne(pad)
    decoder = model.decoder
    if getattr(decoder, "adaptive_softmax", None) is not None:
        logs = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True, sample=sample)
        return -logs.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(~real, 0.0) / LN2
    features = model(**sample["net_input"], features_only=True)[0]
    words, features = target[real], features[real]
    # Only where there is a word, and few logits at a time: so many of them are slow to write and to read again.
    rows = max(1, LOGITS[features.device.type] // len(decoder.output_layer(features[:1])[0]))
    parts = [
        F.cross_entropy(at_least_single(decoder.output_layer(x)), y, reduction="none")
        for x, y in zip(features.split(rows), words.split(rows), strict=True)
    ]
    found = torch.cat(parts) / LN2
    return found.new_zeros(target.shape).masked_scatter(real, found)


def at_least_single(x: Tensor) -> Tensor:
    """In single precision, unless it is in double."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@torch.no_grad()
def mean_loss(model: nn.Module, corpus: Corpus) -> float:
    """The loss of a corpus in bits per target token."""
    sums = torch.zeros(2, dtype=torch.double)
    for sample in corpus.batches:
        losses = token_losses(model, sample, corpus.pad)
        sums += torch.stack([losses.double().sum(), sample["target"].ne(corpus.pad).sum().double()]).cpu()
    return finite(*total(sums).tolist())


def finite(loss: float, tokens: float) -> float:
    """The mean of a loss. Raises ValueError if it is no number."""
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss is {loss}: the model has weights that are not finite, or its precision is too low (leave out "
            "--fp16)"
        )
    return loss / tokens


# --- translation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """How fairseq-generate turns tokens into text: BPE removed (--post-process), --bpe and --tokenizer decoded."""

    dictionary: Any
    post_process: str | None
    decoders: tuple[Callable[[str], str], ...]
    ignored: set[int]

    @classmethod
    def of(cls, corpus: Corpus, generator: Any) -> Texts:
        cfg = corpus.cfg
        try:
            decoders = [corpus.task.build_bpe(cfg.bpe), corpus.task.build_tokenizer(cfg.tokenizer)]
            corpus.task.target_dictionary.string(torch.tensor([corpus.eos]), cfg.common_eval.post_process)
        except Exception as error:  # a missing model, an unknown name
            raise ValueError(
                f"--bpe, --tokenizer or --post-process cannot be used ({_first_line(error)}): see fairseq-generate "
                "--help"
            ) from None
        return cls(
            corpus.task.target_dictionary,
            cfg.common_eval.post_process,
            tuple(decoder.decode for decoder in decoders if decoder is not None),
            get_symbols_to_strip_from_output(generator),
        )

    def text(self, tokens: Tensor, reference: bool = False) -> str:
        line = self.dictionary.string(
            tokens.int().cpu(), self.post_process, escape_unk=reference, extra_symbols_to_ignore=self.ignored
        )
        for decode in self.decoders:
            line = decode(line)
        return line


def make_generator(model: nn.Module, corpus: Corpus) -> Any:
    """fairseq's beam search with the options of the command line. Raises ValueError for those that contradict."""
    utils.set_torch_seed(corpus.cfg.common.seed)  # of --sampling: the same for every model
    try:
        return corpus.task.build_generator([model], corpus.cfg.generation)
    except Exception as error:
        raise ValueError(f"the options of the search cannot be used: {_first_line(error)}") from None


@torch.no_grad()
def translate(model: nn.Module, corpus: Corpus, progress: Callable[[Iterable], Iterable] = iter) -> list[str]:
    """The translations of a corpus by a model prepared for inference, in the order of the sentences."""
    generator = make_generator(model, corpus)
    texts = Texts.of(corpus, generator)
    prefix = corpus.cfg.generation.prefix_size
    found = {}
    for sample in progress(corpus.batches):
        forced = sample["target"][:, :prefix] if prefix > 0 else None
        best = corpus.task.inference_step(generator, [model], sample, prefix_tokens=forced)
        for number, hypotheses in zip(sample["id"].tolist(), best, strict=True):
            found[number] = texts.text(hypotheses[0]["tokens"])
    return [text for _, text in sorted(union(found).items())]


def references(model: nn.Module, corpus: Corpus) -> list[str]:
    """The target side of a corpus as text. Raises ValueError if there is none."""
    texts = Texts.of(corpus, make_generator(model, corpus))
    found = {}
    for sample in corpus.batches:
        for number, tokens in zip(sample["id"].tolist(), sample["target"], strict=True):
            found[number] = texts.text(utils.strip_pad(tokens, corpus.pad), reference=True)
    return [text for _, text in sorted(union(found).items())]


def check_target(corpus: Corpus, what: str) -> None:
    """Raises ValueError if the corpus has no target side."""
    if any(sample.get("target") is None for sample in corpus.batches):
        raise ValueError(f"the subset {corpus.subset!r} has no target side, which {what} needs: choose another subset")


def bleu_metric(corpus: Corpus) -> BLEU:
    """sacreBLEU with the options of `--scoring sacrebleu`."""
    scoring = corpus.cfg.scoring
    return BLEU(
        lowercase=bool(getattr(scoring, "sacrebleu_lowercase", False)),
        tokenize=getattr(scoring, "sacrebleu_tokenizer", None) or "13a",
    )


def bleu_with_significance(
    metric: BLEU, systems: Mapping[str, Sequence[str]], references: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """BLEU of every system, and the p-value of its difference to the first one by paired bootstrap resampling."""
    named = [(name, list(texts)) for name, texts in systems.items()]
    if len(named) == 1:
        return {named[0][0]: metric.corpus_score(named[0][1], [list(references)]).score}, {}
    _, scores = PairedTest(named, {"BLEU": metric}, [list(references)], "bs", RESAMPLINGS)()
    results = {name: result for (name, _), result in zip(named, scores["BLEU"], strict=True)}
    bleu = {name: float(result.score) for name, result in results.items()}
    return bleu, {name: float(result.p_value) for name, result in results.items() if result.p_value is not None}
