"""HeadAttention: one multi-head attention in which every head can be gated, fixed or looked at.

fairseq's own module hands the whole computation to one torch function, so no head can be reached from outside.
`use_head_attention` swaps it, after a stock model is built, for a module with the same parameters under the same
names. Shapes: T target length, S source length, B batch, H heads, D head size, E model size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_headgates.gates import OPEN, HardConcrete, HeadGates
from fairseq_headgates.heads import TYPES, HeadTable, check_shape

L0_REDUCTIONS = ("sum", "layer-mean")  # Voita et al. 2019: the paper; its released code


class HeadAttention(MultiheadAttention):
    """MultiHead(Q, K, V) = Concat_i(g_i head_i) W_O (Voita et al. 2019, eq. 4), with fairseq's interface and cache.

    Takes over the projections of a stock attention. `gate` holds stochastic gates or is None; `head_mask` [H] fixes
    heads (1 alive, 0 removed) or is None. Without either it computes what the stock module computes.
    """

    def __init__(self, stock: MultiheadAttention):
        # The stock constructor would make (and randomly initialise) projections; these come from `stock`.
        super(MultiheadAttention, self).__init__(None)
        self.embed_dim, self.kdim, self.vdim = stock.embed_dim, stock.kdim, stock.vdim
        self.qkv_same_dim, self.scaling = stock.qkv_same_dim, stock.scaling
        self.num_heads, self.head_dim = stock.num_heads, stock.head_dim
        self.self_attention = stock.self_attention
        self.encoder_decoder_attention = stock.encoder_decoder_attention
        self.dropout_module = stock.dropout_module
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            stock.q_proj,
            stock.k_proj,
            stock.v_proj,
            stock.out_proj,
        )
        self.beam_size = stock.beam_size
        self.onnx_trace = False
        self.init_incremental_state()
        self.gate: HeadGates | None = None
        # Not in the state dict: which heads are alive is an option of the model, not a weight.
        self.register_buffer("head_mask", None, persistent=False)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of `query` [T, B, E] over `key` and `value` [S, B, E'].

        `key_padding_mask` [B, S] is true on padding; `attn_mask` [T, S] is added to the scores. Returns the output
        [T, B, E] and the attention weights: [B, T, S] averaged over heads if `need_weights`, [H, B, T, S] if
        `need_head_weights`, else None. With `static_kv` keys and values are taken from the cache if it has them.
        """
        if before_softmax:
            raise NotImplementedError("HeadAttention returns no scores before the softmax: use need_head_weights")
        batch = query.size(1)
        q = self._split(self.q_proj(query))
        k, v, key_padding_mask = self._keys_values(query, key, value, key_padding_mask, incremental_state, static_kv)
        beam = batch // k.size(0)  # above 1 in beam search over cached encoder states, stored once per sentence
        if beam > 1:
            q = _beam_into_time(q, beam)
        mask = _additive_mask(attn_mask, key_padding_mask, q)
        if need_weights or need_head_weights:
            weights = _attention_weights(q, k, mask, self.scaling)
            context = self.dropout_module(weights).to(v) @ v
        else:
            weights = None
            context = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=self._dropout(), scale=self.scaling)
        if beam > 1:
            context = _time_into_beam(context, beam)
            weights = None if weights is None else _time_into_beam(weights, beam)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self._project(context), weights

    def head_scale(self) -> Tensor | None:
        """What each head's context is multiplied by: [H], or None where that is 1 for every head."""
        if self.gate is None:
            return self.head_mask
        gates = self.gate()
        return gates if self.head_mask is None else gates * self.head_mask

    def _project(self, context: Tensor) -> Tensor:
        """Concat_i(g_i head_i) W_O: [B, H, T, D] -> [T, B, E]."""
        scale = self.head_scale()
        merged = context.permute(2, 0, 1, 3).reshape(context.size(2), context.size(0), -1)
        if scale is None:
            return self.out_proj(merged)
        per_column = scale.to(context.dtype).repeat_interleave(self.head_dim)
        weight, bias = self.out_proj.weight, self.out_proj.bias
        # g_i head_i W_O,i = head_i (g_i W_O,i): scale whichever of the two is smaller.
        if merged.numel() < weight.numel():
            return F.linear(merged * per_column, weight, bias)
        return F.linear(merged, weight * per_column, bias)

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, H D] -> [B, H, T, D]."""
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _dropout(self) -> float:
        module = self.dropout_module
        return module.p if self.training or module.apply_during_inference else 0.0

    def _keys_values(self, query, key, value, key_padding_mask, incremental_state, static_kv):
        """Keys and values [B', H, S, D], from the input and the cache, and the padding mask [B', S] that fits them.

        B' is B, or B / beam where beam search keeps one copy of the encoder states per sentence.
        """
        saved = self._get_input_buffer(incremental_state)
        if static_kv and "prev_key" in saved:
            return saved["prev_key"], saved["prev_value"], _as_bool(saved.get("prev_key_padding_mask"))
        if self.self_attention:
            key = value = query
        elif self.encoder_decoder_attention and incremental_state is not None and self.beam_size > 1:
            key, value, key_padding_mask = self._one_per_sentence(query, key, value, key_padding_mask)
        k, v = self._split(self.k_proj(key)), self._split(self.v_proj(value))
        if incremental_state is None:
            return k, v, _as_bool(key_padding_mask)
        if "prev_key" in saved:
            k, v = torch.cat([saved["prev_key"], k], dim=2), torch.cat([saved["prev_value"], v], dim=2)
        key_padding_mask = self._append_prev_key_padding_mask(
            key_padding_mask, saved.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv
        )
        saved.update(prev_key=k, prev_value=v, prev_key_padding_mask=key_padding_mask)
        self._set_input_buffer(incremental_state, saved)
        return k, v, _as_bool(key_padding_mask)

    def _one_per_sentence(self, query, key, value, key_padding_mask):
        """Encoder states repeated for every hypothesis of a beam, reduced to one copy."""
        if key.size(1) == query.size(1):
            key, value = key[:, :: self.beam_size], value[:, :: self.beam_size]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[:: self.beam_size]
        return key, value, key_padding_mask

    def upgrade_state_dict_named(self, state_dict, name):
        """A checkpoint without gates (a stock one) leaves them as they were initialised.

        Raises ValueError for a checkpoint with gates that this model does not have.
        """
        super().upgrade_state_dict_named(state_dict, name)
        if self.gate is None and f"{name}.gate.log_alpha" in state_dict:
            kind, _ = kind_and_layer(name)
            raise ValueError(f"the checkpoint has gates on {kind}, the model has none: add {kind} to --gate-heads")
        if self.gate is not None:
            state_dict.setdefault(f"{name}.gate.log_alpha", self.gate.state_dict()["log_alpha"])


def _as_bool(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.bool()


def _additive_mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """One mask to add to the scores, broadcastable to [B, H, T, S], or None.

    It is finite, so that a row in which everything is masked gives no NaN; half of the smallest number, so that
    adding a score to it does not overflow. exp() of it is 0 all the same.
    """
    lowest = torch.finfo(q.dtype).min / 2
    mask = None if attn_mask is None else attn_mask.to(q.dtype).clamp(min=lowest)
    if key_padding_mask is None:
        return mask
    padding = key_padding_mask[:, None, None, :]
    if mask is None:
        return torch.zeros_like(padding, dtype=q.dtype).masked_fill_(padding, lowest)
    return mask.expand(padding.size(0), 1, *mask.shape).masked_fill(padding, lowest)


def _attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """softmax(Q K^T / sqrt(D)) in single precision at least: [B, H, T, S]."""
    scores = (q * scaling) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores + mask
    return F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _beam_into_time(x: Tensor, beam: int) -> Tensor:
    """[B beam, H, T, D] -> [B, H, beam T, D]: the hypotheses of one sentence are queries on the same keys."""
    _, heads, length, size = x.shape
    return x.reshape(-1, beam, heads, length, size).transpose(1, 2).reshape(-1, heads, beam * length, size)


def _time_into_beam(x: Tensor, beam: int) -> Tensor:
    """[B, H, beam T, D] -> [B beam, H, T, D]."""
    batch, heads, length, size = x.shape
    return x.reshape(batch, heads, beam, length // beam, size).transpose(1, 2).reshape(batch * beam, heads, -1, size)


@dataclass(frozen=True)
class HeadSite:
    """One attention layer of a model: its type, its layer (from 0), its name, and the module."""

    kind: str
    layer: int
    name: str
    attention: MultiheadAttention


def head_sites(model: nn.Module) -> list[HeadSite]:
    """All attention layers of a fairseq model, stock or ours, ordered by type and layer."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, MultiheadAttention))
    sites = [HeadSite(*kind_and_layer(name), name, module) for name, module in found]
    return sorted(sites, key=lambda site: site_order((site.kind, site.layer)))


