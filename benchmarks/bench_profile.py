"""Times of operators in a translation by fairseq's beam search, for the benchmarks."""

import gc
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from bench_models import seconds_of
from fairseq.sequence_generator import SequenceGenerator
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # without the start and the stop of the profiler on stderr

PARTS = {  # functions of fairseq's EnsembleModel that its search calls
    "encoder": ["forward_encoder"],
    "decoder": ["forward_decoder"],
    "reordering": ["reorder_incremental_state", "reorder_encoder_out"],
    "search": [],
}
# Matrix multiplications: the positions of both factors among the inputs. Names are without namespace and outer "_".
FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "addmm_activation": (1, 2)}
FACTORS |= {"linear_pointwise": (0, 1), "scaled_dot_product_flash_attention_for_cpu": (0, 1)}
PROJECTIONS, FEED_FORWARD, OUTPUT = "attention projections", "feed-forward", "output layer"
ATTENTION = "scores, contexts"
MULTIPLICATIONS = [PROJECTIONS, FEED_FORWARD, OUTPUT, ATTENTION]
PYTHON, UNKNOWN = "Python", "unknown"
OPERATORS = {
    "element-wise, sums": "softmax log_softmax add sub rsub mul div fmod remainder floor_divide neg exp pow lshift "
    "native_layer_norm layer_norm relu gelu threshold clamp clamp_min sum mean max min cumsum any all equal "
    "ne eq gt ge lt le and or bitwise_and bitwise_or bitwise_not logical_not logical_and isnan isinf",
    "copies, gathers": "copy to_copy clone contiguous cat stack index_select gather index embedding masked_select "
    "masked_fill fill zero index_put index_put_impl scatter scatter_add repeat repeat_interleave arange zeros ones eye "
    "full new_full new_zeros zeros_like ones_like full_like constant_pad_nd pad nonzero unique2 triu fill_diagonal",
    "largest candidates": "topk sort argsort",
    "views, allocation": "view reshape reshape_alias unsafe_view flatten unflatten transpose permute t as_strided "
    "select slice narrow expand expand_as unsqueeze squeeze unbind chunk split split_with_sizes unfold alias detach "
    "lift_fresh resolve_conj resolve_neg empty empty_like empty_strided new_empty resize set item local_scalar_dense "
    "is_nonzero to type_as promote_types result_type is_same_size shape_as_tensor numpy_T linear matmul dropout "
    "scaled_dot_product_attention view_as",
    PYTHON: " ".join(PARTS),
}
ROW_OF = {name: row for row, names in OPERATORS.items() for name in names.split()}
ROWS = [*MULTIPLICATIONS, *OPERATORS, UNKNOWN]
Costs = dict[tuple[str, str, str], "Cost"]  # by part, row and operator


@dataclass
class Cost:
    """What the calls of an operator in one translation take: seconds, FLOPs, and bytes of their second factors."""

    seconds: float = 0.0
    calls: int = 0
    flops: int = 0
    bytes: int = 0


def best_seconds(work: Callable[[], object], repetitions: int = 7) -> float:
    """Return the shortest time of some repetitions."""
    return min(seconds_of(work, "cpu") for _ in range(repetitions))


def recording_seconds(calls: int = 3000) -> float:
    """Return the time that the profiler needs to record an operator."""
    x = torch.ones(2, 3)

    def loop() -> None:
        for _ in range(calls):
            x.transpose(0, 1)  # and as_strided

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True):
        profiled = best_seconds(loop)
    return max(0.0, (profiled - best_seconds(loop)) / (2 * calls))


@contextmanager
def around_parts(ensemble: nn.Module, around: Callable[[str], AbstractContextManager]) -> Iterator[None]:
    """Within the context, every call of a function of `PARTS` runs within `around(part)`."""

    def call(part: str, function: Callable, *args: object, **kwargs: object) -> object:
        with around(part):
            return function(*args, **kwargs)

    wrapped = {name: partial(call, part, getattr(ensemble, name)) for part, names in PARTS.items() for name in names}
    for name, function in wrapped.items():
        setattr(ensemble, name, function)
    try:
        yield
    finally:
        for name in wrapped:
            delattr(ensemble, name)


