"""Models, batches, steps of a beam search, and interleaved timing for the benchmarks."""

import argparse
import copy
import platform
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models.transformer import base_architecture
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from fairseq_headgates.heads import TYPES, HeadTable, check_shape, number_of_heads
from fairseq_headgates.messages import fail
from fairseq_headgates.plugin.options.stored_mask import read_mask
from fairseq_headgates.report.tables import text_table

SIZES = {  # width, feed-forward width, layers on each side, heads
    "small": (128, 512, 3, 8),
    "base": (512, 2048, 6, 8),
    "big": (1024, 4096, 6, 16),
}
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")  # how names of the profiler begin
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_least(program: str, options: argparse.Namespace, least: Mapping[str, int]) -> None:
    """Exit with one line and code 2 if an option is less than the number in `least`."""
    for name, number in least.items():
        if getattr(options, name) < number:
            fail(program, f"--{name} is {getattr(options, name)}: it must be at least {number}")


def make_task(vocabulary: int) -> SimpleNamespace:
    """The part of a translation task that building a model needs; source and target share a dictionary."""
    dictionary = Dictionary()
    for i in range(vocabulary):
        dictionary.add_symbol(str(i))
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def random_mask(size: str, share: float, seed: int = 1) -> HeadTable:
    """Return a random mask that removes a share of the heads, the same number in every layer."""
    _, _, layers, heads = SIZES[size]
    chance = torch.Generator().manual_seed(seed)

    def row() -> list[int]:
        removed = heads - number_of_heads(1 - share, heads)
        return (torch.randperm(heads, generator=chance) >= removed).int().tolist()

    return HeadTable({attention_type: [row() for _ in range(layers)] for attention_type in TYPES})


def masks(options: argparse.Namespace) -> dict[str, HeadTable]:
    """Return {share of removed heads: mask}: a random mask for each of --remove, and those of --alive."""
    found = {f"{100 * share:g}%": random_mask(options.size, share, options.seed) for share in options.remove}
    _, _, layers, heads = SIZES[options.size]
    for text in getattr(options, "alive", ()):
        mask = read_mask(text)
        check_shape(mask, dict.fromkeys(TYPES, (layers, heads)))
        mask = HeadTable({each: mask.layers.get(each, [[1] * heads] * layers) for each in TYPES})
        removed = sum(value == 0 for _, value in mask.items()) / (len(TYPES) * layers * heads)
        found[f"{100 * removed:.0f}% {'inline' if text.startswith('{') else Path(text).stem}"] = mask
    return found


def make_args(size: str, dropout: float = 0.1, attention_dropout: float = 0.0, **gates) -> argparse.Namespace:
    """Return the options of a pre-norm transformer with shared embeddings, and those of this plugin."""
    width, ffn, layers, heads = SIZES[size]
    sizes = {
        "embed_dim": width,
        "ffn_embed_dim": ffn,
        "layers": layers,
        "attention_heads": heads,
        "normalize_before": True,
    }
    args = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sizes.items()}
    dropouts = {"dropout": dropout, "attention_dropout": attention_dropout}
    namespace = argparse.Namespace(**args, **dropouts, share_all_embeddings=True, **gates)
    base_architecture(namespace)
    return namespace


