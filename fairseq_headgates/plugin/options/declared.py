"""The options of this plugin's models. Each is declared in one place, as a field of `HeadOptions`.

The command line, the defaults, the parsing, what checkpoints store, the types that are accepted from a checkpoint, and
the page of options all follow from these fields.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fairseq_headgates.gates import (
    METHODS,
    OPEN,
    GateMethod,
    HardConcrete,
    HeadGates,
    SubsetGates,
    Target,
    TargetGates,
    check_lr_scale,
    parse_stretch,
    parse_target,
)
from fairseq_headgates.heads import TYPES, HeadTable, mask_to_json, parse_types
from fairseq_headgates.inference.packed_linear import DTYPES
from fairseq_headgates.plugin.options.values import (
    comma_separated,
    count,
    one_of,
    parse_alive,
    parse_ffn_dims,
    parse_init,
    parse_method,
    switch,
)

Number = (int, float)
Switch = (bool, int)


@dataclass(frozen=True)
class Option:
    """How an option is given and stored.

    Attributes:
        metavar: name of its value in the help, None for a switch
        help: its help text
        parse: makes the value of the field from what is given on the command line, by hydra, or by a checkpoint, and
            raises ValueError
        store: makes what a checkpoint holds, text or a number, from the value of the field
        types: types that are accepted from a checkpoint; without any, the option is not read from a checkpoint
    """

    metavar: str | None
    help: str
    parse: Callable[[Any], Any]
    store: Callable[[Any], Any]
    types: tuple[type, ...]


def option(
    default: Any,
    metavar: str | None,
    help: str,
    parse: Callable[[Any], Any],
    types: tuple[type, ...],
    store: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Declare an option as a field of `HeadOptions`; see `Option`."""
    return field(default=default, metadata={"option": Option(metavar, help, parse, store, types)})


