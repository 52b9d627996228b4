"""The options of this plugin's models on the command line: names, defaults and help."""

from __future__ import annotations

from typing import Any

from fairseq_headgates.gates import OPEN, HardConcrete
from fairseq_headgates.heads import TYPES

# All defaults; those of the distribution are in gates/distribution.py. With gate_init 2.5 and the method l0 a
# warm-started model computes what the baseline computes. A gate must move by about 5 in log_alpha to close: 50 times a
# learning rate of 0.001 is 0.05 per update, so that it can close within an epoch or two of a small corpus; Golden Stick
# and CoFi use about 0.1.
DEFAULTS: dict[str, Any] = {
    "gate_heads": "",
    "alive_heads": None,
    "remove_heads": False,
    "gate_temperature": HardConcrete.temperature,
    "gate_stretch": f"{HardConcrete.low:g},{HardConcrete.high:g}",
    "gate_init": f"{OPEN:g}",
    "gate_lr_scale": 50.0,
    "sparsity_method": "l0",
    "target_heads": "",
    "sparsity_warmup_updates": 0,
    "fix_gates_after": 0,
    "gate_hard": False,
    "gate_output_scale": False,
    "stop_when_settled": 0,
    "freeze_params": None,
    "freeze_dropout": False,
    "inference_dtype": "float32",
}
HELP = {
    "gate_heads": (
        "TYPES",
        f"attention types whose heads get stochastic gates, comma-separated: {', '.join(TYPES)} (encoder "
        "self-attention, decoder self-attention, cross-attention)",
    ),
    "alive_heads": (
        "MASK",
        "heads to keep; the others are masked (multiplied by 0). A mask file, the same JSON inline (1: keep, 0: mask; "
        "a type that is not named is kept), or a checkpoint of this plugin, whose open heads are kept",
    ),
    "remove_heads": (
        None,
        "remove the heads that --alive-heads does not keep from the weights, instead of masking them",
    ),
    "gate_temperature": ("T", "temperature of the Hard Concrete distribution, above 0; subset has its own"),
    "gate_stretch": (
        "LOW,HIGH",
        "stretch of the Hard Concrete distribution, LOW < 0 and HIGH > 1; write --gate-stretch=LOW,HIGH; subset has "
        "none",
    ),
    "gate_init": (
        "LOG_ALPHA",
        "initial log_alpha of every gate, or 'glorot' (random, as in the code of Voita et al. 2019). With method l0 "
        "and the default stretch, the evaluation gate is 0 for log_alpha <= -2.398 and 1 for log_alpha >= 2.398",
    ),
    "gate_lr_scale": (
        "S",
        "factor on the learning rate of the gates, and of the multipliers of lagrangian, from 0.0001 to 1000000",
    ),
    "sparsity_method": (
        "METHOD",
        "l0: --l0-weight is a penalty on each open head; lagrangian: a penalty with learned multipliers leads to "
        "--target-heads heads; subset: --target-heads heads are drawn in training (Li et al. 2021), subset-li2021 with "
        "their schedule. The criterions of this plugin, such as label_smoothed_cross_entropy_l0, add the penalty",
    ),
    "target_heads": (
        "N",
        "heads to keep, with a --sparsity-method other than l0: a number (12) or a fraction (0.25; 1 is one head, "
        "1.0 all; rounded, .5 up) of all gated heads, or one of these for every gated type "
        "(enc-self=6,dec-enc=0.5)",
    ),
    "sparsity_warmup_updates": (
        "U",
        "updates of the warm-up. lagrangian: the number of heads to keep falls linearly from all to --target-heads; "
        "subset: its softmax temperature falls linearly from 1 to 0.1; 0: the final value from the first update. "
        "subset-li2021: the temperature falls geometrically from 0.1 to 1e-8; 0: it stays 0.1",
    ),
    "fix_gates_after": (
        "U",
        "after U updates fix each gate, to 1 if its evaluation gate is above 0, else to 0, and train on without noise; "
        "0: never",
    ),
    "gate_hard": (
        None,
        "round the gates in training to 1 (from 0.5 up; with subset the N highest) or 0, with the gradient of the "
        "unrounded gates (straight-through); with subset-li2021 1 for the N highest log_alpha, without noise",
    ),
    "gate_output_scale": (
        None,
        "multiply the gates of each attention layer by H / n, in training and evaluation: H gates, of which n are not "
        "0 (Shim et al. 2021); subset needs --gate-hard with it",
    ),
    "stop_when_settled": (
        "K",
        "end the training after K consecutive validations with the same open heads. A validation counts only after all "
        "warm-ups, with fewer than all heads open, and if the expected number of open heads is within 0.5 of their "
        "number; 0: never",
    ),
    "freeze_params": ("REGEX", r"freeze parameters whose name matches (re.search), e.g. '^decoder\.'"),
    "freeze_dropout": (None, "turn off dropout in modules that --freeze-params freezes as a whole"),
    "inference_dtype": (
        "DTYPE",
        "data type of linear layers in inference on a CPU: float32, or int8 (weights and activations quantised to 8 "
        "bits: faster, less accurate). Stored in the checkpoint; without effect in training, validation and on GPUs",
    ),
}


def add_head_gate_args(parser: Any) -> None:
    """Add the options of this plugin to the parser of an architecture. `HeadOptions.of` checks their values."""
    for name, (metavar, text) in HELP.items():
        option, default = "--" + name.replace("_", "-"), DEFAULTS[name]
        if metavar is None:
            parser.add_argument(option, action="store_true", default=default, help=text)
        else:
            text += f" (default: {default if default not in ('', None) else 'none'})"
            parser.add_argument(option, metavar=metavar, default=default, help=text.replace("%", "%%"))
