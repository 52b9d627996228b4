"""Read the files of an experiment, by their content."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_headgates.attention.modules import gated_modules
from fairseq_headgates.checkpoints.building import load_model, read_heads
from fairseq_headgates.data import Evaluation
from fairseq_headgates.extensions.report.content import Experiment, Input, ModelHeads
from fairseq_headgates.files import parse_json, read_records, read_text
from fairseq_headgates.heads import (
    SCORE_FORMAT,
    TYPES,
    AttentionMap,
    AttentionType,
    Contributions,
    HeadId,
    parse_mask,
    scores_of,
)
from fairseq_headgates.messages import quoted

Load = Callable[[str], tuple[dict[str, Any], Any]]  # a checkpoint, with its model
CHECKPOINT_BEGINS = (b"PK\x03\x04", b"\x80\x02")  # torch.save, in its present and its old form
# File names of the checkpoint of a run folder, in order of preference: the report shows the first one that exists.
CHECKPOINTS = ("pruned.pt", "checkpoint_last.pt", "checkpoint_best.pt")
KNOWN = (
    "a checkpoint, a run folder of fairseq-train, or a JSON file of headgates score, ablate, curve, functions, "
    "attention, explain, evaluate, compare, compress or of sweep.sh"
)


def read_experiment(paths: Sequence[str], trust: bool = False, arch: str | None = None) -> Experiment:
    """Read files and run folders of any kind.

    Args:
        paths: checkpoints, run folders and result files
        trust: load checkpoints with unrestricted unpickling
        arch: read checkpoints as this architecture

    Raises:
        ValueError: in one line that names the file, if one cannot be read or is of an unknown kind
    """
    load = partial(load_model, trust=trust, arch=arch)
    found, real = Experiment(), [*map(os.path.realpath, paths)]
    for i, path in enumerate(paths):
        if real[i] in real[:i]:
            raise ValueError(f"{path} is given twice: name each input once")
    for path in paths:
        if Path(path).is_dir():
            _add_checkpoint(found, _checkpoint_of(Path(path)), load)
        else:
            _read_file(found, path, load)
    return found


def _checkpoint_of(folder: Path) -> str:
    """Return the checkpoint of a run folder; fairseq-hydra-train has those in its folder `checkpoints`."""
    paths = [place / name for place in (folder, folder / "checkpoints") for name in CHECKPOINTS]
    if found := next((path for path in paths if path.is_file()), None):
        return str(found)
    raise ValueError(f"{folder} has none of {', '.join(CHECKPOINTS)}: give a run folder of fairseq-train")


def _read_file(found: Experiment, path: str, load: Load) -> None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe could block
            raise ValueError(f"{quoted(path)} is not a regular file: give {KNOWN}")
        with open(path, "rb") as file:
            beginning = file.read(4)
    except OSError as error:
        raise ValueError(f"cannot read {quoted(path)} ({error.strerror}): give {KNOWN}") from None
    if beginning.startswith(CHECKPOINT_BEGINS):
        _add_checkpoint(found, path, load)
    elif (text := read_text(path, "the input", f"give {KNOWN}")).lstrip().startswith(("{", "[")):
        _add_result(found, path, text)
    else:
        raise ValueError(f"the kind of {quoted(path)} is unknown: give {KNOWN}")


def _add_checkpoint(found: Experiment, path: str, load: Load) -> None:
    """Add the heads of a checkpoint."""
    state, model = load(path)
    heads = read_heads(state, path, model)
    args: Any = model.args
    alive = parse_mask(args.alive_heads) if getattr(args, "remove_heads", False) else None
    of_gates = [module.attention.gate.distribution for module in gated_modules(model)]
    distribution = (of_gates[0].temperature, of_gates[0].low, of_gates[0].high) if of_gates else None
    neurons = {side: (int(getattr(args, f"{side}_ffn_embed_dim")), dims) for side, dims in heads.ffn_dims.items()}
    parts = (heads.gate, heads.open_probability, alive, heads.parameters, distribution, neurons)
    found.models.append(ModelHeads(path, *parts))
    found.inputs.append(Input(path, "checkpoint", heads.gate.signature))


def _add_result(found: Experiment, path: str, text: str) -> None:
    """Add a JSON file of `headgates`, or of sweep.sh."""
    content = parse_json(text, path, f"give {KNOWN}")
    formats = dict.fromkeys(each.format for each in read_records(_Format, content, path, f"give {KNOWN}"))
    name = ", ".join(formats)
    if name == SCORE_FORMAT:
        for table in scores_of(content, path):
            found.scores.append((path, table))
            found.inputs.append(Input(path, f"scores: {table.name}", table.signature))
        return
    if name not in _RESULTS:
        known = ", ".join([SCORE_FORMAT, *_RESULTS])
        raise ValueError(f"{path} has the format {quoted(name)}: it must be one of {known}")
    results, member, kind = _RESULTS[name]
    for item in content if isinstance(content, list) else [content]:
        kept = item.get(member) if member else item
        first = read_records(kind, kept, f"{path} {member}".rstrip(), "write it again")[0]
        shown = first.sentences_by_number() if kind in (_Attention, _Explanation) else kept
        getattr(found, results).append((path, first if kind is Evaluation else shown))
        label = name.removeprefix("headgates.").partition("/")[0]
        found.inputs.append(Input(path, label, getattr(first, "signature", "")))


@dataclass(frozen=True)
class _Format:
    format: str


@dataclass(frozen=True)
class _Signed:
    signature: str


@dataclass(frozen=True)
class _Head:
    layer: int
    head: int
    gate: float | None
    weights: list[list[float]] | None


@dataclass(frozen=True)
class _Maps:
    """The attention maps of one type for one sentence."""

    queries: list[str]
    keys: list[str]
    heads: list[_Head]

    def __post_init__(self) -> None:
        for weights in (head.weights for head in self.heads if head.weights):
            if len(weights) != len(self.queries) or any(len(row) != len(self.keys) for row in weights):
                raise ValueError("does not have a row of weights for each query, with a weight for each key")


@dataclass(frozen=True)
class _Attention:
    signature: str
    lines: list[int] | None
    sentences: list[dict[AttentionType, _Maps]]

    def __post_init__(self) -> None:
        if self.lines and len(self.lines) != len(self.sentences):
            raise ValueError("does not have one of its lines for each sentence")

    def sentences_by_number(self) -> dict[int, list[AttentionMap]]:
        """Return the maps of each sentence by its number, in the order of `TYPES`."""
        numbers = self.lines or range(1, len(self.sentences) + 1)
        return {
            number: [
                AttentionMap(
                    HeadId(name, head.layer, head.head), head.gate, maps.queries, maps.keys, head.weights or []
                )
                for name, maps in sorted(of_sentence.items(), key=lambda item: TYPES.index(item[0]))
                for head in maps.heads
            ]
            for number, of_sentence in zip(numbers, self.sentences, strict=True)
        }


@dataclass(frozen=True)
class _Sentence:
    """The explanation of one sentence."""

    positions: list[int]
    predicted: list[str]
    source: list[str]
    prefix: list[str]
    contributions: list[list[float]]

    def __post_init__(self) -> None:
        tokens = len(self.source) + len(self.prefix)
        rows = len(self.contributions) == len(self.predicted) == len(self.positions)
        if not rows or any(len(row) != tokens for row in self.contributions):
            raise ValueError("does not have a row of contributions for each prediction, with one for each token")


@dataclass(frozen=True)
class _Explanation:
    signature: str
    lines: list[int]
    sentences: list[_Sentence]

    def __post_init__(self) -> None:
        if len(self.lines) != len(self.sentences):
            raise ValueError("does not have one of its lines for each sentence")

    def sentences_by_number(self) -> dict[int, Contributions]:
        """Return the contributions of each sentence by its number."""
        found = ((s.positions, s.predicted, s.source, s.prefix, s.contributions) for s in self.sentences)
        return {number: Contributions(*each) for number, each in zip(self.lines, found, strict=True)}


# By format: the list of an `Experiment` for such files, the member of the object that is kept there ("" for the whole
# object), and what it must be, or each object in it.
_RESULTS: dict[str, tuple[str, str, Any]] = {
    "headgates.functions/1": ("functions", "", _Signed),
    "headgates.curve/1": ("curves", "points", _Signed),
    "headgates.ablation/1": ("ablations", "", _Signed),
    "headgates.sweep/1": ("sweeps", "models", dict[str, Any]),
    "headgates.attention/1": ("attention", "", _Attention),
    "headgates.overlap/1": ("overlaps", "pairs", dict[str, Any]),
    "headgates.evaluation/1": ("evaluations", "", Evaluation),
    "headgates.compressed/1": ("compressions", "", _Signed),
    "headgates.explanation/1": ("explanations", "", _Explanation),
}
