"""Multi-head attention whose heads can be gated, masked, removed and observed.

fairseq's module computes all heads in one torch function, without access to a single head. After fairseq has built a
model, `surgery.use_head_attention` replaces each of its attention modules by a `HeadAttention` with the same
parameters under the same names.

Shapes: T target length, S source length, B batch, H heads, D head size, E model size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_headgates.gates import HeadGates
from fairseq_headgates.heads import kind_and_layer
from fairseq_headgates.modules import packed_linear
from fairseq_headgates.modules.attention_weights import attention_weights, fused_contexts, join_masks, per_hypothesis
from fairseq_headgates.modules.beam_cache import Beams, EncoderCache, StepCache, repeated

State = dict | None  # the incremental state of a decoder


@dataclass(frozen=True)
class HeadHook:
    """Hook on the attention weights and contexts of every head of a `HeadAttention`.

    Args:
        call: called as `call(weights, context)` in every forward pass, with the attention weights [B, H, T, S] and the
            contexts [B, H, T, D] of the remaining heads, before gates. A tensor that it returns replaces the contexts.
            In beam search the hypotheses of a sentence are queries on the same keys: beam T instead of T, and S are the
            entries of the cache, see `beam_cache`.
        weights: whether `call` gets attention weights; if not, it gets None
    """

    call: Callable[[Tensor | None, Tensor], Tensor | None]
    weights: bool = False

    def __call__(self, weights: Tensor | None, context: Tensor) -> Tensor:
        """Call the hook. Return the contexts, changed or not."""
        changed = self.call(weights if self.weights else None, context)
        return context if changed is None else changed


class HeadAttention(MultiheadAttention):
    """Multi-head attention with a gate per head: Concat_i(g_i head_i) W_O (Voita et al. 2019, eq. 4).

    Its interface is that of fairseq's `MultiheadAttention`.

    Without gates, mask and removed heads it computes exactly what the stock module computes. A layer without heads has
    no query, key and value projections and returns the bias of its output projection.

    Args:
        stock: the attention module of fairseq whose projections are taken over (not copied)

    Attributes:
        gate: stochastic gates of the remaining heads, or None
        head_mask: factor [H] of each remaining head, 1 to keep and 0 to mask it, or None
        hook: `HeadHook` on attention weights and contexts, or None
        heads: number of heads that the model was trained with
        kept: numbers of the remaining heads, those with weights, from 0 to `heads` - 1; H = `num_heads` = len(kept)
        aligned: number of first heads whose attention weights fairseq takes as alignment; they are not removed
    """

    INPUTS: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj")  # parts whose rows are those of the heads

    def __init__(self, stock: MultiheadAttention):
        # The stock constructor would make (and randomly initialise) projections; these come from `stock`.
        nn.Module.__init__(self)
        self.__dict__.update({name: hooks for name, hooks in vars(stock).items() if "_hook" in name})
        self.embed_dim, self.kdim, self.vdim = stock.embed_dim, stock.kdim, stock.vdim
        self.qkv_same_dim, self.scaling = stock.qkv_same_dim, stock.scaling
        self.num_heads, self.head_dim, self.aligned = stock.num_heads, stock.head_dim, 0
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
        self.hook: HeadHook | None = None
        self._prepared = False  # for inference, by fairseq's call
        self._in_proj: packed_linear.InferenceLinear | None = None  # q, k and v as one
        self._constant_gates = packed_linear.ParameterCache()
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
        """Compute the attention of `query` over `key` and `value`.

        Args:
            query: [T, B, E]
            key: [S, B, E']; ignored in self-attention
            value: [S, B, E']; ignored in self-attention
            key_padding_mask: [B, S], true on padding
            attn_mask: [T, S], added to the scores
            incremental_state: the cache of incremental decoding
            static_kv: take keys and values from the cache if it has them
            need_weights: return attention weights averaged over heads, see `averaged_heads`
            need_head_weights: return the attention weights of every head
            before_softmax: not supported

        Returns:
            The output [T, B, E], and the attention weights: [H, B, T, S] if `need_head_weights`, [B, T, S] if
            `need_weights`, else None. Weights of a layer without heads are 0, for one head.
        """
        if before_softmax:
            raise NotImplementedError(
                "HeadAttention does not return scores before the softmax: pass need_head_weights=True"
            )
        need_weights = need_weights or need_head_weights
        if self.num_heads == 0:
            return self._bias(query, key), self._no_weights(query, key, need_head_weights) if need_weights else None
        q, k, v = self._project_in(query, key, value, incremental_state, static_kv)
        k, v, mask = self._keys_values(q, k, v, key_padding_mask, attn_mask, incremental_state, static_kv)
        beam = q.size(1) // k.size(0)  # above 1 in beam search: the hypotheses of a sentence read the same keys
        q = self._split(q, beam)
        weights: Tensor | None = None
        # On a CPU the fused kernel takes two to four times as long as the formula; but it is what fairseq trains with.
        formula = need_weights or (self.hook is not None and self.hook.weights)
        if not formula and (q.is_cuda or (incremental_state is None and not self._prepared)):
            context = fused_contexts(q, k, v, mask, self._dropout(), self.scaling)
        else:
            weights = attention_weights(q, k, mask, self.scaling)
            context = self.dropout_module(weights).to(v) @ v
        if self.hook is not None:
            context = self.hook(weights, context)
        output = self._project_out(self._merge(context, beam))
        if not need_weights or weights is None:
            return output, None
        cache = self._beam_cache(incremental_state)
        if isinstance(cache, StepCache):
            weights = cache.beams.by_position(weights)
        return output, per_hypothesis(self, weights, beam, need_head_weights)

    def output_of(self, context: Tensor) -> Tensor:
        """Return the output [T, B, E] of the layer for the contexts [B, H, T, D] of its heads."""
        return self._project_out(self._merge(context, 1))

    def head_scale(self) -> Tensor | None:
        """Return the factor on the context of every head, gate times mask: [H], or None if all are 1."""
        if self.gate is None:
            return self.head_mask
        constant = self._prepared and not torch.is_grad_enabled()
        gates = self._constant_gates.get(self.gate.read, self.gate.factor) if constant else self.gate()
        return gates if self.head_mask is None else gates * self.head_mask

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Prepare for inference: constant gates, and q, k and v of self-attention in one multiplication.

        fairseq's commands call it. Afterwards the model must not be trained. After changes of `parameter.data`, which
        torch does not count, call it again.
        """
        self._prepared = True
        self._constant_gates.forget()
        packed_linear.track_parameters(self)
        if self.self_attention and self.num_heads and self._in_proj is None:
            self._in_proj = packed_linear.join_linears(self, ["q_proj", "k_proj", "v_proj"])

    def __prepare_scriptable__(self) -> None:
        """Refuse TorchScript, which calls it first."""
        raise ValueError("TorchScript cannot compile HeadAttention: use torch.compile, or the model of `prune --stock`")

    def _project_in(
        self, query: Tensor, key: Any, value: Any, incremental_state: State, static_kv: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return q [T, B, H D], k and v [S, B', H D]; k and v are None if the cache has them.

        B' is B, or B / beam if beam search has repeated the encoder states for every hypothesis of a sentence.
        """
        if self.self_attention:
            if self._in_proj is not None and not torch.is_grad_enabled():
                q, k, v = self._in_proj(query).chunk(3, dim=-1)
                return q, k, v
            key = value = query
        elif static_kv and self._is_cached(incremental_state):
            return self.q_proj(query), None, None
        elif static_kv and self._is_repeated(query, key, incremental_state):
            key, value = key[:, :: self.beam_size], value[:, :: self.beam_size]
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def _keys_values(
        self,
        q: Tensor,
        k: Any,
        v: Any,
        key_padding_mask: Any,
        attn_mask: Any,
        incremental_state: State,
        static_kv: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return all keys and values [B', H, S, D], including the cache, and their mask (see `join_masks`)."""
        if incremental_state is None:
            return self._split(k), self._split(v), join_masks(attn_mask, key_padding_mask, q.dtype)
        if static_kv:
            if k is not None:
                self._cache_encoder(q, k, v, key_padding_mask, incremental_state)
            k, v, key_padding_mask = self._cached_encoder(incremental_state)
            return k, v, join_masks(attn_mask, key_padding_mask, q.dtype)
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
        return k, v, join_masks(attn_mask, key_padding_mask, q.dtype)

    def _is_cached(self, incremental_state: State) -> bool:
        return bool(self._beam_cache(incremental_state) or self._get_input_buffer(incremental_state))

    def _beam_cache(self, incremental_state: State) -> Any:  # StepCache, EncoderCache or None
        return self.get_incremental_state(incremental_state, "beam_cache")

    def _searches_beams(self, query: Tensor, incremental_state: State) -> bool:
        """Return whether `query` [T, B, E] is one step of a beam search."""
        step = incremental_state is not None and query.size(0) == 1
        return step and self.beam_size > 1 and query.size(1) % self.beam_size == 0

    def _is_repeated(self, query: Tensor, key: Any, incremental_state: State) -> bool:
        """Return whether beam search has repeated the encoder states `key` for every hypothesis; BART's does not."""
        rows = self._searches_beams(query, incremental_state) and key.size(1) == query.size(1)
        return rows and repeated(key, self.beam_size)

    def _beams(self, q: Tensor, incremental_state: dict) -> Beams:
        """Return the object that all layers of a decoder share in a search; its name is the same for all layers."""
        if "beams" not in incremental_state:
            incremental_state["beams"] = Beams(q.size(1), self.beam_size, q.device)
        return incremental_state["beams"]

    def _step_cache(self, q: Tensor, attn_mask: Tensor | None, incremental_state: dict) -> StepCache | None:
        """Return the cache of self-attention in beam search; None if fairseq's cache must be used."""
        cache = self._beam_cache(incremental_state)
        if cache is not None or self._get_input_buffer(incremental_state):
            return cache
        if not self._searches_beams(q, incremental_state) or not self.self_attention or attn_mask is not None:
            return None
        if torch.is_grad_enabled():  # a StepCache is written in place, which breaks a backward pass
            return None
        cache = StepCache(self._beams(q, incremental_state))
        self.set_incremental_state(incremental_state, "beam_cache", cache)
        return cache

    def _cache_encoder(
        self, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, incremental_state: dict
    ) -> None:
        repeats = q.size(1) // k.size(1)
        if key_padding_mask is not None:
            # BART repeats neither encoder states nor their mask.
            key_padding_mask = key_padding_mask[:: key_padding_mask.size(0) // k.size(1)].bool()
            key_padding_mask = key_padding_mask if key_padding_mask.any() else None
        k, v = self._split(k).contiguous(), self._split(v).contiguous()  # every step reads them
        if repeats > 1:
            cache = EncoderCache(self._beams(q, incremental_state), k, v, key_padding_mask)
            self.set_incremental_state(incremental_state, "beam_cache", cache)
        else:
            saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
            self._set_input_buffer(incremental_state, saved)

    def _cached_encoder(self, incremental_state: State) -> tuple[Tensor, Tensor, Tensor | None]:
        cache = self._beam_cache(incremental_state)
        if cache is not None:
            return cache.keys, cache.values, cache.padding
        saved = self._get_input_buffer(incremental_state)
        return saved["prev_key"], saved["prev_value"], saved.get("prev_key_padding_mask")

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        """Reorder the cache: row i of the batch continues row `new_order[i]`."""
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
        """Split heads: [T, B beam, H D] -> [B, H, beam T, D]; hypotheses of a sentence are queries on the same keys."""
        length, rows, _ = x.shape
        if beam == 1:
            return x.view(length, rows, self.num_heads, self.head_dim).permute(1, 2, 0, 3)
        if length == 1:
            return x.view(rows // beam, beam, self.num_heads, self.head_dim).transpose(1, 2)
        x = x.view(length, rows // beam, beam, self.num_heads, self.head_dim).permute(1, 3, 2, 0, 4)
        return x.reshape(rows // beam, self.num_heads, beam * length, self.head_dim)

    def _merge(self, context: Tensor, beam: int) -> Tensor:
        """Merge heads, the reverse of `_split`: [B, H, beam T, D] -> [T, B beam, H D]."""
        batch, _, queries, _ = context.shape
        if beam == 1:
            return context.permute(2, 0, 1, 3).reshape(queries, batch, -1)
        context = context.view(batch, self.num_heads, beam, queries // beam, self.head_dim).permute(3, 0, 2, 1, 4)
        return context.reshape(queries // beam, batch * beam, -1)

    def _project_out(self, merged: Tensor) -> Tensor:
        """Compute Concat_i(g_i head_i) W_O: [T, B, H D] -> [T, B, E]."""
        scale = self.head_scale()
        if scale is None:
            return self.out_proj(merged)
        scale, out = scale.to(merged.dtype), self.out_proj
        # g_i head_i W_O,i = head_i (g_i W_O,i): scale whichever of the two is smaller. A weight that is packed,
        # computed or quantised cannot be scaled.
        if packed_linear.is_plain(out) and merged.numel() >= out.weight.numel():
            return F.linear(merged, out.weight * scale.repeat_interleave(self.head_dim), out.bias)
        return out((merged.unflatten(-1, (self.num_heads, -1)) * scale[:, None]).flatten(-2))

    def _bias(self, query: Tensor, key: Tensor | None) -> Tensor:
        """Return the output of a layer without heads: the bias of its output projection, [T, B, E]."""
        nothing = query[..., :0]
        if torch.is_grad_enabled() and key is not None and not self.self_attention:
            nothing = nothing + key[:1, :, :0]
        # Computed from the inputs through the empty projection, so that all parameters have gradients, if zeros:
        # distributed training waits for them.
        return self.out_proj(nothing)

    def _no_weights(self, query: Tensor, key: Tensor | None, per_head: bool) -> Tensor:
        shape = (query.size(1), query.size(0), (query if key is None else key).size(0))
        return query.new_zeros(1, *shape) if per_head else query.new_zeros(shape)

    def _dropout(self) -> float:
        module = self.dropout_module
        return module.p if self.training or module.apply_during_inference else 0.0

    # `kept` is an option of the model, not a weight. But the weights of two masks with equal numbers of heads have the
    # same shapes, so the metadata of the state dict, where torch keeps versions of modules, names the heads too.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.num_heads < self.heads and hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["kept"] = list(self.kept)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Keep initial gates if the checkpoint has none.

        Raise ValueError for a checkpoint with gates that this model does not have, or with other heads.
        """
        super().upgrade_state_dict_named(state_dict, name)
        self._check_heads(state_dict, name)
        if self.gate is None and f"{name}.gate.log_alpha" in state_dict:
            kind, _ = kind_and_layer(name)
            raise ValueError(f"the checkpoint has gates on {kind}, the model has none: add {kind} to --gate-heads")
        if self.gate is not None:
            state_dict.setdefault(f"{name}.gate.log_alpha", self.gate.state_dict()["log_alpha"])

    def _check_heads(self, state_dict: dict[str, Any], name: str) -> None:
        weight = state_dict.get(f"{name}.out_proj.weight")
        kind, layer = kind_and_layer(name)
        if weight is not None and weight.size(1) != self.out_proj.weight.size(1):
            raise ValueError(
                f"{kind} layer {layer} has {weight.size(1) / self.head_dim:g} heads in the checkpoint and "
                f"{self.num_heads} in the model: load a pruned checkpoint with --alive-heads CKPT --remove-heads; "
                "remove heads from an unpruned one with `headgates prune`"
            )
        kept = _kept_heads(state_dict, name)
        if kept is not None and kept != list(self.kept):
            there, here = (", ".join(map(str, heads)) or "none" for heads in (kept, self.kept))
            raise ValueError(
                f"{kind} layer {layer} has the heads {there} in the checkpoint and {here} in the model: "
                "take the mask from the checkpoint, --alive-heads CKPT --remove-heads"
            )


def _kept_heads(state_dict: Any, name: str) -> list[int] | None:
    """Return the remaining heads of a layer as a state dict names them; None if it does not, or has all heads."""
    metadata = getattr(state_dict, "_metadata", None)
    of_layer = metadata.get(name) if isinstance(metadata, dict) else None
    kept = of_layer.get("kept") if isinstance(of_layer, dict) else None
    return kept if isinstance(kept, list) else None
