"""Build the model of a checkpoint, and read its gates and its mask."""

from __future__ import annotations

import argparse
import logging
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import number_of_layers, stack_names
from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.attention.features import option_features
from fairseq_headgates.attention.freezing import freeze
from fairseq_headgates.attention.modules import (
    gate_values,
    gated_modules,
    number_of_parameters,
    open_probabilities,
    same_tensors,
    to_table,
)
from fairseq_headgates.attention.neurons import ffn_dims
from fairseq_headgates.heads import TYPES, HeadTable, Signature, parse_mask
from fairseq_headgates.messages import quoted, warn_once
from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, head_gates_class
from fairseq_headgates.plugin.models.recognition import with_known_names
from fairseq_headgates.plugin.options.stored import l0_end, model_options
from fairseq_headgates.safety.checkpoint import architecture, load_checkpoint, model_args, updates_of
from fairseq_headgates.safety.reading import TRUST

logger = logging.getLogger(__name__)

SPECIAL = 4  # fairseq's dictionaries begin with <s> <pad> </s> <unk>
HEADS = ("decoder.output_projection.weight", "decoder.adaptive_softmax.head.weight")  # of the output, one of them
TAIL = re.compile(r"decoder\.adaptive_softmax\.tail\.\d+\.2\.weight")


def load_model(
    path: str, trust: bool = False, arch: str | None = None, hint: str = TRUST
) -> tuple[dict[str, Any], nn.Module]:
    """Load a checkpoint and build its model; see `load_checkpoint`, `with_known_names` and `build_model`.

    Returns:
        The checkpoint and its model, in evaluation mode, on the CPU

    Raises:
        ValueError: in one line that names the file, also for weights that are not finite
    """
    state, notice = load_checkpoint(path, trust, hint), ""
    try:
        state, notice = with_known_names(state, arch)
        model = build_model(state)
        for name, parameter in model.named_parameters():
            if not parameter.isfinite().all():
                raise ValueError(f"its weight {name} has inf or NaN: take a checkpoint from before the training failed")
    except ValueError as error:
        raise ValueError(f"{path}: {error}" + f" ({notice})" * bool(notice)) from None
    warn_once(notice)
    return state, model


def warn_unfinished(state: Mapping[str, Any], model: Any, where: str = "") -> None:
    """Log a warning if the training of the gates of a checkpoint is unfinished; see `GateMethod.unfinished`."""
    if (method := getattr(model, "gate_method", None)) and (warning := method.unfinished(l0_end(state))):
        logger.warning(where + warning)


def read_mask(text: str) -> HeadTable:
    """Read a mask from inline JSON, from a mask file, or from a checkpoint of this plugin, whose open heads it keeps.

    Args:
        text: JSON, which starts with '{', or the path of a mask file or of a checkpoint

    Raises:
        ValueError: if there is no mask to read
    """
    if not text.endswith(".pt") and not (os.path.isfile(text) and zipfile.is_zipfile(text)):
        return parse_mask(text)
    state, model = load_model(text, hint="take another file, or a mask as JSON")
    name = architecture(model_args(state))
    if ARCH_MODEL_REGISTRY.get(name) is not type(model):  # `prune --stock` fills removed heads with zeros
        raise ValueError(
            f"{text}: its architecture is {quoted(name)}, not transformer_head_gates or another one of this plugin: "
            "give a mask file instead"
        )
    warn_unfinished(state, model, f"{text}: ")
    return open_mask(model)


class Vocabulary(Dictionary):
    """A dictionary of so many symbols, of which only the first have names: what building a model needs."""

    def __init__(self, size: int):
        self.size = size
        super().__init__()

    def __len__(self) -> int:
        return self.size


class _Task:
    """The part of a task that building a model needs."""

    consecutive = True

    def __init__(self, weights: Mapping[str, Tensor], stacks: Iterable[str], shared: bool):
        sizes = [_symbols(weights, f"{stack}.embed_tokens") for stack in stacks]
        self.source_dictionary = Vocabulary(sizes[0])
        self.target_dictionary = self.source_dictionary if shared else Vocabulary(sizes[-1])
        if "decoder.embed_tokens.symbol_embeddings" in weights:  # embeddings of characters; see `read_characters`
            self.source_dictionary = Vocabulary(SPECIAL)

    def max_positions(self) -> int:
        return 512  # fairseq's default for RoBERTa, where a checkpoint does not tell


def _symbols(weights: Mapping[str, Tensor], name: str) -> int:
    """Return the number of symbols: of one table of embeddings, or of those of an adaptive input together.

    Embeddings of characters do not tell it, but the output layer does. The head of an adaptive softmax has one row
    for each tail, besides its symbols.
    """
    bands = [
        table for key, table in weights.items() if re.fullmatch(rf"{re.escape(name)}\.embeddings\.\d+\.0\.weight", key)
    ]
    if f"{name}.symbol_embeddings" in weights:
        tails = [tail for key, tail in weights.items() if TAIL.fullmatch(key)]
        heads = [weights[key] for key in HEADS if key in weights]
        return sum(map(len, [*heads, *tails])) - len(tails)
    tables: list[Any] = bands or [weights.get(f"{name}.weight")]
    for table in tables:
        if table is None or table.dim() != 2:
            raise ValueError(f"the weight {name}.weight is {'missing' if table is None else 'not a matrix'}")
    return sum(map(len, tables))