def kind_and_layer(name: str) -> tuple[str, int]:
    """'decoder.layers.3.encoder_attn' -> ('dec-enc', 3): fairseq names its attention alike in every architecture."""
    layer = re.findall(r"(?:^|\.)layers\.(\d+)\.", name)
    if name.endswith("encoder_attn"):
        kind = "dec-enc"
    else:
        kind = "dec-self" if re.search(r"(^|\.)decoder\.", name) else "enc-self"
    return kind, int(layer[-1]) if layer else 0


def site_order(site: tuple) -> tuple[int, int]:
    """Sorts (type, layer, ...) by type, in the order of `TYPES`, and layer."""
    return TYPES.index(site[0]), site[1]


def head_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """{type: (layers, heads per layer)} of the attention types that the model has."""
    sites = head_sites(model)
    return {
        kind: (len(group), group[0].attention.num_heads)
        for kind in TYPES
        if (group := [site for site in sites if site.kind == kind])
    }


def use_head_attention(model: nn.Module) -> nn.Module:
    """Swaps every fairseq attention of `model` for a `HeadAttention` with the same weights, in place.

    Raises ValueError, with every reason at once, for attention that cannot be expressed.
    """
    sites = [site for site in head_sites(model) if not isinstance(site.attention, HeadAttention)]
    reasons = sorted({reason for site in sites for reason in _unsupported(site.attention)})
    if reasons:
        raise ValueError("attention with " + ", ".join(reasons) + " cannot be gated: build the model without it")
    for site in sites:
        parent, _, child = site.name.rpartition(".")
        layer = model.get_submodule(parent)
        setattr(layer, child, HeadAttention(site.attention))
        if hasattr(layer, "can_use_fastpath"):  # fairseq 0.12.2: an inference shortcut around self_attn
            layer.can_use_fastpath = False
    return model


