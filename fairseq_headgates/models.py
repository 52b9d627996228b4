"""The registered architectures: fairseq's models with head gates, fixed heads and frozen parameters as options."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase, TransformerModel, base_architecture
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler
from torch import nn

from fairseq_headgates.freezing import freeze
from fairseq_headgates.gates import HardConcrete, parse_stretch
from fairseq_headgates.heads import parse_mask, parse_types
from fairseq_headgates.inference import pack_linears
from fairseq_headgates.options import (
    DEFAULTS,
    add_head_gate_args,
    one_line_errors,
    option,
    parse_init,
    settle_options,
)
from fairseq_headgates.pruning import KEPT_HEADS, check_kept_heads, kept_heads_entries, remove_heads
from fairseq_headgates.safety import check_evaluated
from fairseq_headgates.sites import fix_heads, gated_sites, insert_gates, use_head_attention

logger = logging.getLogger(__name__)

__all__ = ["DEFAULTS", "HeadGatesMixin", "TransformerHeadGatesModel", "add_head_gate_args", "parse_stretch"]


def equip(model: nn.Module, args: Any) -> nn.Module:
    """Gates, fixes and freezes a freshly built stock model as its options say, in place.

    Raises ValueError for options that contradict each other or the model.
    """
    use_head_attention(model)
    types = parse_types(option(args, "gate_heads"))
    alive, remove = option(args, "alive_heads"), bool(option(args, "remove_heads"))
    if remove and not alive:
        raise ValueError("--remove-heads without --alive-heads: say which heads stay")
    if alive:
        mask = parse_mask(alive)
        for kind in types:
            if kind in mask.values and not remove:
                raise ValueError(
                    f"{kind} is in --gate-heads and in --alive-heads: a type has either gates or fixed heads; "
                    "with --remove-heads the heads that are left can have gates"
                )
        remove_heads(model, mask) if remove else fix_heads(model, mask)
    if types:
        low, high = parse_stretch(option(args, "gate_stretch"))
        distribution = HardConcrete(float(option(args, "gate_temperature")), low, high)
        init = parse_init(str(option(args, "gate_init")))
        insert_gates(model, types, distribution, init, float(option(args, "gate_lr_scale")))
    if option(args, "freeze_params"):
        for line in freeze(model, option(args, "freeze_params"), bool(option(args, "freeze_dropout"))).lines():
            logger.info(line)
    return model


class HeadGatesMixin:
    """What every registered model of this plugin adds to its stock model; comes first among the bases."""

    args: Any
    num_updates = 0
    _started_at: int | None = None  # the update this process began with
    _schedule_checked = False

    @classmethod
    def add_args(cls, parser):
        super().add_args(parser)  # type: ignore[misc]
        add_head_gate_args(parser)

    @classmethod
    def build_model(cls, args, task):
        """Called by fairseq's commands, with options from the command line, from hydra or from a checkpoint."""
        with one_line_errors():
            return cls.build_checked(args, task)

    @classmethod
    def build_checked(cls, args, task):
        """Builds the model that `args` describe. Raises ValueError for options of this plugin that cannot be used."""
        check_evaluated(args if isinstance(args, Mapping) else vars(args))
        settle_options(args)
        model = super().build_model(args, task)  # type: ignore[misc]
        equip(model, args)
        model.args = args
        return model

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)  # type: ignore[misc]
        self.num_updates = num_updates

    def set_beam_size(self, beam_size: int) -> None:
        """Called by fairseq's beam search; see beam.py."""
        self.decoder.set_beam_size(beam_size)  # type: ignore[attr-defined]

    def make_generation_fast_(self, **kwargs) -> None:
        """Called by fairseq's commands before inference."""
        pack_linears(self)  # type: ignore[arg-type]
        super().make_generation_fast_(**kwargs)  # type: ignore[misc]

    def upgrade_state_dict(self, state_dict: dict[str, Any]) -> None:
        with one_line_errors():  # fairseq hides any other exception behind one of its own
            self.convert_old_names(state_dict)

    def convert_old_names(self, state_dict: dict[str, Any]) -> None:
        """Gives the weights of an older fairseq their names of today. Raises ValueError for weights of other heads."""
        super().upgrade_state_dict(state_dict)  # type: ignore[misc]
        check_kept_heads(self, state_dict)  # type: ignore[arg-type]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        destination.update({prefix + name: kept for name, kept in kept_heads_entries(self).items()})  # type: ignore[arg-type]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in [name for name in state_dict if name.startswith(prefix + KEPT_HEADS)]:
            del state_dict[name]  # checked in `upgrade_state_dict`
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]

    def training_begins(self) -> None:
        """To be called by the criterion before the first update: nothing else tells training from loading."""
        self._started_at = self.num_updates
        self.warn_if_gates_cannot_close(getattr(self.args, "max_update", None))

    def training_pauses(self) -> None:
        """To be called at each validation: after the first epoch, the length of a run given in epochs is known."""
        if self._started_at == 0 and not getattr(self.args, "validate_interval_updates", 0):
            self.warn_if_gates_cannot_close(int((self.num_updates + 1) * (getattr(self.args, "max_epoch", None) or 0)))

    def warn_if_gates_cannot_close(self, updates: int | None) -> None:
        """Says before hours are spent that the planned number of updates is too small to close a gate."""
        sites = gated_sites(self)  # type: ignore[arg-type]
        reach = gate_reach(self.args, updates) if sites and updates and not self._schedule_checked else None
        if reach is None:
            return
        self._schedule_checked = True
        gate = sites[0].attention.gate
        distance = float(gate.log_alpha().detach().max()) - gate.distribution.closes_at
        message = f"over {updates} updates a gate can move by {reach:.1f} in log_alpha; it closes after {distance:.1f}"
        if reach < 2 * distance:  # the loss pulls the other way, and Adam's steps are shorter than the rate
            logger.warning(f"{message}: expect few closed gates; raise --gate-lr-scale, --lr or the number of updates")
        else:
            logger.info(message)


