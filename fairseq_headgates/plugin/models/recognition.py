"""Checkpoints with names that fairseq does not know: the architectures, criterions and tasks of their authors.

The options of a checkpoint hold the sizes of its model, so its family is enough to build it. Code of the authors is not
needed. fairseq itself reads no options with unknown names.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion, register_criterion
from fairseq.data.encoders import register_bpe, register_tokenizer
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    register_model_architecture,
)
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from fairseq.registry import REGISTRIES
from fairseq.scoring import register_scorer
from fairseq.tasks import TASK_REGISTRY, FairseqTask, register_task
from torch import Tensor

from fairseq_headgates.messages import quoted
from fairseq_headgates.plugin.models.presets import base_preset, preset_of
from fairseq_headgates.plugin.options.stored import flat_options
from fairseq_headgates.safety.checkpoint import architecture, as_mapping, model_args


class Family(NamedTuple):
    """A family of models: the name of a weight that shows it, a regular expression; its usual task and criterion."""

    weight: str
    task: str = "translation"
    criterion: str = "label_smoothed_cross_entropy"


# By the names of fairseq's models; the first whose weight is there counts.
FAMILIES = {
    "roberta": Family(r"(en|de)coder\.lm_head\.dense\.", "masked_lm", "masked_lm"),
    "bart": Family(r"classification_heads\."),
    "transformer": Family(r"decoder\.layers\.0\.encoder_attn\."),
    "transformer_lm": Family(r"decoder\.layers\.0\.self_attn\.", "language_modeling", "cross_entropy"),
}
# Options that change what a model computes, but not the names or shapes of its weights (the norms: not of all weights).
HIDDEN = dict.fromkeys(
    """
    encoder_attention_heads decoder_attention_heads activation_fn encoder_normalize_before decoder_normalize_before
    no_scale_embedding no_token_positional_embeddings cross_self_attention
    """.split()
)

# How a name is registered, with the base class of what it names. The last three need a dataclass of options, too.
REGISTER: dict[str, tuple[Callable[..., Any], type, bool]] = {
    "task": (register_task, FairseqTask, False),
    "criterion": (register_criterion, FairseqCriterion, False),
    "optimizer": (register_optimizer, FairseqOptimizer, False),
    "lr_scheduler": (register_lr_scheduler, FairseqLRScheduler, False),
    "bpe": (register_bpe, object, True),
    "tokenizer": (register_tokenizer, object, True),
    "scoring": (register_scorer, object, True),
}


def with_known_names(state: Mapping[str, Any], arch: str | None = None) -> tuple[dict[str, Any], str]:
    """Return a checkpoint whose options have only names that fairseq knows, and a sentence on what is replaced, or "".

    The model of an unknown architecture is found by the names of its weights. An unknown criterion becomes the usual
    one of the task or the model; none of them matters for what this plugin computes.

    Args:
        state: a checkpoint; it is not changed
        arch: one of fairseq's architectures, which counts instead of the one that is stored

    Raises:
        ValueError: for an architecture `arch` that is unknown
    """
    if arch is not None and arch not in _known("arch"):
        raise ValueError(f"--arch is {quoted(arch)}, which fairseq does not know: choose from {', '.join(FAMILIES)}")
    unknown = unknown_names(state)
    model = arch
    if arch is None and "arch" in unknown:
        model = family_of(state["model"])
        if model is None:  # it is refused when the model is built
            return dict(state), ""
    replaced = _usual_names(state, unknown, model or architecture(model_args(state))) | (
        {"arch": model} if model else {}
    )
    notice = ""
    if unknown:
        words = {"arch": "architecture"}
        lines = [f"{words.get(kind, kind)} {quoted(name)} by {replaced[kind]}" for kind, name in unknown.items()]
        notice = f"names in the checkpoint that fairseq does not know are replaced: {', '.join(lines)}"
        if "arch" in unknown and arch is None:
            notice += " (which the names of the weights show; --arch chooses another)"
        if assumed := assumed_options(model_args(state), model) if model and "arch" in unknown else {}:
            values = ", ".join(f"{name} {value}" for name, value in assumed.items())
            notice += (
                f"; options that neither the checkpoint nor its weights show are assumed to be those of {model}: "
                f"{values} (if one is wrong, pass --arch with an architecture of fairseq that has the right ones)"
            )
    return (_with_names(state, replaced) if replaced else dict(state)), notice


def assumed_options(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Return those of `HIDDEN` that are not stored, with their values in fairseq's architecture `model`."""
    preset, stored = argparse.Namespace(), flat_options(vars(args))
    preset_of(_stock(model), model)(preset)
    return {name: vars(preset)[name] for name in HIDDEN if name in vars(preset) and name not in stored}


