"""fairseq's losses with the L0 penalty: `X_l0` of `--criterion` for each of its criterions X."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY, register_criterion

from fairseq_headgates.plugin.criterions.config import L0Config
from fairseq_headgates.plugin.criterions.l0 import L0Mixin

NAMES = {"masked_lm": "MaskedLm"}  # of the class, where it is not that of fairseq: checkpoints hold it
# A criterion of criterions, one of another kind of parallel training, and one that its task accepts by this name alone.
LEFT_OUT = ("composite_loss", "vocab_parallel_cross_entropy", "sentence_ranking")


def with_penalty(name: str) -> type:
    """Register the criterion `{name}_l0`: fairseq's criterion `name` + lambda L_C."""
    stock = CRITERION_REGISTRY[name]
    prefix = f"{NAMES.get(name, stock.__name__.removesuffix('Criterion'))}L0"
    text = f"The loss of `{name}` + lambda L_C."
    options: Any = getattr(stock, "__dataclass", None)
    if options is not None:
        about: dict[str, Any] = {"__doc__": f"Options of `{name}` and of the penalty.", "__module__": __name__}
        options = dataclass(type(f"{prefix}Config", (L0Config, options), about))
        globals()[options.__name__] = options  # where pickle looks for it
    ours: Any = type(f"{prefix}Criterion", (L0Mixin, stock), {"__doc__": text, "__module__": __name__})
    globals()[ours.__name__] = ours
    return register_criterion(f"{name}_l0", dataclass=options)(ours)


def sums_losses(stock: type) -> bool:
    """Return whether a criterion sums its loss, so that the penalty has a scale; those of speech synthesis do not."""
    return "reduce" in inspect.signature(stock.forward).parameters  # type: ignore[attr-defined]


PENALISED = {
    name: with_penalty(name)
    for name, stock in list(CRITERION_REGISTRY.items())
    if sums_losses(stock) and name not in LEFT_OUT
}
