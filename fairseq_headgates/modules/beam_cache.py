"""Key/value cache of beam search that is never reordered.

After every step beam search keeps some hypotheses, drops others and continues some twice. fairseq then copies the
cached keys and values of all layers into the new order, which takes a third of a decoder step on a CPU. Here each
sentence has one slot per hypothesis, and one table for all layers says from which slots each hypothesis descends; all
other slots are masked. Encoder keys and values, equal for all hypotheses of a sentence, are stored once.

This requires that hypotheses of a sentence stay in consecutive rows, which is checked at every reordering. If it does
not hold, `plain` converts to fairseq's cache.

Shapes: B sentences, K hypotheses of each (the beam), H heads, S positions, D head size. Rows are the B K hypotheses,
those of a sentence one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 16  # positions by which a full cache grows: few enough to waste little, enough to copy seldom


class Beams:
    """Table that all layers of a decoder share: from which slots each hypothesis descends, and the last reordering.

    `slots` [B K, S] holds numbers from 0 to K - 1, and -1 for padding, which is masked.
    """

    def __init__(self, rows: int, beam: int, device: torch.device):
        self.beam = beam
        self.slots = torch.empty(rows, 0, dtype=torch.long, device=device)
        self.reorderings = 0
        self.together = True  # whether the last reordering kept the hypotheses of each sentence together
        self.sources = torch.empty(0)  # the sentence [B' K] that each row came from in the last reordering
        self.moved: Tensor | None = None  # the same for each sentence [B'], None if it left all in their places
        self._own = torch.arange(beam, device=device)
        self._mask: dict[torch.dtype, Tensor] = {}

    def extend(self, padding: Tensor | None) -> None:
        """Add a position, at which every hypothesis writes into its own slot; `padding` [B K, 1] is true on padding."""
        own = self._own.repeat(self.slots.size(0) // self.beam).unsqueeze(1)
        if padding is not None:
            own = own.masked_fill(padding.bool(), -1)
        self.slots = torch.cat([self.slots, own], dim=1)
        self._mask.clear()

    def reorder(self, new_order: Tensor) -> None:
        """Reorder hypotheses: row i of the B' K rows continues row `new_order[i]`."""
        sentences = self.slots.size(0) // self.beam
        self.sources = new_order // self.beam
        first = self.sources[:: self.beam]
        self.together = new_order.numel() % self.beam == 0 and torch.equal(
            first.repeat_interleave(self.beam), self.sources
        )
        stays = first.numel() == sentences and torch.equal(first, torch.arange(sentences, device=first.device))
        self.moved = None if stays else first
        self.slots = self.slots.index_select(0, new_order)
        self.reorderings += 1
        self._mask.clear()

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive mask [B, 1, K, S K]: 0 on slots that a hypothesis descends from, else `mask_value`.

        All layers of a step share it.
        """
        if dtype not in self._mask:
            foreign = self.slots.unsqueeze(2) != self._own  # [B K, S, K]
            mask = torch.zeros(foreign.shape, dtype=dtype, device=foreign.device).masked_fill_(
                foreign, mask_value(dtype)
            )
            self._mask[dtype] = mask.view(-1, 1, self.beam, foreign.size(1) * self.beam)
        return self._mask[dtype]


class BeamCache:
    """Keys and values of one attention layer in beam search, [B, H, S K, D] each, or [B, H, S, D] of the encoder."""

    def __init__(self, beams: Beams):
        self.beams = beams
        self._reorderings = beams.reorderings

    def reorder(self, new_order: Tensor) -> bool:
        """Reorder hypotheses. Return False if those of a sentence were separated: then continue with `plain`."""
        self._reorderings += 1
        if self._reorderings > self.beams.reorderings:  # the first layer to hear of it reorders the table for all
            self.beams.reorder(new_order)
        if self.beams.together and self.beams.moved is not None:
            self._select(self.beams.moved)
        return self.beams.together

    def _select(self, sentences: Tensor) -> None:
        raise NotImplementedError


class StepCache(BeamCache):
    """Cache of self-attention: K slots at every position."""

    def __init__(self, beams: Beams):
        super().__init__(beams)
        self.positions = 0
        self._keys = self._values = torch.empty(0)

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Append `k` and `v` [B, H, K, D]. Return all keys and values [B, H, S K, D] and the additive mask."""
        if self.beams.slots.size(1) == self.positions:  # the first layer of a step extends the table for all
            self.beams.extend(padding)
        start, end = self.positions * self.beams.beam, (self.positions + 1) * self.beams.beam
        if self.positions % GROWTH == 0:
            self._keys, self._values = _grown(self._keys, k), _grown(self._values, v)
        self._keys[:, :, start:end], self._values[:, :, start:end] = k, v
        self.positions += 1
        return *self.tensors(), self.beams.mask(k.dtype)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the keys and the values written so far, [B, H, S K, D]."""
        end = self.positions * self.beams.beam
        return self._keys[:, :, :end], self._values[:, :, :end]

    def plain(self) -> dict[str, Tensor | None]:
        """Return fairseq's cache after the last reordering: [B' K, H, S, D], separate for every hypothesis."""
        slots = self.beams.slots[:, : self.positions]
        at = torch.arange(self.positions, device=slots.device) * self.beams.beam + slots.clamp(min=0)
        keys, values = (x[self.beams.sources[:, None], :, at].transpose(1, 2) for x in self.tensors())
        padding = slots < 0
        return {"prev_key": keys, "prev_value": values, "prev_key_padding_mask": padding if padding.any() else None}

    def _select(self, sentences: Tensor) -> None:
        self._keys, self._values = self._keys.index_select(0, sentences), self._values.index_select(0, sentences)


class EncoderCache(BeamCache):
    """Cache of attention to the encoder: `keys` and `values` [B, H, S, D], `padding` [B, S] or None, constant."""

    def __init__(self, beams: Beams, keys: Tensor, values: Tensor, padding: Tensor | None):
        super().__init__(beams)
        self.keys, self.values, self.padding = keys, values, padding

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the keys and the values, [B, H, S, D]."""
        return self.keys, self.values

    def plain(self) -> dict[str, Tensor | None]:
        """Return fairseq's cache after the last reordering: [B' K, H, S, D], separate for every hypothesis."""
        self._select(self.beams.sources)
        return {"prev_key": self.keys, "prev_value": self.values, "prev_key_padding_mask": self.padding}

    def _select(self, sentences: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
        self.padding = None if self.padding is None else self.padding.index_select(0, sentences)


def mask_value(dtype: torch.dtype) -> float:
    """Return the number that is added to the score of a masked position; its exponential is 0.

    It is finite, so that a fully masked row gives no NaN, and half of the smallest number, so that adding a score does
    not overflow.
    """
    return torch.finfo(dtype).min / 2


def repeated(states: Tensor, beam: int) -> bool:
    """Return whether encoder states [S, B K, E] are those of B sentences, repeated for K hypotheses each."""
    rows = states.size(1)
    return rows % beam == 0 and torch.equal(states[:, ::beam].repeat_interleave(beam, dim=1), states)


def _grown(cache: Tensor, new: Tensor) -> Tensor:
    """Return the cache [B, H, S K, D] with room for `GROWTH` more positions of the shape of `new` [B, H, K, D]."""
    room = new.new_empty(*new.shape[:2], GROWTH * new.size(2), new.size(3))
    return torch.cat([cache, room], dim=2) if cache.numel() else room