def gate_reach(args: Any, updates: int) -> float | None:
    """How far a gate can move in log_alpha: lr_scale times the sum of the learning rates over `updates` updates.

    None where the options hold no learning rate schedule (the model is not being trained from the command line).
    """
    if getattr(args, "lr_scheduler", None) is None or getattr(args, "lr", None) is None:
        return None
    optimizer = _RateRecorder()
    try:
        scheduler = build_lr_scheduler(args, optimizer)
        total = 0.0
        step = max(1, updates // 10_000)  # the schedules are smooth: 10,000 points are enough
        for update in range(0, updates, step):
            scheduler.step_update(update)
            total += optimizer.get_lr() * min(step, updates - update)
    except (AttributeError, TypeError, AssertionError):  # a schedule that needs more than its options
        return None
    return float(option(args, "gate_lr_scale")) * total


class _RateRecorder(FairseqOptimizer):
    """An optimiser that trains nothing: fairseq's schedulers set its learning rate."""

    def __init__(self) -> None:
        super().__init__(None)
        self._optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


class BeamEncoder(TransformerEncoderBase):
    """fairseq's encoder, except that beam search does not copy its states where they are the same.

    fairseq reorders the encoder states at every step, although the hypotheses of a sentence share them.
    """

    def forward(self, src_tokens, *args, **kwargs):
        """As in fairseq, with the number of the sentence [B] in each row."""
        encoder_out = super().forward(src_tokens, *args, **kwargs)
        encoder_out["sentence"] = [torch.arange(src_tokens.size(0), device=src_tokens.device)]
        return encoder_out

    def reorder_encoder_out(self, encoder_out, new_order):
        """Row i of the batch becomes what row `new_order[i]` was."""
        before = encoder_out["sentence"][0]
        after = before.index_select(0, new_order)
        if torch.equal(before, after):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentence": [after]}


@register_model("transformer_head_gates")
class TransformerHeadGatesModel(HeadGatesMixin, TransformerModel):
    """fairseq's `transformer` with head gates; without any option of this plugin it is that model."""

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens):
        encoder = BeamEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens)
        encoder.dropout_module.module_name = "TransformerEncoder"  # what --retain-dropout-modules knows it by
        return encoder


register_model_architecture("transformer_head_gates", "transformer_head_gates")(base_architecture)
for _preset in ("tiny", "iwslt_de_en", "wmt_en_de", "vaswani_wmt_en_de_big"):
    _stock_preset = ARCH_CONFIG_REGISTRY[f"transformer_{_preset}"]
    register_model_architecture("transformer_head_gates", f"transformer_head_gates_{_preset}")(_stock_preset)


@register_model_architecture("transformer_head_gates", "transformer_head_gates_acl19")
def acl19(args: Any) -> None:
    """The model of Voita et al. 2019: pre-norm transformer-base, dropout 0.1 on residuals, attention and ReLU."""
    args.encoder_normalize_before = getattr(args, "encoder_normalize_before", True)
    args.decoder_normalize_before = getattr(args, "decoder_normalize_before", True)
    args.dropout = getattr(args, "dropout", 0.1)
    args.attention_dropout = getattr(args, "attention_dropout", 0.1)
    args.activation_dropout = getattr(args, "activation_dropout", 0.1)
    base_architecture(args)
