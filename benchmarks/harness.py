"""What the benchmarks share: options, random models and batches, timing in turns, and tables."""

import argparse
import json
import platform
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import base_architecture
from torch import nn
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from fairseq_headgates.data.speed import speeds
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import TYPES, HeadTable, number_of_heads

SIZES = {  # width, feed-forward width, layers on each side, heads
    "small": (128, 512, 3, 8),
    "base": (512, 2048, 6, 8),
    "big": (1024, 4096, 6, 16),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EOS, PAD = 2, 1  # fairseq's </s> and padding


def make_parser(page: str, turns: str = "", **defaults: object) -> argparse.ArgumentParser:
    """Return the options of a benchmark with this docstring; `turns` is its option for the rounds of `timed`."""
    form = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=page.partition("\n")[0], formatter_class=form)
    add = parser.add_argument
    add("--size", choices=SIZES, default="small", help="size of the model")
    add("--vocabulary", type=int, default=8000, help="words, which source and target share")
    add("--length", type=int, help="tokens of the longest sentence")
    add("--threads", type=int, default=torch.get_num_threads(), help="threads on a CPU")
    add("--json", metavar="FILE", help="also write the tables to FILE")
    if turns:
        add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu", help="device")
        add(turns, dest="rounds", type=int, help="timed rounds, after one that does not count")
    parser.set_defaults(**defaults)
    return parser


def begin(options: argparse.Namespace) -> None:
    """Set the number of threads; print what is measured."""
    torch.set_num_threads(options.threads)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = f"{names[0] if names else platform.machine()}, {options.threads} threads"
    options.machine = torch.cuda.get_device_name() if getattr(options, "device", "cpu") == "cuda" else cpu
    options.torch = torch.__version__
    print(f"{options.machine}, torch {options.torch}, {options.size}, vocabulary {options.vocabulary:,}")


def finish(options: argparse.Namespace, tables: Mapping[str, Mapping[str, Mapping[str, object]]]) -> None:
    """Print the tables, {title: {row: {column: value}}}, and write them to --json."""
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [[name, *(shown(row.get(column, "")) for column in columns)] for name, row in rows.items()]
        print("\n" + text_table([title, *columns], cells))
    if options.json:
        content = json.dumps({"options": vars(options), "tables": tables}, indent=1, default=str)
        write_whole(options.json, content + "\n", force=True)


def shown(value: object) -> str:
    if isinstance(value, float):
        size = abs(value)
        return format(value, ".2e" if 0 < size < 0.001 else ",.3f" if size < 10 else ",.1f" if size < 1000 else ",.0f")
    return f"{value:,}" if isinstance(value, int) else str(value)


Key = TypeVar("Key")


def timed(works: Mapping[Key, Callable[[], object]], options: argparse.Namespace) -> dict[Key, float]:
    """Return the seconds of each work in its fastest round. They take turns, so that they share a busy machine."""
    with tqdm(total=len(works) * (options.rounds + 1), leave=False) as bar:

        def once(work: Callable[[], object]) -> int:
            work()
            bar.update()
            return 1

        found = speeds([partial(once, work) for work in works.values()], torch.device(options.device), options.rounds)
    return {name: 1 / max(rates.rounds) for name, rates in zip(works, found, strict=True)}


def make_task(vocabulary: int) -> SimpleNamespace:
    """Return the part of a translation task that building a model needs."""
    dictionary = Dictionary()
    for i in range(vocabulary):
        dictionary.add_symbol(str(i))
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def make_args(size: str, **more: object) -> argparse.Namespace:
    """Return the options of a pre-norm transformer with shared embeddings, and `more`."""
    names = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before")
    sizes = dict(zip(names, (*SIZES[size], True), strict=True))
    args = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()}
    namespace = argparse.Namespace(**args, share_all_embeddings=True, **more)
    base_architecture(namespace)
    return namespace


def random_mask(size: str, share: float) -> HeadTable:
    """Return a random mask that removes a share of the heads, the same number in every layer."""
    _, _, layers, heads = SIZES[size]
    chance, kept = torch.Generator().manual_seed(1), number_of_heads(1 - share, heads)
    rows = [[(torch.randperm(heads, generator=chance) < kept).int().tolist() for _ in range(layers)] for _ in TYPES]
    return HeadTable(dict(zip(TYPES, rows, strict=True)))


def training_batch(options: argparse.Namespace) -> dict:
    """Return random sentences of half to full length, padded like fairseq's: source left, target right."""
    sentences, length = options.sentences, options.length
    chance, positions = torch.Generator().manual_seed(0), torch.arange(length)
    lengths = torch.randint(length // 2, length + 1, (sentences,), generator=chance)
    source, target = (torch.randint(4, options.vocabulary, (sentences, length), generator=chance) for _ in range(2))
    source[positions < length - lengths[:, None]] = PAD
    target[positions >= lengths[:, None]] = PAD
    net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target.roll(1, 1)}
    net_input = {name: value.to(options.device) for name, value in net_input.items()}
    return {"net_input": net_input, "target": target.to(options.device), "ntokens": int(lengths.sum())}


def training_update(model: nn.Module, criterion: nn.Module, batch: dict, dtype: torch.dtype) -> Callable[[], None]:
    """Return an update on a batch: forward, criterion, backward, gradient clipping, Adam."""
    device = batch["target"].device
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def update() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss, size, _ = criterion(model, batch)
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update


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
