"""Key/value cache of beam search that is never reordered.

After every step beam search keeps some hypotheses, drops others and continues some twice. fairseq then copies the
cached keys and values of all layers into the new order, which takes a third of a decoder step on a CPU. Here every
hypothesis writes new entries for its sentence, and one table for all layers says from which entries each hypothesis
descends; all other entries are masked. When the room for entries is full, those from which no hypothesis descends any
more are removed. Encoder keys and values, equal for all hypotheses of a sentence, are stored once.

This requires that hypotheses of a sentence stay in consecutive rows, which is checked at every reordering. If it does
not hold, `plain` converts to fairseq's cache.

Shapes: B sentences, K hypotheses of each (the beam), H heads, N entries of each sentence, S positions, D head size;
B' is B after the last reordering. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_ROOM = 16  # initial capacity in positions; see `Beams._remove_entries`


class Beams:
    """Table that all layers of a decoder share: from which entries each hypothesis descends, and the last reordering.

    `mask` [B, K, N] is 0 where a hypothesis descends from an entry of its sentence, else `mask_value`; no hypothesis
    descends from padding. It is added to the scores of attention.
    """

    def __init__(self, rows: int, beam: int, dtype: torch.dtype, device: torch.device):
        self.beam = beam
        self.mask = torch.empty(rows // beam, beam, 0, dtype=dtype, device=device)
        self.length = 0  # the number of positions
        self.room = FIRST_ROOM * beam  # entries of a sentence
        self.kept = torch.empty(rows // beam, 0, dtype=torch.long, device=device)  # [B, N]: by the last removal
        self.removals = 0
        self.reorderings = 0
        self.together = True  # whether the last reordering kept the hypotheses of each sentence together
        self.sources = torch.empty(0)  # the sentence [B' K] that each row came from in the last reordering
        self.moved: Tensor | None = None  # the same for each sentence [B'], None if no sentence moved
        self._positions = self.kept  # [B, N]: those of the entries that the last removal kept
        self._own = own_entries(beam, dtype, device)

    def extend(self, padding: Tensor | None) -> None:
        """Add a position, at which every hypothesis writes one entry; `padding` [B K, 1] is true on padding."""
        if self.mask.size(2) + self.beam > self.room:
            self._remove_entries()
        own = self._own.expand(self.mask.size(0), -1, -1)
        if padding is not None:
            own = own.masked_fill(padding.bool().view(-1, self.beam, 1), mask_value(own.dtype))
        self.mask = torch.cat([self.mask, own], dim=2)
        self.length += 1

    @property
    def positions(self) -> Tensor:
        """Positions of the entries, [B, N]; entries of later positions come later."""
        kept = self._positions
        new = (self.mask.size(2) - kept.size(1)) // self.beam
        positions = torch.arange(self.length - new, self.length, device=kept.device).repeat_interleave(self.beam)
        return torch.cat([kept, positions.expand(kept.size(0), -1)], 1)

    def _remove_entries(self) -> None:
        """Remove the entries from which no hypothesis descends, and double the room if more than 3/4 of it stays full.

        All sentences keep the same number of entries: that of the sentence that needs most.
        """
        needed = self.mask.eq(0).any(1)
        number = int(needed.sum(1).max())
        self.kept = needed.logical_not().byte().argsort(dim=1, stable=True)[:, :number].sort(1).values
        self._positions = self.positions.gather(1, self.kept)
        self.mask = self.mask.gather(2, self.kept[:, None].expand(-1, self.beam, -1))
        if 4 * number > 3 * self.room:
            self.room *= 2
        self.removals += 1

    def reorder(self, new_order: Tensor) -> None:
        """Reorder hypotheses: row i of the B' K rows continues row `new_order[i]`."""
        self.sources = new_order // self.beam
        sources = self.sources.cpu()  # on a GPU, a check there would take longer and wait as long
        first = sources[:: self.beam]
        self.together = len(sources) % self.beam == 0 and torch.equal(first.repeat_interleave(self.beam), sources)
        stays = torch.equal(first, torch.arange(self.mask.size(0)))
        self.moved = None if stays else self.sources[:: self.beam]
        rows = self.mask.flatten(0, 1).index_select(0, new_order)
        self.mask = rows.unflatten(0, (-1, self.beam)) if self.together else rows[:, None]
        if self.together and self.moved is not None:
            self._positions = self._positions.index_select(0, self.moved)
        self.reorderings += 1

    def by_position(self, weights: Tensor) -> Tensor:
        """Sum attention weights on entries [B, H, K, N] for each position: [B, H, K, S]."""
        sums = weights.new_zeros(*weights.shape[:3], self.length)
        return sums.scatter_add_(3, self.positions[:, None, None].expand_as(weights), weights)

    def entries(self) -> Tensor:
        """Return the entry of each position for every row after the last reordering: [B' K, S], -1 for padding."""
        found = self.sources.new_full((len(self.sources), self.length), -1)
        row, entry = self.mask.flatten(0, 1).eq(0).nonzero(as_tuple=True)
        found[row, self.positions[self.sources[row], entry]] = entry
        return found


