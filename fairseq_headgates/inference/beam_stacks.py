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

from fairseq_headgates.inference.decoder_step import DecoderStep, encoder_parts, has_step
from fairseq_headgates.inference.graphs import can_capture

SEARCH = "step_search"  # its name in fairseq's incremental state


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
    """fairseq's decoder, which takes the steps of beam search from a `DecoderStep`.

    Attributes:
        inference_mode: one of `MODES`: "eager" takes exact buffers, "static" those of a bucket, "graph" also graphs
            where they can be captured, else exact buffers
    """

    inference_mode = "eager"
    _static_step: DecoderStep | None = None

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None = None,
        incremental_state: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits as fairseq does, in incremental decoding by a `DecoderStep` where it is possible."""
        state = incremental_state
        if state is not None and not state and not options and prev_output_tokens.size(1) == 1:
            step = self.free_step()
            if step is not None:
                state[SEARCH] = StepSearch(step, len(prev_output_tokens), encoder_out)
        if state is None or SEARCH not in state:
            return super().forward(prev_output_tokens, encoder_out, state, **options)
        logits, weights = state[SEARCH].decode(prev_output_tokens)
        return logits, {"attn": [weights], "inner_states": []}

    def reorder_incremental_state_scripting(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Reorder hypotheses: row i of the batch continues row `new_order[i]`; fairseq's beam search calls it."""
        search = incremental_state.get(SEARCH)
        if search is not None:
            if search.reorder(new_order):
                return
            search.step.hand_over(incremental_state, search.live)
            del incremental_state[SEARCH]
        for layer in self.layers.children():  # fairseq traverses all modules
            for attention in (layer.self_attn, layer.encoder_attn):
                if attention is not None:
                    attention.reorder_incremental_state(incremental_state, new_order)

    def free_step(self) -> DecoderStep | None:
        """Return a step for a new search, if possible in the form that `inference_mode` asks for; None without one."""
        possible = self.inference_mode != "eager" and has_step(self, exact=False)
        if possible and (self.inference_mode == "static" or can_capture(self.embed_tokens.weight.device)):
            if self._static_step is None:
                self._static_step = DecoderStep(self, exact=False)
            if self._static_step.is_free():
                return self._static_step
        return DecoderStep(self, exact=True) if has_step(self, exact=True) else None


class StepSearch:
    """A beam search of fairseq's that takes its steps from a `DecoderStep`.

    fairseq removes the rows of sentences that have ended; in the buffers they may stay.

    Args:
        step: the step, whose buffers are free
        rows: number of rows of the batch
        encoder_out: the output of fairseq's encoder, None without one
    """

    def __init__(self, step: DecoderStep, rows: int, encoder_out: Any):
        self.step = step
        self.beam = _hypotheses(step.decoder, rows, encoder_parts(encoder_out)[0])
        step.begin(self, rows // self.beam, self.beam, encoder_out)
        self._place(torch.arange(rows // self.beam))

    def decode(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits [rows, 1, V] after `tokens` [rows, T], and the weights of attention to the encoder."""
        step = self.step
        step.advance(tokens.size(1) - 1)
        if self.rows is None:
            step.tokens.copy_(tokens[:, -1].view(step.tokens.shape))
        else:
            step.tokens.view(-1).index_copy_(0, self.rows, tokens[:, -1])
        logits, weights = step.run(with_weights=bool(step.source))
        if self.rows is not None:
            weights = None if weights is None else weights.index_select(0, self.rows)
            logits = logits.index_select(0, self.rows)
        elif not step.exact:
            logits = logits.clone()  # fairseq writes into them
        return logits, None if weights is None else weights[:, :, : step.source]

    def reorder(self, new_order: Tensor) -> bool:
        """Let row i continue row `new_order[i]` of the batch. Return False if that separates those of a sentence."""
        of_rows = new_order.cpu() // self.beam  # on a GPU, a check would take longer and wait as long
        sentences = of_rows[:: self.beam]
        together = torch.equal(sentences.repeat_interleave(self.beam), of_rows)
        if not together or len(sentences.unique()) < len(sentences):
            return False
        sources = new_order if self.rows is None else self.rows.index_select(0, new_order)
        if not torch.equal(sentences, torch.arange(len(self.live))):
            self._place(self.live[sentences])
        self.step.reorder(self.rows, sources)
        if self.step.has_smaller_bucket(len(self.live)):
            self.step.select(self.live)
            self._place(torch.arange(len(self.live)))
        return True

    def _place(self, live: Tensor) -> None:
        """Set the sentence in the buffers of every sentence of the batch, `live` [B'] on the CPU."""
        self.live = live
        rows = (live[:, None] * self.beam + torch.arange(self.beam)).view(-1)
        same = torch.equal(live, torch.arange(self.step.bucket.sentences))
        self.rows = None if same else rows.to(self.step.rows.device)  # the row in the buffers of every row


def _hypotheses(decoder: Any, rows: int, states: Tensor | None) -> int:
    """Return the number of consecutive rows that are hypotheses of one sentence."""
    beam = getattr(decoder, "_beam_size", 1)
    if states is not None and states.size(1) < rows:  # BART does not repeat its states
        return rows // states.size(1)
    repeated = states is None or torch.equal(states[:, ::beam].repeat_interleave(beam, dim=1), states)
    return beam if rows % beam == 0 and repeated else 1  # an earlier search had another beam


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