def training_batches(sentences: int, length: int, vocabulary: int, device: str) -> Iterator[dict]:
    """Yield batches of random sentences of half to full length, padded like fairseq's: source left, target right."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(length)
    while True:
        lengths = torch.randint(length // 2, length + 1, (sentences,), generator=generator)
        source = torch.randint(4, vocabulary, (sentences, length), generator=generator)
        source[positions < length - lengths[:, None]] = 1
        target = torch.randint(4, vocabulary, (sentences, length), generator=generator)
        target[positions >= lengths[:, None]] = 1
        net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target.roll(1, 1)}
        yield {
            "net_input": {key: value.to(device) for key, value in net_input.items()},
            "target": target.to(device),
            "ntokens": int(lengths.sum()),
            "nsentences": sentences,
        }


def training_update(model: nn.Module, criterion, device: str, dtype: torch.dtype) -> Callable[[dict], None]:
    """Return a function that does one update on a batch: forward, criterion, backward, gradient clipping, Adam."""
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def update(sample: dict) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss, size, _ = criterion(model, sample)
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update


def next_update(update: Callable[[dict], None], batches: Iterator[dict]) -> Callable[[], None]:
    """Return `update` on the next batch."""
    return partial(update, next(batches))


def make_source(options: argparse.Namespace, generator: SequenceGenerator, batch: int) -> dict[str, Tensor]:
    """Return random sentences without padding, the same for every variant."""
    chance = torch.Generator().manual_seed(options.seed)
    source = torch.randint(4, generator.vocab_size, (batch, options.length), generator=chance)
    source[:, -1] = generator.eos
    lengths = torch.full((batch,), options.length)
    return {"src_tokens": source.to(options.device), "src_lengths": lengths.to(options.device)}


def make_generator(options: argparse.Namespace, model: nn.Module, **lengths: float) -> SequenceGenerator:
    """Return a beam search, with the model prepared as in fairseq-generate.

    Args:
        options: of the benchmark
        model: the model; its attribute `search_class` is the class of the search (default: fairseq's)
        lengths: limits of the length of an output (default: it has --length tokens)
    """
    lengths = lengths or {"max_len_b": options.length, "min_len": options.length}
    model.prepare_for_inference_(SimpleNamespace(generation=GenerationConfig(beam=options.beam)))
    search = getattr(model, "search_class", SequenceGenerator)
    return search([model], model.decoder.dictionary, beam_size=options.beam, **lengths)


class Decoding:
    """Decode beam * batch hypotheses of random tokens step by step, the same for every variant."""

    @torch.no_grad()
    def __init__(self, options: argparse.Namespace, generator: SequenceGenerator, batch: int):
        self.model = generator.model.single_model
        chance = torch.Generator().manual_seed(options.seed)
        rows = torch.arange(batch).repeat_interleave(options.beam)
        continued = torch.randint(options.beam, rows.shape, generator=chance)  # hypotheses of the same sentence
        self.order = (rows * options.beam + continued).to(options.device)
        tokens = torch.randint(4, generator.vocab_size, (len(rows), options.length + 1), generator=chance)
        tokens[:, 0] = generator.eos
        self.tokens = tokens.to(options.device)
        encoded = self.model.encoder(**make_source(options, generator, batch))
        self.encoder_out = self.model.encoder.reorder_encoder_out(encoded, rows.to(options.device))
        self.state: dict = {}
        self.position = 0

    @torch.no_grad()
    def step(self) -> Tensor:
        """Reorder the cache as beam search does; return the logits of the next position [beam * batch, 1, V]."""
        self.model.decoder.reorder_incremental_state_scripting(self.state, self.order)
        prefix = self.tokens[:, : self.position + 1]
        logits, _ = self.model.decoder(prefix, encoder_out=self.encoder_out, incremental_state=self.state)
        self.position += 1
        return logits

    def steps(self, number: int) -> "Decoding":
        for _ in range(number):
            self.step()
        return self


def take_turns(
    ready: Mapping[str, Callable[[], Callable[[], object]]], rounds: int, warm_up: int, device: str, bar: tqdm
) -> dict[str, list[float]]:
    """Return the seconds of every variant in every round. `ready[name]()`, not timed, returns the work to time."""
    names = list(ready)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(warm_up + rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:  # no variant is always first
            taken = seconds_of(ready[name](), device)
            if i >= warm_up:
                seconds[name].append(taken)
        bar.update()
    return seconds


def time_works(works: Mapping[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of every work in every round, after one round of warm-up, with a progress bar."""
    ready = {name: partial(lambda work: work, work) for name, work in works.items()}
    with tqdm(total=rounds + 1, leave=False) as bar:
        return take_turns(ready, rounds, 1, device, bar)


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Return the seconds that `work` takes, including its work on the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def median_ratio(seconds: Mapping[str, list[float]], above: str, below: str) -> float:
    """Return the median over rounds of seconds[above] / seconds[below], each within one round."""
    return statistics.median(a / b for a, b in zip(seconds[above], seconds[below], strict=True))


def peak_bytes(work: Callable[[], object], device: str) -> int:
    """Return the peak memory of the tensors that `work` makes, as torch's allocator counts it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def launches(work: Callable[[], object]) -> dict[str, int]:
    """Count the kernels of `work` on the GPU, launches of kernels and graphs, and how often it waits before it ends."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        seconds_of(work, "cuda")
    events = profiler.events()
    on_gpu = [event.name for event in events if event.device_type == DeviceType.CUDA]
    return {
        "kernels": sum(not name.startswith(("Memcpy", "Memset")) for name in on_gpu),
        "launches": sum(event.name.startswith(LAUNCHES) for event in events),
        "waits": sum(event.name == "cudaStreamSynchronize" for event in events),
    }


def changed(model: nn.Module, **values: object) -> nn.Module:
    """Return a copy of a model with other values of attributes, such as `inference_dtype`."""
    copied = copy.deepcopy(model)
    copied.args = copy.copy(model.args)
    for name, value in values.items():
        setattr(copied, name, value)
    return copied


def tensor_bytes(held: object) -> int:
    """Return the memory of all tensors that `held` refers to, each storage counted once."""
    storages, seen, todo = {}, set(), [held]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, weakref.ProxyTypes):  # a cache refers to its model
            continue
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, list | tuple):
            todo += item
        else:
            todo += (item if isinstance(item, dict) else getattr(item, "__dict__", {})).values()
    return sum(storages.values())


def table(first: str, rows: dict[str, dict], wanted: list[tuple]) -> str:
    """Return a table of rows {name: figures}: of the columns (header, keys, unit, format), those that have figures."""
    found = {column: [figure(row, column[1]) for row in rows.values()] for column in wanted}
    found = {column: figures for column, figures in found.items() if any(f is not None for f in figures)}
    cells = [
        ["" if f is None else format(f if unit == 1 else f / unit, form) for f in figures]
        for (_, _, unit, form), figures in found.items()
    ]
    lines = [[name, *row] for name, row in zip(rows, zip(*cells, strict=True), strict=True)]
    return text_table([first, *(column[0] for column in found)], lines)


def figure(row: dict, keys: str) -> float | None:
    for key in keys.split():
        row = row.get(key) if row else None
    return row


def batch_options(parser: argparse.ArgumentParser, vocabulary: int, sentences: int) -> None:
    """Add the options of a random batch and of the device."""
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--vocabulary", type=int, default=vocabulary)
    parser.add_argument("--sentences", type=int, default=sentences, help="sentences in a batch (default: %(default)s)")
    parser.add_argument(
        "--length", type=int, default=26, help="longest sentence; the shortest is half (default: %(default)s)"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")


def machine_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the options of the device and of the number of repetitions."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--threads", type=int, help="threads on the CPU (default: torch's)")
    parser.add_argument("--rounds", type=int, default=rounds, help="repetitions (default: %(default)s)")


def machine(device: str) -> str:
    """Return the name of the GPU, or of the processor with the number of threads."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"
