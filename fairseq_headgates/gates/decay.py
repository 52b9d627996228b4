"""Exclude gates from weight decay, which would pull log_alpha to 0, with any optimiser.

fairseq puts all parameters into one parameter group, and its checkpoints hold that group. So only during a step of the
optimiser, by torch's hooks, the gates are a group of their own, without weight decay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_exclusions: weakref.WeakSet[DecayExclusion] = weakref.WeakSet()
_to_undo: dict[int, ExitStack] = {}  # by the id of the optimiser that makes a step


class DecayExclusion:
    """Excludes parameters of a model from weight decay, as long as this object exists.

    The optimiser may hold the parameters themselves, or in mixed precision single-precision copies of each. A part of
    one vector of all parameters (--fp16 without --fp16-no-flatten-grads) cannot be a group: it is `missed`.

    Attributes:
        applied: whether an optimiser that holds the parameters has made a step
        missed: whether one with weight decay that does not hold them has made a step

    Args:
        model: the model in training
        excluded: some of its trained parameters
    """

    def __init__(self, model: nn.Module, excluded: Iterable[nn.Parameter]):
        self.model = model
        self.excluded: dict[int, Tensor] = {id(parameter): parameter for parameter in excluded}
        self.applied = self.missed = False
        _exclusions.add(self)

    @property
    def fails(self) -> bool:
        """Whether an optimiser has weight decay, and no optimiser holds the parameters."""
        return bool(self.excluded) and self.missed and not self.applied

    def begin(self, optimizer: Optimizer, held: list[Tensor], undo: ExitStack) -> None:
        """Exclude the parameters from steps of `optimizer`, which has parameters `held`, until `undo` is closed."""
        trained: list[Tensor] = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        same = [copy.shape for copy in held] == [parameter.shape for parameter in trained]
        if same and held and held[0].dtype == torch.float32 != trained[0].dtype:  # copies, in the same order
            pairs = zip(held, trained, strict=True)
            self.excluded.update({id(copy): copy for copy, parameter in pairs if id(parameter) in self.excluded})
        decays = any(group.get("weight_decay") for group in optimizer.param_groups)
        if not any(id(parameter) in self.excluded for parameter in held):
            self.missed |= decays
            return
        self.applied = True
        if not decays:
            return
        for group in list(optimizer.param_groups):
            whole = group["params"]
            excluded = [parameter for parameter in whole if id(parameter) in self.excluded]
            if excluded and group.get("weight_decay"):
                group["params"] = [parameter for parameter in whole if id(parameter) not in self.excluded]
                optimizer.param_groups.append({**group, "params": excluded, "weight_decay": 0.0})
                undo.callback(group.update, params=whole)
                undo.callback(optimizer.param_groups.pop)


@torch.no_grad()
def _begin(optimizer: Optimizer, *_: Any) -> None:
    _end(optimizer)  # a step that has failed
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    undo = _to_undo[id(optimizer)] = ExitStack()
    for exclusion in list(_exclusions):
        exclusion.begin(optimizer, held, undo)


@torch.no_grad()
def _end(optimizer: Optimizer, *_: Any) -> None:
    _to_undo.pop(id(optimizer), ExitStack()).close()


register_optimizer_step_pre_hook(_begin)
register_optimizer_step_post_hook(_end)