def build_model(state: Mapping[str, Any]) -> nn.Module:
    """Build the model of a checkpoint with its weights, in evaluation mode, frozen as in its training.

    The model is of the checkpoint's architecture, or of this plugin's counterpart of fairseq's. Data are not needed.
    A model with embeddings of characters (--character-embeddings) needs its dictionary before it can read tokens, see
    `read_characters`.

    Raises:
        ValueError: with every reason, if the model is not supported
    """
    state, notice = with_known_names(state)
    args = safe_model_options(state)
    model_class = head_gates_class(architecture(args))
    reasons = list(_unsupported(state, args, model_class))
    if reasons or model_class is None:
        raise ValueError("this checkpoint is not supported: " + "; ".join(reasons))
    weights = model_class.current_names(state["model"])
    try:
        stacks = list(stack_names(model_class).values())
        task = _Task(weights, stacks, len(stacks) == 1 or getattr(args, "share_all_embeddings", False))
        model_class.set_defaults(args)
        _check_layers(args, weights, model_class)
        model: Any = model_class.build_checked(args, task)
        model.upgrade_checked(weights)
        model.load_state_dict(weights, strict=True, model_cfg=args)
        model.same_tensors = same_tensors(weights)
        updates = updates_of(state)
        model.set_num_updates(0 if updates == "?" else updates)  # P(open) depends on the warm-ups
    except Exception as error:  # options that contradict each other or the weights make fairseq raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise ValueError(
            f"the model cannot be built from its options and weights: {' '.join(lines[:2])[:500]}"
        ) from None
    freeze_as_stored(model, getattr(model_args(state), "freeze_params", None))
    warn_once(notice)
    return model.eval()


def _check_layers(args: argparse.Namespace, weights: Mapping[str, Tensor], model_class: type[HeadGatesMixin]) -> None:
    """Raise ValueError for more layers than are stored: building them could take without end."""
    stacks = {f"{side}_layers": stack for side, stack in stack_names(model_class).items()}
    if getattr(args, "character_embeddings", False):
        stacks["char_embedder_highway_layers"] = "decoder.embed_tokens.highway"
    for option, stack in stacks.items():
        number, stored = getattr(args, option), number_of_layers(weights, stack)
        if number > stored:
            raise ValueError(f"the stored option {option} is {quoted(number)}, but the weights have {stored} layers")


def freeze_as_stored(model: nn.Module, pattern: Any) -> bool:
    """Freeze parameters by a stored `--freeze-params`. Return False if it cannot be used or matches nothing."""
    try:
        freeze(model, pattern)
    except (TypeError, ValueError):  # TypeError: it is not text
        return False
    return True


def safe_model_options(state: Mapping[str, Any]) -> argparse.Namespace:
    """Return the stored options that a model is built from. Raise ValueError for one of a wrong type."""
    stored = model_args(state)
    model_class = head_gates_class(architecture(stored))
    args = model_options(vars(stored), model_class and model_class.stock)
    args.encoder_embed_path = args.decoder_embed_path = None  # files that the weights make unnecessary
    # Recomputed activations save memory in training. Here they would only cost time and hide layers from autograd.
    args.checkpoint_activations = args.offload_activations = False
    args.load_checkpoint_heads = True  # the classification heads of RoBERTa and BART
    args.task, args.fp16 = "", False  # of a training; BART reads them
    return args


def _unsupported(
    state: Mapping[str, Any], args: argparse.Namespace, model_class: type[HeadGatesMixin] | None
) -> Iterator[str]:
    if model_class is None:
        name = quoted(architecture(args))
        yield (
            f"its architecture is {name}: it must be one of this plugin, such as transformer_head_gates, or fairseq's "
            "counterpart of one (docs/any-model.md has all)"
        )
    if not any(re.search(r"attn\.(out_proj|in_proj)", key) for key in state["model"]):
        yield "it has no attention layer"
    features = option_features(args)
    yield from (f"it has {features[name]}" for name in ("scalar-noise", "xformers") if name in features)
    if getattr(args, "spectral_norm_classification_head", False):
        yield "it has classification heads with spectral norm (--spectral-norm-classification-head)"
    if "fsdp_metadata" in state:
        yield "it is one shard of several (fully sharded training): consolidate it first"


@dataclass(frozen=True)
class CheckpointHeads:
    """The heads of a checkpoint.

    Attributes:
        open_probability: P(gate != 0) of every head
        gate: evaluation gate of every head
        gated: attention types with gates
        parameters: number of parameters of the model
        ffn_dims: neurons of each feed-forward block, {side: [layers]}, if some were removed, else empty
    """

    open_probability: HeadTable
    gate: HeadTable
    gated: tuple[str, ...]
    parameters: int
    ffn_dims: Mapping[str, Sequence[int]]


def read_heads(state: Mapping[str, Any], name: str, model: nn.Module | None = None) -> CheckpointHeads:
    """Read the gates of a checkpoint.

    A head without a gate counts as 1, a fixed head as its value in the mask, a removed head as 0.

    Args:
        state: the checkpoint
        name: its name, for the signature of the tables
        model: its model, if it is already built

    Raises:
        ValueError: if the model cannot be built
    """
    model = model or build_model(state)
    signature = str(Signature({"ckpt": Path(name).name, "updates": str(updates_of(state))}))
    gated = {module.attention_type for module in gated_modules(model)}
    return CheckpointHeads(
        to_table(open_probabilities(model), "P(open)", signature),
        to_table(gate_values(model), "gate", signature),
        tuple(attention_type for attention_type in TYPES if attention_type in gated),
        number_of_parameters(model),
        ffn_dims(model) if getattr(model.args, "ffn_dims", None) else {},
    )
