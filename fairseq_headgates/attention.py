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

from fairseq_headgates.beam import BeamCache, Beams, EncoderCache, StepCache, lowest, repeated
from fairseq_headgates.gates import OPEN, HardConcrete, HeadGates
from fairseq_headgates.heads import TYPES, HeadTable, check_shape
from fairseq_headgates.inference import FromParameters, InferenceLinear

L0_REDUCTIONS = ("sum", "layer-mean")  # Voita et al. 2019: the paper; its released code


class HeadAttention(MultiheadAttention):
    """MultiHead(Q, K, V) = Concat_i(g_i head_i) W_O (Voita et al. 2019, eq. 4), with fairseq's interface.

    Takes over the projections of a stock attention. `gate` holds stochastic gates or is None; `head_mask` [H] fixes
    heads (1 alive, 0 removed) or is None. Without either it computes what the stock module computes.

    Heads may be missing: `kept` are those that have weights, by their number in the model as it was trained, where
    there were `heads`; H is `num_heads` = len(kept). A layer without any has no q, k and v projection and returns the
    bias of its output projection.
    """

    def __init__(self, stock: MultiheadAttention):
        # The stock constructor would make (and randomly initialise) projections; these come from `stock`.
        super(MultiheadAttention, self).__init__(None)
        self.embed_dim, self.kdim, self.vdim = stock.embed_dim, stock.kdim, stock.vdim
        self.qkv_same_dim, self.scaling = stock.qkv_same_dim, stock.scaling
        self.num_heads, self.head_dim = stock.num_heads, stock.head_dim
        self.heads, self.kept = stock.num_heads, tuple(range(stock.num_heads))
        self.self_attention = stock.self_attention
        self.encoder_decoder_attention = stock.encoder_decoder_attention
        self.dropout_module = stock.dropout_module
        # In the stock module's order: optimisers know parameters by their number.
        self.k_proj, self.v_proj, self.q_proj = stock.k_proj, stock.v_proj, stock.q_proj
        self.out_proj = stock.out_proj
        self.beam_size = stock.beam_size
        self.onnx_trace = False
        self.init_incremental_state()
        self.gate: HeadGates | None = None
        # Not in the state dict: which heads are alive is an option of the model, not a weight.
        self.register_buffer("head_mask", None, persistent=False)
        self._prepared = False  # for inference, by fairseq's call
        self._in_proj: InferenceLinear | None = None  # q, k and v as one
        self._constant_gates = FromParameters()
        self.train(stock.training)

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
        A layer without heads gives weights of 0, for one head, so that a mean over heads is defined.
        """
        if before_softmax:
            raise NotImplementedError("HeadAttention returns no scores before the softmax: use need_head_weights")
        need_weights = need_weights or need_head_weights
        if self.num_heads == 0:
            return self._bias(query, key), self._no_weights(query, key, need_head_weights) if need_weights else None
        q, k, v = self._project_in(query, key, value, incremental_state, static_kv)
        k, v, mask = self._keys_values(q, k, v, key_padding_mask, attn_mask, incremental_state, static_kv)
        beam = q.size(1) // k.size(0)  # above 1 in beam search: the hypotheses of a sentence read the same keys
        q = self._split(q, beam)
        weights = None
        # On a CPU the fused kernel takes two to four times as long as the formula; but it is what fairseq trains with.
        if not need_weights and (q.is_cuda or (incremental_state is None and not self._prepared)):
            mask = _additive(mask, q.dtype)
            context = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=self._dropout(), scale=self.scaling)
        else:
            weights = _attention_weights(q, k, mask, self.scaling)
            context = self.dropout_module(weights).to(v) @ v
        if need_weights and self.self_attention and beam > 1:  # one key for every slot of a position: see beam.py
            weights = weights.unflatten(-1, (-1, beam)).sum(-1)
        weights = _per_hypothesis(weights, beam, need_head_weights) if need_weights else None
        return self._project_out(self._merge(context, beam)), weights

    def head_scale(self) -> Tensor | None:
        """What each head's context is multiplied by: [H], or None where that is 1 for every head."""
        if self.gate is None:
            return self.head_mask
        constant = self._prepared and not torch.is_grad_enabled()
        gates = self._inference_gates() if constant else self.gate()
        return gates if self.head_mask is None else gates * self.head_mask

    def make_generation_fast_(self, **kwargs) -> None:
        """fairseq's call before inference, after which a model is not trained any more.

        Gates become constants, and self-attention computes q, k and v in one multiplication.
        """
        self._prepared = True
        if self.self_attention and self.num_heads:
            self._in_proj = InferenceLinear([self.q_proj, self.k_proj, self.v_proj])

    def _inference_gates(self) -> Tensor:
        """The evaluation gates, computed once and again when their parameter has changed."""
        gate = self.gate
        return self._constant_gates.get(
            lambda: [gate.theta], lambda: gate.distribution.evaluation_value(gate.log_alpha())
        )

    def _project_in(self, query, key, value, incremental_state, static_kv):
        """q [T, B, H D], k and v [S, B', H D]; k and v are None where the cache has them.

        B' is B, or B / beam where beam search has repeated the encoder states for every hypothesis of a sentence.
        """
        if self.self_attention:
            if self._in_proj is not None and not torch.is_grad_enabled():
                return self._in_proj(query).chunk(3, dim=-1)
            key = value = query
        elif static_kv and self._is_cached(incremental_state):
            return self.q_proj(query), None, None
        elif static_kv and self._searches_beams(query, incremental_state) and repeated(key, self.beam_size):
            key, value = key[:, :: self.beam_size], value[:, :: self.beam_size]
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def _keys_values(self, q, k, v, key_padding_mask, attn_mask, incremental_state, static_kv):
        """All keys and values [B', H, S, D], those of the cache included, and the mask that fits them (see `_mask`)."""
        if incremental_state is None:
            return self._split(k), self._split(v), _mask(attn_mask, key_padding_mask, q.dtype)
        if static_kv:
            if k is not None:
                self._cache_encoder(q, k, v, key_padding_mask, incremental_state)
            k, v, key_padding_mask = self._cached_encoder(incremental_state)
            return k, v, _mask(attn_mask, key_padding_mask, q.dtype)
        cache = self._step_cache(q, attn_mask, incremental_state)
        if cache is not None:
            beam = self.beam_size
            return cache.append(self._split(k, beam), self._split(v, beam), key_padding_mask)
        saved = self._get_input_buffer(incremental_state)
        k, v = self._split(k), self._split(v)
        if "prev_key" in saved:
            k, v = torch.cat([saved["prev_key"], k], dim=2), torch.cat([saved["prev_value"], v], dim=2)
        key_padding_mask = self._append_prev_key_padding_mask(
            key_padding_mask, saved.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv
        )
        saved.update(prev_key=k, prev_value=v, prev_key_padding_mask=key_padding_mask)
        self._set_input_buffer(incremental_state, saved)
        return k, v, _mask(attn_mask, key_padding_mask, q.dtype)

    def _is_cached(self, incremental_state) -> bool:
        return bool(self._beam_cache(incremental_state) or self._get_input_buffer(incremental_state))

    def _beam_cache(self, incremental_state) -> BeamCache | None:
        return self.get_incremental_state(incremental_state, "beam_cache")

    def _searches_beams(self, query: Tensor, incremental_state) -> bool:
        """Whether `query` [T, B, E] is one step of a beam search."""
        step = incremental_state is not None and query.size(0) == 1
        return step and self.beam_size > 1 and query.size(1) % self.beam_size == 0

    def _beams(self, q: Tensor, incremental_state: dict) -> Beams:
        """The one object that all layers of a decoder share in a search, so that its name is not the layer's."""
        if "beams" not in incremental_state:
            incremental_state["beams"] = Beams(q.size(1), self.beam_size, q.device)
        return incremental_state["beams"]

    def _step_cache(self, q: Tensor, attn_mask: Tensor | None, incremental_state: dict) -> StepCache | None:
        """The cache of self-attention in beam search; None where fairseq's own has to serve."""
        cache = self._beam_cache(incremental_state)
        if cache is not None or self._get_input_buffer(incremental_state):
            return cache
        if not self._searches_beams(q, incremental_state) or not self.self_attention or attn_mask is not None:
            return None
        if torch.is_grad_enabled():  # a StepCache is written in place, which a backward pass would not survive
            return None
        cache = StepCache(self._beams(q, incremental_state))
        self.set_incremental_state(incremental_state, "beam_cache", cache)
        return cache

    def _cache_encoder(self, q, k, v, key_padding_mask, incremental_state) -> None:
        repeats = q.size(1) // k.size(1)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[::repeats].bool()
            key_padding_mask = key_padding_mask if key_padding_mask.any() else None
        k, v = self._split(k).contiguous(), self._split(v).contiguous()  # every step reads them
        if repeats > 1:
            cache = EncoderCache(self._beams(q, incremental_state), k, v, key_padding_mask)
            self.set_incremental_state(incremental_state, "beam_cache", cache)
        else:
            saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
            self._set_input_buffer(incremental_state, saved)

    def _cached_encoder(self, incremental_state) -> tuple[Tensor, Tensor, Tensor | None]:
        cache = self._beam_cache(incremental_state)
        if cache is not None:
            return cache.keys, cache.values, cache.padding
        saved = self._get_input_buffer(incremental_state)
        return saved["prev_key"], saved["prev_value"], saved.get("prev_key_padding_mask")

    def reorder_incremental_state(self, incremental_state, new_order):
        """Follows beam search: row i of the batch continues what was row `new_order[i]`."""
        cache = self._beam_cache(incremental_state)
        if cache is not None:
            if not cache.reorder(new_order):
                self._set_input_buffer(incremental_state, cache.plain())
                self.set_incremental_state(incremental_state, "beam_cache", None)
            return incremental_state
        saved = self._get_input_buffer(incremental_state)
        for name, tensor in saved.items():
            saved[name] = None if tensor is None else tensor.index_select(0, new_order)
        return incremental_state

    def _split(self, x: Tensor, beam: int = 1) -> Tensor:
        """[T, B beam, H D] -> [B, H, beam T, D]: the hypotheses of one sentence are queries on the same keys."""
        length, rows, _ = x.shape
        if beam == 1:
            return x.view(length, rows, self.num_heads, self.head_dim).permute(1, 2, 0, 3)
        x = x.view(length, rows // beam, beam, self.num_heads, self.head_dim).permute(1, 3, 2, 0, 4)
        return x.reshape(rows // beam, self.num_heads, beam * length, self.head_dim)

    def _merge(self, context: Tensor, beam: int) -> Tensor:
        """The reverse of `_split`: [B, H, beam T, D] -> [T, B beam, H D]."""
        batch, _, queries, _ = context.shape
        if beam == 1:
            return context.permute(2, 0, 1, 3).reshape(queries, batch, -1)
        context = context.view(batch, self.num_heads, beam, queries // beam, self.head_dim).permute(3, 0, 2, 1, 4)
        return context.reshape(queries // beam, batch * beam, -1)

    def _project_out(self, merged: Tensor) -> Tensor:
        """Concat_i(g_i head_i) W_O: [T, B, H D] -> [T, B, E]."""
        scale = self.head_scale()
        if scale is None:
            return self.out_proj(merged)
        per_column = scale.to(merged.dtype).repeat_interleave(self.head_dim)
        weight, bias = self.out_proj.weight, self.out_proj.bias
        # g_i head_i W_O,i = head_i (g_i W_O,i): scale whichever of the two is smaller.
        if merged.numel() < weight.numel():
            return F.linear(merged * per_column, weight, bias)
        return F.linear(merged, weight * per_column, bias)

    def _bias(self, query: Tensor, key: Tensor | None) -> Tensor:
        """What a layer without heads adds: the bias of its output projection, [T, B, E]."""
        nothing = query[..., :0]
        if torch.is_grad_enabled() and key is not None and not self.self_attention:
            nothing = nothing + key[:1, :, :0]
        # Through the empty projection, from the inputs, so that what is before and in this layer has gradients, if
        # zeros: distributed training waits for them.
        return self.out_proj(nothing)

    def _no_weights(self, query: Tensor, key: Tensor | None, per_head: bool) -> Tensor:
        shape = (query.size(1), query.size(0), (query if key is None else key).size(0))
        return query.new_zeros(1, *shape) if per_head else query.new_zeros(shape)

    def _dropout(self) -> float:
        module = self.dropout_module
        return module.p if self.training or module.apply_during_inference else 0.0

    def upgrade_state_dict_named(self, state_dict, name):
        """A checkpoint without gates (a stock one) leaves them as they were initialised.

        Raises ValueError for a checkpoint with gates that this model does not have, and for other heads.
        """
        super().upgrade_state_dict_named(state_dict, name)
        self._check_heads(state_dict, name)
        if self.gate is None and f"{name}.gate.log_alpha" in state_dict:
            kind, _ = kind_and_layer(name)
            raise ValueError(f"the checkpoint has gates on {kind}, the model has none: add {kind} to --gate-heads")
        if self.gate is not None:
            state_dict.setdefault(f"{name}.gate.log_alpha", self.gate.state_dict()["log_alpha"])

    def _check_heads(self, state_dict, name) -> None:
        weight = state_dict.get(f"{name}.out_proj.weight")
        if weight is None or weight.size(1) == self.out_proj.weight.size(1):
            return
        kind, layer = kind_and_layer(name)
        raise ValueError(
            f"{kind} layer {layer} has {weight.size(1) / self.head_dim:g} heads in the checkpoint and {self.num_heads} "
            "in the model: a pruned checkpoint needs its own mask (headgates show CKPT --out heads.json; --alive-heads "
            "heads.json --remove-heads), a whole one is made smaller by `headgates prune`"
        )


def _mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """One mask that broadcasts to [B, H, T, S]: true where nothing may be seen, or numbers to add to the scores."""
    padding = None if key_padding_mask is None else key_padding_mask.bool()[:, None, None, :]
    if attn_mask is None:
        return padding
    mask = attn_mask.to(dtype).clamp(min=lowest(dtype))
    return mask if padding is None else mask.expand(padding.size(0), 1, *mask.shape).masked_fill(padding, lowest(dtype))


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, lowest(dtype))


def _attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """softmax(Q K^T / sqrt(D)) in single precision at least: [B, H, T, S]."""
    scores = (q * scaling) @ k.transpose(2, 3)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(mask, lowest(scores.dtype))
    elif mask is not None:
        scores = scores + mask
    return F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _per_hypothesis(weights: Tensor, beam: int, per_head: bool) -> Tensor:
    """[B, H, beam T, S] -> [H, B beam, T, S], or their mean over heads [B beam, T, S]."""
    batch, heads, queries, positions = weights.shape
    weights = weights if per_head else weights.mean(dim=1, keepdim=True)
    weights = weights.view(batch, -1, beam, queries // beam, positions).permute(1, 0, 2, 3, 4)
    weights = weights.reshape(-1, batch * beam, queries // beam, positions)
    return weights if per_head else weights[0]


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
    """{type: (layers, heads per layer)} of the attention types that the model has, removed heads included."""
    sites = head_sites(model)
    return {
        kind: (len(group), getattr(group[0].attention, "heads", group[0].attention.num_heads))
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
        attention = site.attention
        if site.kind in types and attention.num_heads > 0:
            gates = HeadGates(attention.num_heads, distribution or HardConcrete(), init, lr_scale)
            attention.gate = gates.to(attention.out_proj.weight).train(attention.training)
    return model


def fix_heads(model: nn.Module, mask: HeadTable) -> nn.Module:
    """Multiplies each head by its value in `mask` (1 alive, 0 removed), in place. ValueError for another shape.

    Heads that were taken out of the model stay out, whatever the mask says of them.
    """
    use_head_attention(model)
    check_shape(mask, head_counts(model))
    for site in head_sites(model):
        if site.kind in mask.values:
            weight = site.attention.out_proj.weight
            row = [mask.values[site.kind][site.layer][head] for head in site.attention.kept]
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
            rows.setdefault(site.kind, []).append(_per_head(site.attention, of_gate))
    return {kind: torch.stack(group) for kind, group in rows.items()}


def _per_head(attention: MultiheadAttention, of_gate) -> Tensor:
    """A number for every head that the layer was trained with: 0 for one that was removed."""
    device = attention.out_proj.weight.device
    if not isinstance(attention, HeadAttention):
        return torch.ones(attention.num_heads, device=device)
    row = torch.zeros(attention.heads, device=device)
    alive = torch.ones(attention.num_heads, device=device) if attention.gate is None else of_gate(attention.gate)
    kept = torch.tensor(attention.kept, dtype=torch.long, device=device)
    return row.index_put((kept,), alive if attention.head_mask is None else alive * attention.head_mask.float())


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
