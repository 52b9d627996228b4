"""Multi-head attention whose heads can be gated, masked, removed and observed.

fairseq's module computes all heads in one torch function, without access to a single head. After fairseq has built a
model, `attention.modules.use_head_attention` replaces each of its attention modules by a `HeadAttention` with the same
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

from fairseq_headgates.attention.anatomy import attention_type_and_layer
from fairseq_headgates.attention.weights import attention_weights, fused_contexts, join_masks, per_hypothesis
from fairseq_headgates.gates import HeadGates
from fairseq_headgates.inference import packed_linear
from fairseq_headgates.inference.shapes import merge_heads, split_heads


@dataclass(frozen=True)
class HeadHook:
    """Hook on the attention weights and contexts of every head of a `HeadAttention`.

    Args:
        call: called as `call(weights, context)` in every forward pass, with the attention weights [B, H, T, S] and the
            contexts [B, H, T, D] of the remaining heads, before gates. A tensor that it returns replaces the contexts.
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
    """

    INPUTS: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj")  # parts whose rows are those of the heads

    def __init__(self, stock: MultiheadAttention):
        # The stock constructor would make (and randomly initialise) projections; these come from `stock`.
        nn.Module.__init__(self)
        self.__dict__.update({name: hooks for name, hooks in vars(stock).items() if "_hook" in name})
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
        self.hook: HeadHook | None = None
        self._prepared = False  # for inference, by fairseq's call
        self._fused = False  # also when prepared
        self._in_proj: packed_linear.InferenceLinear | None = None  # q, k and v as one
        self._constant_gates = packed_linear.ParameterCache()
        self._counted_heads = packed_linear.ParameterCache()
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
        q, k, v = self._project_in(query, key, value, incremental_state if static_kv else None)
        k, v, padding = self._keys_values(q, k, v, key_padding_mask, incremental_state, static_kv)
        mask = join_masks(attn_mask, padding, q.dtype)
        beam = q.size(1) // k.size(0)  # above 1 in a `DecoderStep`: the hypotheses of a sentence read the same keys
        q = self._split(q, beam)
        weights: Tensor | None = None
        # On a CPU fused kernels round differently, and gain little: prepared models use the formula in float32.
        formula = need_weights or (self.hook is not None and self.hook.weights)
        if not formula and (q.is_cuda or self._fused or (incremental_state is None and not self._prepared)):
            context = fused_contexts(q, k, v, mask, self._dropout(), self.scaling)
        else:
            weights = attention_weights(q, k, mask, self.scaling)
            context = self.dropout_module(weights).to(v) @ v
        if self.hook is not None:
            context = self.hook(weights, context)
        output = self._project_out(merge_heads(context, beam))
        if not need_weights or weights is None:
            return output, None
        return output, per_hypothesis(self, weights, beam, need_head_weights)

    def output_of(self, context: Tensor) -> Tensor:
        """Return the output [T, B, E] of the layer for the contexts [B, H, T, D] of its heads."""
        return self._project_out(merge_heads(context))

    def head_scale(self) -> Tensor | None:
        """Return the factor on the context of every head, gate times mask: [H], or None if all are 1."""
        if self.gate is None:
            return self.head_mask
        constant = self._prepared and not torch.is_grad_enabled()
        gates = self._constant_gates.get(self.gate.read, self.gate.factor) if constant else self.gate()
        return gates if self.head_mask is None else gates * self.head_mask

    def counted_heads(self) -> Tensor | None:
        """Return the numbers of the heads that have a factor other than 0; None if all have."""
        if self.gate is None and self.head_mask is None:
            return None
        if not self._prepared or torch.is_grad_enabled():
            return self._find_counted_heads()
        return self._counted_heads.get(self._factors, self._find_counted_heads)

    def _factors(self) -> list[Tensor]:
        masks = [] if self.head_mask is None else [self.head_mask]
        return masks if self.gate is None else [*self.gate.read(), *masks]

    def _find_counted_heads(self) -> Tensor | None:
        scale = self.head_scale()
        assert scale is not None
        counted = [head for head, factor in enumerate(scale.tolist()) if factor]
        return None if len(counted) == len(scale) else torch.tensor(counted, dtype=torch.long, device=scale.device)

    def make_generation_fast_(self, dtype: str = "float32", **kwargs: Any) -> None:
        """Prepare for inference: constant gates, and q, k and v of self-attention in one multiplication.

        fairseq's commands call it. Afterwards the model must not be trained. After changes of `parameter.data`, which
        torch does not count, call it again.
        """
        self._prepared = True
        self._constant_gates.forget()
        self._counted_heads.forget()
        packed_linear.track_parameters(self)
        if self.self_attention and self.num_heads and self._in_proj is None:
            self._in_proj = packed_linear.join_linears(self, ["q_proj", "k_proj", "v_proj"], dtype)
        self._fused = dtype != "float32"

    def stay_in_bfloat16(self) -> None:
        """Compute self-attention in bfloat16 if all of its packed weights are in it.

        Attention to the encoder stays in single precision: with an odd number of source positions, bfloat16 is slower.
        """
        if self.self_attention:
            packed_linear.stay_in_bfloat16(*(getattr(self, name) for name in self.INPUTS), self.out_proj)

    def _project_in(
        self, query: Tensor, key: Any, value: Any, encoder_cache: dict | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return q [T, B, H D], k and v [S, B, H D]; k and v are None if the cache of the encoder has them."""
        if self.self_attention:
            if self._in_proj is not None and not torch.is_grad_enabled():
                q, k, v = self._in_proj(query).chunk(3, dim=-1)
                return q, k, v
            key = value = query
        elif encoder_cache is not None and (self._step_cache(encoder_cache) or self._get_input_buffer(encoder_cache)):
            return self.q_proj(query), None, None
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def _keys_values(
        self, query: Tensor, k: Any, v: Any, padding: Tensor | None, cache: dict | None, static_kv: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return all keys and values [B or B / beam, H, S, D], with those of the cache, and their padding or mask."""
        if cache is not None and (step := self._step_cache(cache)) is not None:
            return step if static_kv else step.append(self._split(k, step.beam), self._split(v, step.beam))
        saved: dict[str, Any] = {} if cache is None else self._get_input_buffer(cache)
        if k is None:
            return saved["prev_key"], saved["prev_value"], saved["prev_key_padding_mask"]
        k, v = self._split(k), self._split(v)
        if cache is None:
            return k, v, padding
        if static_kv:  # BART does not repeat encoder states for hypotheses
            copies = query.size(1) // k.size(0)
            k, v = (x.repeat_interleave(copies, 0).contiguous() for x in (k, v))  # every step reads them
            padding = None if padding is None else padding.repeat_interleave(copies, 0)
        else:
            if saved:
                k, v = torch.cat([saved["prev_key"], k], dim=2), torch.cat([saved["prev_value"], v], dim=2)
            before = saved.get("prev_key_padding_mask")
            padding = self._append_prev_key_padding_mask(padding, before, k.size(0), k.size(2), static_kv=False)
        self._set_input_buffer(cache, {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding})
        return k, v, padding

    def _step_cache(self, cache: dict) -> Any:
        """Return the `StepCache` or `SourceCache` of a `DecoderStep`, None if there is none."""
        return self.get_incremental_state(cache, "step_cache")

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        """Reorder the cache: row i of the batch continues row `new_order[i]`."""
        saved = self._get_input_buffer(incremental_state)
        for name, tensor in saved.items():
            saved[name] = None if tensor is None else tensor.index_select(0, new_order)
        return incremental_state

    def _split(self, x: Tensor, beam: int = 1) -> Tensor:
        return split_heads(x, self.num_heads, beam)

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
            attention_type, _ = attention_type_and_layer(name)
            raise ValueError(
                f"the checkpoint has gates on {attention_type}, the model has none: add {attention_type} to "
                "--gate-heads"
            )
        if self.gate is not None:
            state_dict.setdefault(f"{name}.gate.log_alpha", self.gate.state_dict()["log_alpha"])

    def _check_heads(self, state_dict: dict[str, Any], name: str) -> None:
        weight = state_dict.get(f"{name}.out_proj.weight")
        attention_type, layer = attention_type_and_layer(name)
        if weight is not None and weight.size(0) != self.embed_dim:
            return  # the sizes of the model differ, which `check_dimensions` reports
        if weight is not None and weight.size(1) != self.out_proj.weight.size(1):
            raise ValueError(
                f"{attention_type} layer {layer} has {weight.size(1) / self.head_dim:g} heads in the checkpoint and "
                f"{self.num_heads} in the model: load a pruned checkpoint with --alive-heads CKPT --remove-heads; "
                "remove heads from an unpruned one with `headgates prune`"
            )
        kept = (getattr(state_dict, "_metadata", None) or {}).get(name, {}).get("kept")
        if kept is not None and kept != list(self.kept):
            there, here = (", ".join(map(str, heads)) or "none" for heads in (kept, self.kept))
            raise ValueError(
                f"{attention_type} layer {layer} has the heads {there} in the checkpoint and {here} in the model: "
                "take the mask from the checkpoint, --alive-heads CKPT --remove-heads"
            )