def _unsupported(attention: MultiheadAttention) -> Iterator[str]:
    if getattr(attention, "bias_k", None) is not None or getattr(attention, "add_zero_attn", False):
        yield "extra key/value positions (bias_k, add_zero_attn)"
    if getattr(attention, "use_xformers", False):
        yield "xFormers (--encoder-xformers-att-config)"
    if attention.out_proj._forward_pre_hooks:
        yield "quantisation noise (--quant-noise-pq)"


def insert_gates(
    model: nn.Module,
    types: Sequence[str],
    distribution: HardConcrete | None = None,
    init: float | str = OPEN,
    lr_scale: float = 1.0,
) -> nn.Module:
    """Gives every head of the attention `types` a stochastic gate, in place; see `gates.HeadGates`.

    Raises ValueError if the model has no attention of one of the types.
    """
    use_head_attention(model)
    sites = head_sites(model)
    present = {site.kind for site in sites}
    for kind in types:
        if kind not in present:
            raise ValueError(f"no {kind} attention to gate: this model has {', '.join(sorted(present)) or 'none'}")
    for site in sites:
        if site.kind in types:
            attention = site.attention
            gates = HeadGates(attention.num_heads, distribution or HardConcrete(), init, lr_scale)
            attention.gate = gates.to(attention.out_proj.weight)
    return model