class BeamCache:
    """Keys and values of one attention layer in beam search, [B, H, N, D] each, or [B, H, S, D] of the encoder."""

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

    def plain(self) -> dict[str, Tensor | None]:
        """Return fairseq's cache after the last reordering: [B' K, H, S, D], separate for every hypothesis."""
        raise NotImplementedError

    def _select(self, sentences: Tensor) -> None:
        raise NotImplementedError


class StepCache(BeamCache):
    """Cache of self-attention: K entries of each sentence at every step."""

    def __init__(self, beams: Beams):
        super().__init__(beams)
        self._length = 0  # positions
        self._removals = 0
        self._keys = self._values = torch.empty(0)

    @classmethod
    def filled(cls, beams: Beams, keys: Tensor, values: Tensor) -> StepCache:
        """Return a cache with the entries of all positions of `beams`: keys and values [B, H, room, D]."""
        cache = cls(beams)
        cache._length, cache._keys, cache._values = beams.length, keys, values
        return cache

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Append `k` and `v` [B, H, K, D]. Return all keys and values [B, H, N, D] and the additive mask."""
        if self.beams.length == self._length:  # the first layer of a step extends the table for all
            self.beams.extend(padding)
        if not self._length:
            self._keys, self._values = self._empty(k), self._empty(v)
        elif self._removals < self.beams.removals:
            self._keys, self._values = self._kept(self._keys), self._kept(self._values)
            self._removals = self.beams.removals
        self._length += 1
        keys, values = self.tensors()
        keys[:, :, -self.beams.beam :], values[:, :, -self.beams.beam :] = k, v
        return keys, values, self.beams.mask[:, None]

    def _empty(self, like: Tensor) -> Tensor:
        """Return room for the entries of all sentences."""
        return like.new_empty(*like.shape[:2], self.beams.room, like.size(3))

    def _kept(self, cache: Tensor) -> Tensor:
        """Return the entries that the last removal kept, with room for more."""
        batch, heads, room, size = cache.shape
        first = room * torch.arange(batch * heads, device=cache.device).view(batch, heads, 1)
        rows = first + self.beams.kept[:, None]  # of all sentences and heads, one after another: faster than `gather`
        kept = cache.view(-1, size).index_select(0, rows.view(-1)).view(batch, heads, -1, size)
        cache = cache if room == self.beams.room else self._empty(cache)
        cache[:, :, : kept.size(2)] = kept
        return cache

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of all entries, [B, H, N, D]."""
        entries = self.beams.mask.size(2)
        return self._keys[:, :, :entries], self._values[:, :, :entries]

    def plain(self) -> dict[str, Tensor | None]:
        """Return fairseq's cache after the last reordering: [B' K, H, S, D], separate for every hypothesis."""
        entries = self.beams.entries()
        rows, at = self.beams.sources[:, None], entries.clamp(min=0)
        keys, values = (x[rows, :, at].transpose(1, 2) for x in self.tensors())
        padding = entries < 0
        return {"prev_key": keys, "prev_value": values, "prev_key_padding_mask": padding if padding.any() else None}

    def _select(self, sentences: Tensor) -> None:
        self._keys, self._values = self._keys.index_select(0, sentences), self._values.index_select(0, sentences)


class EncoderCache(BeamCache):
    """Cache of attention to the encoder: `keys` and `values` [B, H, S, D], constant.

    `mask` [B, 1, 1, S] is added to the scores: `mask_value` on padding, else 0; it is None without padding.
    """

    def __init__(self, beams: Beams, keys: Tensor, values: Tensor, mask: Tensor | None):
        super().__init__(beams)
        self.keys, self.values, self.mask = keys, values, mask

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the keys and the values, [B, H, S, D]."""
        return self.keys, self.values

    def plain(self) -> dict[str, Tensor | None]:
        """Return fairseq's cache after the last reordering: [B' K, H, S, D], separate for every hypothesis."""
        self._select(self.beams.sources)
        padding = None if self.mask is None else self.mask[:, 0, 0] < 0
        return {"prev_key": self.keys, "prev_value": self.values, "prev_key_padding_mask": padding}

    def _select(self, sentences: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, sentences), self.values.index_select(0, sentences)
        self.mask = None if self.mask is None else self.mask.index_select(0, sentences)


def own_entries(beam: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the mask [K, K] of the entries that K hypotheses write at one position: each descends from its own."""
    others = ~torch.eye(beam, dtype=torch.bool, device=device)
    return torch.zeros(beam, beam, dtype=dtype, device=device).masked_fill_(others, mask_value(dtype))


def mask_value(dtype: torch.dtype) -> float:
    """Return the number that is added to the score of a masked position; its exponential is 0.

    It is finite, so that a fully masked row gives no NaN, and half of the smallest number, so that adding a score does
    not overflow.
    """
    return torch.finfo(dtype).min / 2


def padding_mask(padding: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask [B, 1, 1, S] that is added to scores; `padding` [B, S] is true on padding."""
    mask = torch.zeros(padding.shape, dtype=dtype, device=padding.device)
    return mask.masked_fill_(padding, mask_value(dtype))[:, None, None]


def repeated(states: Tensor, beam: int) -> bool:
    """Return whether encoder states [S, B K, E] are those of B sentences, repeated for K hypotheses each."""
    rows = states.size(1)
    return rows % beam == 0 and torch.equal(states[:, ::beam].repeat_interleave(beam, dim=1), states)