@dataclass(frozen=True)
class HeadOptions:
    """The options of this plugin for one model, parsed and checked.

    Each field is an option of `fairseq-train` of the same name.

    With `gate_init` 2.5 and the method l0, a model that starts from a checkpoint computes what the checkpoint computes.
    A gate must move by about 5 in log_alpha to close: 50 times a learning rate of 0.001 is 0.05 for each update, so
    that it can close within an epoch or two of a small corpus. Golden Stick and CoFi use about 0.1.

    `freeze_params` is not read from a checkpoint: a regular expression from a file could search without end.
    """

    gate_heads: tuple[str, ...] = option(
        (),
        "TYPES",
        f"attention types whose heads get stochastic gates, comma-separated: {', '.join(TYPES)} (encoder "
        "self-attention, decoder self-attention, cross-attention)",
        lambda value: parse_types(comma_separated(value)),
        (str,),
        ",".join,
    )
    alive_heads: HeadTable | None = option(
        None,
        "MASK",
        "heads to keep; the others are masked (multiplied by 0). A mask file, the same JSON inline (1: keep, 0: mask; "
        "a type that is not named is kept), or a checkpoint of this plugin, whose open heads are kept",
        parse_alive,
        (str,),
        lambda mask: None if mask is None else mask_to_json(mask, one_line=True),
    )
    remove_heads: bool = option(
        False,
        None,
        "remove the heads that --alive-heads does not keep from the weights, instead of masking them",
        switch,
        Switch,
    )
    ffn_dims: dict[str, tuple[int, ...]] | None = option(
        None,
        "DIMS",
        "number of neurons of each feed-forward block, as `headgates compress` chooses them: a checkpoint of this "
        'plugin, or JSON with a number for each layer, {"encoder": [512, 0, 256], "decoder": [128, 512, 512]}; at most '
        "--encoder-ffn-embed-dim and --decoder-ffn-embed-dim, 0 for a block that outputs a constant",
        parse_ffn_dims,
        (str,),
        lambda dims: json.dumps(dims) if dims else "",
    )
    gate_temperature: float = option(
        HardConcrete.temperature,
        "T",
        "temperature of the Hard Concrete distribution, above 0; subset has its own",
        lambda value: HardConcrete(float(value)).temperature,
        Number,
    )
    gate_stretch: tuple[float, float] = option(
        (HardConcrete.low, HardConcrete.high),
        "LOW,HIGH",
        "stretch of the Hard Concrete distribution, LOW < 0 and HIGH > 1; write --gate-stretch=LOW,HIGH; subset has "
        "none",
        lambda value: parse_stretch(comma_separated(value)),
        (str,),
        lambda stretch: ",".join(map(repr, stretch)),
    )
    gate_init: float | str = option(
        OPEN,
        "LOG_ALPHA",
        "initial log_alpha of every gate, or 'glorot' (random, as in the code of Voita et al. 2019). With method l0 "
        "and the default stretch, the evaluation gate is 0 for log_alpha <= -2.398 and 1 for log_alpha >= 2.398",
        parse_init,
        (str, *Number),
        lambda init: init if isinstance(init, str) else repr(init),
    )
    gate_lr_scale: float = option(
        50.0,
        "S",
        "factor on the learning rate of the gates, and of the multipliers of lagrangian, from 0.0001 to 1000000",
        lambda value: check_lr_scale(float(value)),
        Number,
    )
    sparsity_method: str = option(
        "l0",
        "METHOD",
        "l0: --l0-weight is a penalty on each open head; lagrangian: a penalty with learned multipliers leads to "
        "--target-heads heads; subset: --target-heads heads are drawn in training (Li et al. 2021). The criterions "
        "of this plugin, such as label_smoothed_cross_entropy_l0, add the penalty",
        parse_method,
        (str,),
    )
    target_heads: Target | None = option(
        None,
        "N",
        "heads to keep, with a --sparsity-method other than l0: a number (12) or a fraction (0.25; 1 is one head, "
        "1.0 all; rounded, .5 up) of all gated heads, or one of these for every gated type "
        "(enc-self=6,dec-enc=0.5)",
        lambda value: parse_target(comma_separated(value)),
        (str,),
        lambda target: str(target or ""),
    )
    sparsity_warmup_updates: int = option(
        0,
        "U",
        "updates of the warm-up. lagrangian: the number of heads to keep falls linearly from all to --target-heads; "
        "subset: its softmax temperature falls linearly from 1 to 0.1; 0: the final value from the first update",
        count,
        (int,),
    )
    fix_gates_after: int = option(
        0,
        "U",
        "after U updates fix each gate, to 1 if its evaluation gate is above 0, else to 0, and train on without noise; "
        "0: never",
        count,
        (int,),
    )
    gate_hard: bool = option(
        False,
        None,
        "round the gates in training to 1 (from 0.5 up; with subset the N highest) or 0, with the gradient of the "
        "unrounded gates (straight-through)",
        switch,
        Switch,
    )
    gate_output_scale: bool = option(
        False,
        None,
        "multiply the gates of each attention layer by H / n, in training and evaluation: H gates, of which n are not "
        "0 (Shim et al. 2021); subset needs --gate-hard with it",
        switch,
        Switch,
    )
    freeze_params: str | None = option(
        None,
        "REGEX",
        r"freeze parameters whose name matches (re.search), e.g. '^decoder\.'",
        lambda value: value or None,
        (),
    )
    freeze_dropout: bool = option(
        False,
        None,
        "turn off dropout in modules that --freeze-params freezes as a whole",
        switch,
        (),
    )
    inference_dtype: str = option(
        "float32",
        "DTYPE",
        "data type of linear layers in inference on a CPU: float32; bfloat16 (for CPUs with AMX or AVX512_BF16: "
        "faster); int8 (weights and activations quantised to 8 bits: faster, less accurate). Stored in the checkpoint; "
        "without effect in training, validation and on GPUs",
        one_of("inference dtype", DTYPES),
        (str,),
    )

    def __post_init__(self) -> None:
        mask = self.alive_heads
        if self.remove_heads and mask is None:
            raise ValueError("--remove-heads without --alive-heads: name the heads to keep")
        with_target = issubclass(METHODS[self.sparsity_method], TargetGates)
        if with_target and self.gate_heads and self.target_heads is None:
            raise ValueError(f"--sparsity-method {self.sparsity_method} needs --target-heads: give a number of heads")
        if self.target_heads is not None and not with_target:
            raise ValueError("--target-heads needs a --sparsity-method other than l0")
        if self.gate_output_scale and issubclass(METHODS[self.sparsity_method], SubsetGates) and not self.gate_hard:
            raise ValueError(
                f"--gate-output-scale with --sparsity-method {self.sparsity_method} needs --gate-hard: without it no "
                "training gate is 0"
            )
        if self.target_heads is not None and not self.gate_heads:
            raise ValueError("--target-heads needs gates: add --gate-heads, e.g. --gate-heads enc-self")
        for attention_type in self.gate_heads:
            if mask is not None and attention_type in mask.layers and not self.remove_heads:
                raise ValueError(
                    f"{attention_type} is in --gate-heads and in --alive-heads: a type has either gates or a constant "
                    "mask; with --remove-heads the remaining heads can have gates"
                )

    @property
    def distribution(self) -> HardConcrete:
        """Temperature and stretch of the gates."""
        return HardConcrete(self.gate_temperature, *self.gate_stretch)

    def store(self, args: Any) -> None:
        """Write the options to `args` as checkpoints hold them: text, numbers, true and false, the mask as JSON.

        A checkpoint must not depend on a mask file. Options that are None in `args` keep their default.
        """
        for name, declaration in OPTIONS.items():
            if getattr(args, name, None) is not None:
                setattr(args, name, declaration.store(getattr(self, name)))

    def method(self, layers: Sequence[HeadGates], layer_types: Sequence[str]) -> GateMethod:
        """Make the gating method for the gates and the attention type of each layer. Raise ValueError."""
        settings: dict[str, Any] = {
            "fix_after": self.fix_gates_after,
            "hard": self.gate_hard,
            "output_scale": self.gate_output_scale,
        }
        if self.target_heads is not None:
            heads = Counter(each for layer, each in zip(layers, layer_types, strict=True) for _ in layer.theta)
            try:
                settings["target"] = self.target_heads.counts(heads)
            except ValueError as error:
                raise ValueError(f"--target-heads: {error}") from None
            settings["warmup"] = self.sparsity_warmup_updates
        return METHODS[self.sparsity_method](layers, layer_types, **settings)


OPTIONS: dict[str, Option] = {each.name: each.metadata["option"] for each in fields(HeadOptions) if each.metadata}
# As `HeadOptions.store` writes them.
DEFAULTS: dict[str, Any] = {name: each.store(getattr(HeadOptions, name)) for name, each in OPTIONS.items()}


def add_head_gate_args(parser: Any) -> None:
    """Add the options of this plugin to the parser of an architecture. `read_options` checks their values."""
    for name, declaration in OPTIONS.items():
        flag, default, text = "--" + name.replace("_", "-"), DEFAULTS[name], declaration.help
        if declaration.metavar is None:
            parser.add_argument(flag, action="store_true", default=default, help=text)
        else:
            text += f" (default: {default if default not in ('', None) else 'none'})"
            parser.add_argument(flag, metavar=declaration.metavar, default=default, help=text.replace("%", "%%"))
