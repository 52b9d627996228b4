"""fairseq's transformer encoder and decoder without needless work in beam search."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.speech_to_text.s2t_transformer import TransformerDecoderScriptable
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
)
from torch import Tensor, nn

from fairseq_headgates.inference.decoder_step import DecoderStep, has_step

STEP = "decoder_step"  # its name in fairseq's incremental state


class BeamEncoder(TransformerEncoderBase):
    """fairseq's encoder; beam search copies its states only if sentences move to other rows of the batch.

    fairseq copies the encoder states at every step, although all hypotheses of a sentence share them.
    """

    def forward(self, src_tokens: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Encode as fairseq does, and add the number of the sentence in each row, [B], always on the CPU."""
        encoder_out = super().forward(src_tokens, *args, **kwargs)
        encoder_out["sentence"] = [torch.arange(src_tokens.size(0))]
        return encoder_out

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """Reorder rows: row i of the batch becomes row `new_order[i]`."""
        before = encoder_out["sentence"][0]
        after = before.index_select(0, new_order.cpu())
        if torch.equal(before, after):
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, new_order), "sentence": [after]}


class BeamDecoder(TransformerDecoderBase):
    """fairseq's decoder, which takes the steps of beam search from a `DecoderStep`."""

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None = None,
        incremental_state: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits as fairseq does, in incremental decoding by a `DecoderStep` where it is possible."""
        state = incremental_state
        if state is not None and not state and not options and prev_output_tokens.size(1) == 1 and has_step(self):
            state[STEP] = DecoderStep(self, len(prev_output_tokens), encoder_out)
        if state is None or STEP not in state:
            return super().forward(prev_output_tokens, encoder_out, state, **options)
        logits, weights = state[STEP].decode(prev_output_tokens)
        return logits, {"attn": [weights], "inner_states": []}

    def reorder_incremental_state_scripting(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Reorder hypotheses: row i of the batch continues row `new_order[i]`; fairseq's beam search calls it."""
        step = incremental_state.get(STEP)
        if step is not None:
            if step.reorder(new_order):
                return
            step.hand_over(incremental_state)
            del incremental_state[STEP]
        for layer in self.layers.children():  # fairseq traverses all modules
            for attention in (layer.self_attn, layer.encoder_attn):
                if attention is not None:
                    attention.reorder_incremental_state(incremental_state, new_order)


# Classes of fairseq whose function these stacks compute.
FASTER: dict[type, type] = {
    **dict.fromkeys((TransformerEncoder, TransformerEncoderBase), BeamEncoder),
    **dict.fromkeys((TransformerDecoder, TransformerDecoderBase, TransformerDecoderScriptable), BeamDecoder),
}


def use_beam_stacks(model: nn.Module) -> None:
    """Change the class of a model's encoders and decoders, in place, to those for fast beam search."""
    for module in model.modules():
        for stack in (getattr(module, "encoder", None), getattr(module, "decoder", None)):
            if type(stack) in FASTER:
                stack.__class__ = FASTER[type(stack)]
