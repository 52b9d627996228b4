"""The interface of gating methods: how all gates of a model are drawn, evaluated and penalised.

Shapes: N gates of a model, in the order of its layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_headgates.gates.decay import DecayExclusion
from fairseq_headgates.gates.distribution import NOISE_EPS
from fairseq_headgates.gates.layer import HeadGates, joint_log_alpha
from fairseq_headgates.messages import PROGRAM, fail

MOST_NOISES = 2**16  # reads of gates whose noise is kept, one for each layer and forward pass


class GateMethod(nn.Module):
    """Base of the gating methods, for all gates of a model. A new method is one subclass, listed in `METHODS`.

    Before each forward pass in training the noise of all gates is drawn. In evaluation mode each layer takes its part
    of `evaluate`.

    Args:
        layers: the gates of each attention layer
        layer_types: the attention type of each layer
        fix_after: number of updates after which the gates are fixed to 0 or 1; 0 for never
        hard: round training gates to 0 or 1 (`rounded`), with the gradient of the gates themselves
        output_scale: multiply the gates of a layer by H / (number of gates that are not 0), at most H
            (Shim et al. 2021), so that the output of the layer keeps its size
    """

    name: ClassVar[str]
    has_penalty: ClassVar[bool] = True  # false if `penalty` is always 0, so that any criterion trains the gates

    def __init__(
        self,
        layers: Sequence[HeadGates],
        layer_types: Sequence[str],
        fix_after: int = 0,
        hard: bool = False,
        output_scale: bool = False,
    ):
        super().__init__()
        self.layers = tuple(layers)  # a tuple, because these are modules of their attention layers
        self.layer_types = tuple(layer_types)
        self.head_types = tuple(
            each for layer, each in zip(layers, layer_types, strict=True) for _ in range(layer.theta.numel())
        )
        self.sizes = [layer.theta.numel() for layer in layers]
        self.fix_after, self.hard, self.output_scale, self.num_updates = fix_after, hard, output_scale, 0
        self._noise: Tensor | None = None  # of the last forward pass
        self._shared: dict[HeadGates, Tensor] | None = None  # its gates [H], by layer
        self._noises: dict[int, Tensor] = {}  # of forward passes whose activations may be recomputed, by random state
        self._hooks: tuple[Any, ...] = ()
        self._decay_exclusion: DecayExclusion | None = None
        self._in_forward = False
        for layer in layers:
            layer.methods = (self,)

    # What a method defines

    def sample(self, log_alpha: Tensor, uniform: Tensor) -> Tensor:
        """Return training gates [N] for noise [N] from the uniform distribution on (0, 1)."""
        raise NotImplementedError

    def evaluate(self, log_alpha: Tensor) -> Tensor:
        """Return evaluation gates [N] in [0, 1]."""
        raise NotImplementedError

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """Return the probability [N] that a head is open in training, or the method's estimate of it."""
        raise NotImplementedError

    def penalty(self, log_alpha: Tensor, weight: Tensor) -> Tensor:
        """Return what is added to the loss per token, a scalar. `weight` [N] is lambda of each gate at this update."""
        raise NotImplementedError

    def rounded(self, gates: Tensor) -> Tensor:
        """Return training gates [N] rounded to 0 or 1, for `hard`."""
        return gates.ge(0.5).to(gates)

    def schedule_ends(self) -> dict[str, int]:
        """Return {option: the update at which its schedule ends}."""
        return {"--fix-gates-after": self.fix_after}

    # What all methods share

    @property
    def fixed(self) -> bool:
        """Whether the gates are fixed."""
        return 0 < self.fix_after <= self.num_updates

    def log_alpha(self) -> Tensor:
        """Return the location of all gates, [N]."""
        return joint_log_alpha(self.layers)

    def join(self, model: nn.Module, parts: Sequence[nn.Module] = ()) -> None:
        """Register the hooks on the forward pass of a model, which then holds this method as `gate_method`.

        A model that is trained in parts, such as one for each language pair, gets the hooks on each of `parts`, whose
        attribute `whole` becomes the model.
        """
        for part in parts or [model]:
            self._hooks += (
                part.register_forward_pre_hook(self.before_forward),
                part.register_forward_hook(self.after_forward),
            )
            if part is not model:
                vars(part)["whole"] = model  # not a submodule
        model.gate_method = self

    def leave(self, model: nn.Module) -> None:
        """Undo `join`."""
        for hook in self._hooks:
            hook.remove()
        for module in model.modules():
            vars(module).pop("whole", None)
        self._decay_exclusion = None
        del model.gate_method

    def before_forward(self, model: nn.Module | None = None, *_: Any) -> None:
        """Draw new gates in training, and exclude them from weight decay. At `fix_after`, fix them.

        Not in `set_num_updates`: before a training from another checkpoint, fairseq calls that with the number of
        updates of the other one.
        """
        if self.training:
            if self.fixed and self.layers[0].fixed is None:
                self.fix()
            if model is not None:
                self._exclude_from_decay(getattr(model, "whole", model))
            self._noise, self._shared, self._in_forward = self.new_noise(), None, True

    def after_forward(self, *_: Any) -> None:
        """End the forward pass."""
        self._in_forward = False

    def _exclude_from_decay(self, model: nn.Module) -> None:
        if self._decay_exclusion is None:
            modules = (self, *self.layers)
            trained = [p for module in modules for p in module.parameters() if p.requires_grad]
            self._decay_exclusion, self._first_update = DecayExclusion(model, trained), self.num_updates
        elif self._first_update < self.num_updates and self._decay_exclusion.fails:
            fail(
                PROGRAM,
                "--weight-decay cannot be kept from the gates, because the optimiser does not hold them by "
                "themselves (--fp16, sharded or composite optimisers): use --fp16-no-flatten-grads or --weight-decay 0",
            )

    def new_noise(self) -> Tensor:
        """Return new noise [N] from the uniform distribution on (0, 1)."""
        return torch.rand(len(self.head_types), device=self.layers[0].theta.device)

    def training_gates(self, layer: HeadGates) -> Tensor:
        """Return the training gates [H] of a layer, those of the present forward pass.

        All layers share one graph, except layers whose activations are recomputed in the backward pass
        (--checkpoint-activations): these read their gates first without gradients, then again with their own graph,
        maybe after other forward passes. The second time, fairseq restores the state of the random generator, by which
        the noise is kept: the noise of each forward pass is drawn from it.

        A layer that is called outside of a forward pass of the model gets a new sample for every call.
        """
        if self._in_forward and torch.is_grad_enabled():
            if self._shared is None:
                assert self._noise is not None
                self._shared = self.by_layer(self._gates(self._noise))
            return self._shared[layer]
        key = _random_state(layer.theta.device)
        if self._in_forward and self._noise is not None:
            self._noises[key] = self._noise
            if len(self._noises) > MOST_NOISES:
                del self._noises[next(iter(self._noises))]
        noise = self._noises.get(key)
        return self.by_layer(self._gates(self.new_noise() if noise is None else noise))[layer]

    def _gates(self, noise: Tensor) -> Tensor:
        """Return the training gates [N] for noise [N]; once fixed, the evaluation gates without a gradient."""
        log_alpha = self.log_alpha()
        if self.fixed:
            return self.scaled(self.evaluate(log_alpha).detach())
        gates = self.sample(log_alpha, noise.clamp(NOISE_EPS, 1 - NOISE_EPS))
        if self.hard:
            gates = gates + (self.rounded(gates.detach()) - gates.detach())
        return self.scaled(gates)

    def scaled(self, gates: Tensor) -> Tensor:
        """Return gates [N] times the output scale of their layer."""
        if not self.output_scale:
            return gates
        layers = gates.detach().split(self.sizes)
        factors = [len(layer) / layer.count_nonzero().clamp(min=1).expand(len(layer)) for layer in layers]
        return gates * torch.cat(factors)

    def evaluation_gates(self, layer: HeadGates) -> Tensor:
        """Return the evaluation gates [H] of a layer."""
        return self.by_layer(self.evaluate(self.log_alpha()))[layer]

    def unfinished(self, ends: Mapping[str, int]) -> str:
        """Return a warning if a schedule has not ended, or evaluation closes heads whose P(g != 0) is above 0.5.

        Otherwise return an empty text. `ends` are ends of schedules besides `schedule_ends`, in the same form.
        """
        now, ends = self.num_updates, {**ends, **self.schedule_ends()}
        reasons = [
            f"{name} lasts until update {end}, this is update {now}" for name, end in ends.items() if 0 < now < end
        ]
        with torch.no_grad():
            log_alpha = self.log_alpha()
            number = int(((self.evaluate(log_alpha) == 0) & (self.open_probability(log_alpha) > 0.5)).sum())
        if number:
            reasons.append(f"heads with an evaluation gate of 0 but P(open) above 0.5: {number}")
        if not reasons:
            return ""
        hint = "train the gates longer before you fix or remove heads"
        return f"the choice of heads is not settled ({'; '.join(reasons)}): {hint}"

    def factor(self, layer: HeadGates) -> Tensor:
        """Return the factors [H] on the heads of a layer in evaluation: evaluation gate times output scale."""
        return self.by_layer(self.scaled(self.evaluate(self.log_alpha())))[layer]

    def open_probabilities(self, layer: HeadGates) -> Tensor:
        """Return P(g != 0) of the gates [H] of a layer."""
        return self.by_layer(self.open_probability(self.log_alpha()))[layer]

    def by_layer(self, values: Tensor) -> dict[HeadGates, Tensor]:
        """Split values [N] into those of each layer, [H]."""
        return dict(zip(self.layers, values.split(self.sizes), strict=True))

    def set_num_updates(self, num_updates: int) -> None:
        """Note the number of updates before the next one; fairseq calls it."""
        self.num_updates = num_updates

    def fix(self) -> None:
        """Fix every gate to 1 if its evaluation gate is above 0, else to 0."""
        with torch.no_grad():
            kept = self.evaluate(self.log_alpha()) > 0
        for layer, part in self.by_layer(kept).items():
            layer.fixed = part

    def __getstate__(self) -> dict[str, Any]:
        # Gates cannot be copied with their graph.
        left_out: dict[str, Any] = {
            "_noise": None,
            "_shared": None,
            "_noises": {},
            "_in_forward": False,
            "_decay_exclusion": None,
        }
        return {**self.__dict__, **left_out}


def _random_state(device: torch.device) -> int:
    """Return a hash of the state of the generator that draws random numbers on a device."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return hash(state.numpy().tobytes())


def groups_of(head_types: Sequence[str], counts: Mapping[tuple[str, ...], int]) -> list[tuple[Tensor, int]]:
    """Return the positions of the gates of each target, and how many of them to keep."""
    positions = [[i for i, attention_type in enumerate(head_types) if attention_type in group] for group in counts]
    return [(torch.tensor(group), count) for group, count in zip(positions, counts.values(), strict=True)]


def highest(values: Tensor, groups: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Return 1 for the gates with the highest values [N], as many in each group as it keeps; 0 for the others."""
    gates = torch.zeros_like(values)
    for positions, count in groups:
        positions = positions.to(values.device)
        order = values[positions].argsort(descending=True, stable=True)
        gates[positions[order[:count]]] = 1
    return gates