def _stock(architecture: str) -> Any:
    """Return the model of one of fairseq's architectures."""
    return ARCH_MODEL_REGISTRY.get(architecture) or MODEL_REGISTRY[architecture]


def _usual_names(state: Mapping[str, Any], unknown: Mapping[str, str], model: str) -> dict[str, str | None]:
    """Return the usual names of the kinds that are unknown, but for the architecture; `model`: the architecture."""
    stock = ARCH_MODEL_NAME_REGISTRY.get(model, model).replace("_head_gates", "")
    family = FAMILIES.get(stock, FAMILIES["transformer"])
    task = family.task if "task" in unknown else _names(state).get("task")
    criterion = task if task in CRITERION_REGISTRY else family.criterion
    usual = {"task": task, "criterion": criterion, "optimizer": "adam", "lr_scheduler": "fixed"}
    return {kind: usual.get(kind) for kind in unknown if kind != "arch"}


def family_of(weights: Mapping[str, Tensor]) -> str | None:
    """Return the model of fairseq that weights belong to, None if they show none of `FAMILIES`."""
    shown = (model for model, family in FAMILIES.items() if any(re.match(family.weight, name) for name in weights))
    return next(shown, None)


def unknown_names(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names in the options of a checkpoint that fairseq does not know: {"criterion": name, ...}."""
    return {kind: name for kind, name in _names(state).items() if name not in _known(kind)}


def register_stand_ins(names: Mapping[str, str], model: str) -> None:
    """Register names, so that fairseq can read options that have them; what they name cannot be used.

    Args:
        names: those of `unknown_names`
        model: the model that an unknown architecture is registered for
    """
    for kind, name in names.items():
        if name in _known(kind):
            continue
        if kind == "arch":
            register_model_architecture(model, name)(base_preset(_stock(model)))
            continue
        register, base, has_options = REGISTER[kind]
        options = (FairseqDataclass,) if has_options else ()
        register(name, *options)(type(f"Unknown {kind} {quoted(name)}", (base,), {}))


def _known(kind: str) -> set[str]:
    if kind == "arch":
        return {*ARCH_MODEL_REGISTRY, *MODEL_REGISTRY}
    return {*(TASK_REGISTRY if kind == "task" else REGISTRIES[kind]["registry"])}


def _names(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the names in the options of a checkpoint: {"arch": name, "task": name, "criterion": name, ...}."""
    args = model_args(state)
    groups = (
        vars(args)
        if state.get("args")
        else {kind: as_mapping(state["cfg"].get(kind)).get("_name") for kind in REGISTER}
    )
    stored = {"arch": architecture(args), **{kind: groups.get(kind) for kind in REGISTER}}
    return {kind: name for kind, name in stored.items() if isinstance(name, str)}


def _with_names(state: Mapping[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a checkpoint whose options have other names."""
    args = model_args(state)
    if "arch" in names:
        for option in {"arch", "_name"} & vars(args).keys() or {"arch"}:
            setattr(args, option, names["arch"])
    groups = {kind: name for kind, name in names.items() if kind != "arch"}
    for kind in groups.keys() & vars(args).keys():  # with hydra, too, the options of a model may be all of the training
        setattr(args, kind, groups[kind])
    if state.get("args"):
        return {**state, "args": args}
    changed = {kind: name and {**as_mapping(state["cfg"].get(kind)), "_name": name} for kind, name in groups.items()}
    model = args if isinstance(state["cfg"]["model"], argparse.Namespace) else vars(args)
    return {**state, "cfg": {**state["cfg"], **changed, "model": model}}