def run_times(generator: SequenceGenerator, work: Callable[[], object]) -> dict[str, float]:
    """Run `work` without the profiler. Return the seconds of every part."""
    seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def clock(part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[part] += time.perf_counter() - start

    with around_parts(generator.model, clock):
        total = seconds_of(work, "cpu")
    seconds["search"] = total - sum(seconds.values())
    return seconds


def run_profile(generator: SequenceGenerator, work: Callable[[], object], recording: float) -> Costs:
    """Run `work` with the profiler. Return what every operator takes; `recording`: see `recording_seconds`."""
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    with around_parts(generator.model, record_function), profiler, record_function("search"):
        work()
    ffn = generator.model.single_model.encoder.layers[0].fc1.out_features
    return operator_costs(recorded(profiler), generator.vocab_size, ffn, recording)


def operator_costs(events: Sequence, vocabulary: int, ffn: int, recording: float) -> Costs:
    """Sum the events of the profiler.

    Args:
        events: `torch.autograd.profiler_util.FunctionEvent` of one translation
        vocabulary: rows of the output layer
        ffn: width of the feed-forward layers
        recording: seconds of recording one operator
    """
    costs: Costs = defaultdict(Cost)
    for event in events:
        name = event.name.rpartition("::")[2].strip("_")
        row = PYTHON if event.name.startswith("EnsembleModel: ") else ROW_OF.get(name, UNKNOWN)  # fairseq's own ranges
        flops, factor = multiplication(name, event.input_shapes)
        if flops:
            row = multiplication_row(factor, vocabulary, ffn)
        cost = costs[part_of(event), row, event.name]
        cost.seconds += max(0.0, event.self_cpu_time_total / 1e6 - recording * len(event.cpu_children))
        cost.calls += 1
        cost.flops += flops
        cost.bytes += 4 * prod(factor) * (2 if "dot_product" in name else 1)  # keys, and values
    return dict(costs)


def recorded(profiler: profile) -> Sequence:
    """Return the events of the profiler, without garbage collection, which makes this two to three times as slow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return profiler.events()
    finally:
        if enabled:
            gc.enable()


def part_of(event: object) -> str:
    """Return the innermost part that an event is in."""
    while event is not None and event.name not in PARTS:
        event = event.cpu_parent
    return "search" if event is None else event.name


def multiplication(name: str, shapes: Sequence[Sequence[int]]) -> tuple[int, Sequence[int]]:
    """Return the FLOPs of a matrix multiplication and the shape of its second factor; 0 for other operators.

    The last dimension of the first factor is summed over. All but the last two of the second factor are a batch.
    """
    if name not in FACTORS or not all(shapes[i] for i in FACTORS[name]):
        return 0, [0]
    first, second = (shapes[i] for i in FACTORS[name])
    flops = 2 * prod(first) * prod(second) // (first[-1] * prod(second[:-2]))
    return flops * (2 if "dot_product" in name else 1), second  # scores, and contexts


def multiplication_row(factor: Sequence[int], vocabulary: int, ffn: int) -> str:
    """Return the row of a multiplication by a weight, or by keys or values, of this shape.

    Joined queries, keys and values (three times a number of heads) never have the width of a feed-forward layer of
    `bench_models.SIZES`.
    """
    if len(factor) > 2:
        return ATTENTION
    return OUTPUT if vocabulary in factor else FEED_FORWARD if ffn in factor else PROJECTIONS


class Result:
    """Measured repetitions of a model: seconds of its parts without the profiler, and costs with it."""

    def __init__(self, steps: int):
        self.steps = steps
        self.runs: list[dict[str, float]] = []
        self.profiles: list[Costs] = []

    def wall(self, part: str) -> float:
        """Return the seconds of a part in a translation without the profiler."""
        return statistics.median(run[part] for run in self.runs)

    def total(self) -> float:
        return sum(map(self.wall, PARTS))

    def profiled(self, part: str) -> float:
        """Return the sum of all operators and Python of a part with the profiler, in seconds."""
        return sum(cost.seconds for key, cost in self._medians().items() if key[0] == part)

    def costs(self) -> Costs:
        """Return the costs of a translation, whose seconds sum to `wall` in every part."""
        found = self._medians()
        scale = {part: self.wall(part) / profiled if (profiled := self.profiled(part)) else 0.0 for part in PARTS}
        return {key: Cost(c.seconds * scale[key[0]], c.calls, c.flops, c.bytes) for key, c in found.items()}

    def _medians(self) -> Costs:
        found = {}
        for key in {key: None for costs in self.profiles for key in costs}:
            costs = [costs.get(key, Cost()) for costs in self.profiles]
            middle = statistics.median(cost.seconds for cost in costs)
            found[key] = Cost(middle, costs[-1].calls, costs[-1].flops, costs[-1].bytes)
        return found

    def rows(self) -> dict[tuple[str, str], Cost]:
        """Return the costs of every row of every part in one encoder pass or one step."""
        rows: dict[tuple[str, str], Cost] = defaultdict(Cost)
        for (part, row, _), cost in self.costs().items():
            units, sums = self.units(part), rows[part, row]
            sums.seconds += cost.seconds / units
            sums.flops += cost.flops / units
            sums.bytes += cost.bytes / units
        return rows

    def units(self, part: str) -> int:
        return 1 if part == "encoder" else self.steps

    def figures(self) -> dict:
        rows = [{"part": part, "row": row, **vars(cost)} for (part, row), cost in self.rows().items()]
        return {"seconds": {part: self.wall(part) for part in PARTS}, "steps": self.steps, "rows": rows}
