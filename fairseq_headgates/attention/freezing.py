"""Freeze parameters by name, and turn off dropout in frozen modules."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from torch import nn


@dataclass
class FrozenReport:
    """Report of `freeze`: tensors and parameters by group of names, and the number of dropouts turned off."""

    tensors: Counter[str] = field(default_factory=Counter)
    parameters: Counter[str] = field(default_factory=Counter)
    trainable: int = 0
    dropouts: int = 0

    def lines(self) -> list[str]:
        """Return the report as text: one line per group, then the totals."""
        groups = [
            f"frozen: {name} ({self.tensors[name]} tensors, {self.parameters[name]:,} parameters)"
            for name in self.tensors
        ]
        total = f"frozen in all: {self.parameters.total():,} parameters; {self.trainable:,} still train"
        return [*groups, total + (f"; {self.dropouts} dropouts turned off" if self.dropouts else "")]


def freeze(model: nn.Module, pattern: str, freeze_dropout: bool = False) -> FrozenReport:
    r"""Freeze every parameter whose name matches `pattern` (``re.search``), in place.

    A shared parameter has several names (with shared embeddings, `encoder.embed_tokens.weight` is also
    `decoder.embed_tokens.weight`) and is frozen if any of them matches: ``^decoder\.`` freezes the whole decoder.

    Args:
        model: any model
        pattern: a regular expression
        freeze_dropout: turn off dropout in every module whose parameters are all frozen, so that the frozen part
            computes the same in training as in evaluation

    Returns:
        What was frozen

    Raises:
        ValueError: if the pattern is not a regular expression, or matches no parameter or all of them
    """
    try:
        search = re.compile(pattern).search
    except (re.error, OverflowError, RecursionError) as error:  # the last two: huge numbers, deep nesting
        raise ValueError(f"--freeze-params {pattern!r:.200} is not a regular expression: {error}") from None
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    chosen = {parameter: known for parameter, known in names.items() if any(map(search, known))}
    if not chosen:
        raise ValueError(
            f"--freeze-params {pattern!r:.200} matches no parameter: names look like {next(iter(names.values()))[0]!r}"
        )
    if len(chosen) == len(names):
        raise ValueError(f"--freeze-params {pattern!r:.200} matches every parameter: narrow the pattern")
    report = FrozenReport()
    for parameter, known in chosen.items():
        parameter.requires_grad = False
        # The group of a name is that of all layers: decoder.layers.3.fc1.weight -> decoder.layers.*.fc1
        group = re.sub(r"\.\d+\.", ".*.", next(filter(search, known))).rpartition(".")[0]
        report.tensors[group] += 1
        report.parameters[group] += parameter.numel()
    report.trainable = sum(parameter.numel() for parameter in names if parameter.requires_grad)
    if freeze_dropout:
        report.dropouts = _stop_dropout(model)
    return report


def _stop_dropout(model: nn.Module) -> int:
    stopped = set()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            dropouts = (child for child in module.modules() if type(child).__name__.endswith("Dropout"))
            stopped |= {dropout for dropout in dropouts if getattr(dropout, "p", 0)}
    for dropout in stopped:
        dropout.p = 0.0  # type: ignore[assignment]
    return len(stopped)