def fix_heads(model: nn.Module, mask: HeadTable) -> nn.Module:
    """Multiplies each head by its value in `mask` (1 alive, 0 removed), in place. ValueError for another shape."""
    use_head_attention(model)
    check_shape(mask, head_counts(model))
    for site in head_sites(model):
        if site.kind in mask.values:
            weight = site.attention.out_proj.weight
            row = mask.values[site.kind][site.layer]
            site.attention.head_mask = torch.tensor(row, dtype=weight.dtype, device=weight.device)
    return model


@contextmanager
def masked(model: nn.Module, mask: HeadTable) -> Iterator[nn.Module]:
    """Within the context, heads with 0 in `mask` contribute nothing (on top of gates and fixed heads)."""
    use_head_attention(model)
    attentions = [site.attention for site in head_sites(model)]
    before = [attention.head_mask for attention in attentions]
    try:
        fix_heads(model, mask)
        for attention, old in zip(attentions, before, strict=True):
            if old is not None and attention.head_mask is not old:
                attention.head_mask = attention.head_mask * old
        yield model
    finally:
        for attention, old in zip(attentions, before, strict=True):
            attention.head_mask = old


def gated_sites(model: nn.Module) -> list[HeadSite]:
    """The attention layers that have stochastic gates."""
    return [site for site in head_sites(model) if getattr(site.attention, "gate", None) is not None]


def gate_values(model: nn.Module) -> dict[str, Tensor]:
    """The evaluation gate of every head: {type: [L, H]} in [0, 1]; 1 for a head without a gate, 0 for a removed one."""
    return _per_type(model, lambda gate: gate.distribution.evaluation_value(gate.log_alpha()))


def open_probabilities(model: nn.Module) -> dict[str, Tensor]:
    """P(gate != 0) of every head: {type: [L, H]} in [0, 1]; 1 for a head without a gate, 0 for a removed one."""
    return _per_type(model, HeadGates.open_probability)


def _per_type(model: nn.Module, of_gate) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for site in head_sites(model):
            attention = site.attention
            gate, mask = getattr(attention, "gate", None), getattr(attention, "head_mask", None)
            row = (
                torch.ones(attention.num_heads, device=attention.out_proj.weight.device)
                if gate is None
                else of_gate(gate)
            )
            rows.setdefault(site.kind, []).append(row if mask is None else row * mask)
    return {kind: torch.stack(group) for kind, group in rows.items()}


def to_tables(tensors: Mapping[str, Tensor], name: str, signature: str = "") -> HeadTable:
    """{type: [L, H]} as a `HeadTable`."""
    return HeadTable({kind: tensor.tolist() for kind, tensor in tensors.items()}, name, signature)


def l0_penalty(model: nn.Module, reduction: str = "sum") -> Tensor:
    """L_C = sum over gated heads of P(gate != 0) (Voita et al. 2019, eq. 7), with its gradient.

    `reduction="layer-mean"` divides by the number of gated attention layers, as the paper's released code does.
    Raises ValueError if the model has no gates.
    """
    return penalty_of([site.attention.gate for site in gated_sites(model)], reduction)


def penalty_of(gates: Sequence[HeadGates], reduction: str = "sum") -> Tensor:
    """`l0_penalty` of gates found before."""
    if not gates:
        raise ValueError("the model has no stochastic gates: train it with --gate-heads, e.g. --gate-heads enc-self")
    if reduction not in L0_REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}: choose from {', '.join(L0_REDUCTIONS)}")
    # One operation for the gates of all layers: many tiny ones would cost more than the gates themselves.
    groups: dict[HardConcrete, list[Tensor]] = {}
    for gate in gates:
        groups.setdefault(gate.distribution, []).append(gate.log_alpha())
    total = torch.stack([kind.open_probability(torch.cat(group)).sum() for kind, group in groups.items()]).sum()
    return total / len(gates) if reduction == "layer-mean" else total
