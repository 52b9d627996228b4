"""`transformer_lm_all_attention`: a language model of attention alone, with a memory of earlier blocks.

Shapes: T length of a block, M length of the memory, S = M + T, B batch, E model size, L layers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel, register_model
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.modules import FairseqDropout, LayerNorm
from torch import Tensor, nn

from fairseq_headgates.extensions.all_attention.layer import AllAttention, distance_encodings
from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, register_preset
from fairseq_headgates.plugin.models.presets import base_preset

LONGEST = 100_000  # tokens of a text: positions are relative
BLOCK = 1024  # fairseq's default of --tokens-per-sample
# Options of fairseq's language model that this one does not have: they must be false, 0 or empty.
UNSUPPORTED = (
    "character_embeddings checkpoint_activations offload_activations decoder_layerdrop decoder_layers_to_keep "
    "base_layers quant_noise_pq quant_noise_scalar scale_attn scale_heads scale_fc scale_resids"
).split()


class AllAttentionLayer(nn.Module):
    """A layer: x + attention(LayerNorm(x)), without a feed-forward block."""

    normalize_before = True  # as fairseq's layers say it

    def __init__(self, cfg: TransformerConfig, persistent: int):
        super().__init__()
        size = cfg.decoder.embed_dim
        self.self_attn = AllAttention(size, cfg.decoder.attention_heads, persistent, cfg.attention_dropout)
        self.self_attn_layer_norm = LayerNorm(size)
        self.dropout_module = FairseqDropout(cfg.dropout, module_name="AllAttentionLayer")

    def forward(self, x: Tensor, positions: Tensor, masked: Tensor, memory: Tensor | None, past: Any) -> tuple:
        """Return the output [T, B, E], and the keys and values; see `AllAttention.forward`."""
        memory = None if memory is None else self.self_attn_layer_norm(memory)
        y, pairs = self.self_attn(self.self_attn_layer_norm(x), positions, masked, memory, past)
        return x + self.dropout_module(y), pairs


@dataclass(frozen=True)
class Memory:
    """What the layers remember of the blocks before the next one.

    Attributes:
        blocks: stream and place of the last block of each row, [B, 2]
        masked: which positions hold nothing, [B, M]
        layers: for each layer, its input [1, B, M, E], or in evaluation its keys and values [H, B, M, D]
    """

    blocks: Tensor
    masked: Tensor
    layers: list[tuple[Tensor, ...]]

    def before(self, blocks: Tensor) -> Memory | None:
        """Return the memory of the rows whose next block is in `blocks` [B', 2].

        None if no row continues, or if there are more rows than before.
        """
        rows = len(blocks)
        if rows > len(self.blocks):
            return None
        last = self.blocks[:rows].to(blocks.device)
        continues = (last[:, 0] == blocks[:, 0]) & (last[:, 1] + 1 == blocks[:, 1])
        if not continues.any():
            return None
        masked = self.masked[:rows] | ~continues[:, None]
        return Memory(blocks, masked, [tuple(x[:, :rows] for x in layer) for layer in self.layers])


def _last(x: Tensor, number: int) -> Tensor:
    """Return the last positions of a tensor [H, B, S, D] without gradients: a copy, which does not keep the others."""
    x = x.detach()
    size = x.size(2)
    return x if size <= number else x[:, :, size - number :].clone()


class AllAttentionDecoder(TransformerDecoderBase):
    """fairseq's decoder with layers of `AllAttention` and a memory: embeddings and output layer are fairseq's.

    In training, the memory holds the inputs of every layer, without gradients (Dai et al. 2019). In evaluation it holds
    keys and values instead, which gives the same result without computing them again. The memory of a row is used only
    if the row's block follows the last one in the same stream.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: nn.Module):
        self.persistent, self.mem_len = args.persistent_vectors, args.mem_len
        self.block_size = max(1, args.tokens_per_sample)
        super().__init__(TransformerConfig.from_namespace(args), dictionary, embed_tokens, no_encoder_attn=True)
        self.memories: dict[bool, Memory | None] = {}  # in training, in evaluation
        self._encodings = torch.empty(0)

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> AllAttentionLayer:
        """Build a layer; fairseq calls it."""
        return AllAttentionLayer(cfg, self.persistent)

    def forward(
        self,
        prev_output_tokens: Tensor,
        incremental_state: dict | None = None,
        features_only: bool = False,
        blocks: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the logits, or the features, of a block.

        Args:
            prev_output_tokens: input tokens [B, T]
            incremental_state: the cache of incremental decoding; only the last token is computed
            features_only: return features [B, T, E]
            blocks: stream of each row's block, and its place in the stream from 0, [B, 2]; None for no memory
        """
        if incremental_state is not None:
            x = self._step(prev_output_tokens[:, -1:], incremental_state)
        else:
            x = self._block(prev_output_tokens, blocks)
        x = x if self.layer_norm is None else self.layer_norm(x)
        x = x.transpose(0, 1)
        x = x if self.project_out_dim is None else self.project_out_dim(x)
        return (x if features_only else self.output_layer(x)), {"attn": [None]}

    def extract_features(self, prev_output_tokens: Tensor, **options: Any) -> tuple[Tensor, dict[str, Any]]:
        """Return the features [B, T, E]; see `forward`."""
        return self.forward(prev_output_tokens, **{**options, "features_only": True})

    def reset_memory(self) -> None:
        """Forget all blocks."""
        self.memories.clear()

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the input of the first layer: [T, B, E]."""
        x = self.embed_scale * self.embed_tokens(tokens)
        x = x if self.project_in_dim is None else self.project_in_dim(x)
        x = x if self.layernorm_embedding is None else self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)

    def _positions(self, size: int, like: Tensor) -> Tensor:
        """Return the encodings of the distances size - 1 to -1: [size + 1, E]."""
        known = self._encodings
        if len(known) <= size or known.dtype != like.dtype or known.device != like.device:
            with torch.inference_mode(False):  # a later training uses them, too
                self._encodings = known = distance_encodings(size, self.embed_dim, like)
        return known[len(known) - size - 1 :]

    def _block(self, tokens: Tensor, blocks: Tensor | None) -> Tensor:
        x = self._embedded(tokens)
        length, batch, _ = x.shape
        held = self.memories.get(self.training)
        past = held.before(blocks) if held is not None and blocks is not None else None
        before = 0 if past is None else past.masked.size(1)
        masked = x.new_ones(1, length, before + length, dtype=torch.bool).triu(before + 1)
        empty = masked.new_zeros(batch, length)
        if past is not None:
            empty = torch.cat([past.masked, empty], 1)
            masked = masked | empty[:, None]
        positions = self.dropout_module(self._positions(before + length, x))
        layers = []
        for i, layer in enumerate(self.layers):
            of_layer = None if past is None else past.layers[i]
            memory, pairs = None, of_layer
            if self.training and of_layer is not None:
                memory, pairs = of_layer[0][0].transpose(0, 1), None
            states = x if memory is None or self.mem_len <= length else torch.cat([memory, x])
            x, new = layer(x, positions, masked, memory, pairs)
            remembered = (states.transpose(0, 1)[None],) if self.training else new
            layers.append(tuple(_last(each, self.mem_len) for each in remembered))
        if blocks is not None and self.mem_len:
            self.memories[self.training] = Memory(blocks, empty[:, -self.mem_len :], layers)
        return x

    def _step(self, tokens: Tensor, incremental_state: dict) -> Tensor:
        """Compute one token of each row, which sees as many positions as the last token of a block in training."""
        x = self._embedded(tokens)
        caches = [layer.self_attn._get_input_buffer(incremental_state) for layer in self.layers]
        pasts = [tuple(c[n].transpose(0, 1) for n in ("prev_key", "prev_value")) if c else None for c in caches]
        before = pasts[0][0].size(2) if pasts[0] else 0
        positions = self._positions(before + 1, x)
        masked = x.new_zeros(1, 1, before + 1, dtype=torch.bool)
        for layer, past in zip(self.layers, pasts, strict=True):
            x, pairs = layer(x, positions, masked, None, past)
            keys, values = (_last(each, self.mem_len + self.block_size - 1).transpose(0, 1) for each in pairs)
            layer.self_attn._set_input_buffer(incremental_state, {"prev_key": keys, "prev_value": values})
        return x


class AllAttentionLanguageModel(FairseqLanguageModel):
    """Language model of Sukhbaatar et al. 2019 with relative positions and memory, as in Shim et al. 2021."""

    @classmethod
    def build_model(cls, args: Any, task: Any) -> nn.Module:
        """Build the model. Raise ValueError for options that it does not support."""
        check_options(args)
        if args.mem_len and not getattr(task, "consecutive", False):
            raise ValueError(
                f"--mem-len is {args.mem_len}: the memory needs consecutive blocks, pass --task "
                "language_modeling_segments (or train with --mem-len 0)"
            )
        if getattr(args, "max_target_positions", None) is None:
            args.max_target_positions = LONGEST
        if getattr(args, "tokens_per_sample", None) is None:  # with fairseq-hydra-train it is an option of the task
            args.tokens_per_sample = getattr(getattr(task, "args", None), "tokens_per_sample", BLOCK)
        args.decoder_normalize_before, args.no_token_positional_embeddings = True, True
        without_layers = copy.deepcopy(args)  # whose embeddings are fairseq's
        without_layers.decoder_layers = 0
        embeddings = TransformerLanguageModel.build_model(without_layers, task).decoder.embed_tokens
        return cls(AllAttentionDecoder(args, task.target_dictionary, embeddings))


def fill(args: Any, **options: Any) -> None:
    """Set the options that `args` leaves open."""
    for name, value in options.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def check_options(args: Any) -> None:
    """Raise ValueError for options of `transformer_lm` that the model does not have, and for numbers out of range."""
    for name in UNSUPPORTED:
        if value := getattr(args, name, None):
            raise ValueError(
                f"--{name.replace('_', '-')} is {value}: transformer_lm_all_attention does not support it, leave it out"
            )
    for name, least in (("persistent_vectors", 1), ("mem_len", 0)):
        value = getattr(args, name)
        if not isinstance(value, int) or not least <= value <= LONGEST:
            raise ValueError(f"--{name.replace('_', '-')} is {value}: it must be from {least} to {LONGEST:,}")


@register_model("transformer_lm_all_attention")
class TransformerLMAllAttentionModel(HeadGatesMixin, AllAttentionLanguageModel):
    """The model of `AllAttentionLanguageModel` with gates, masked and removed heads, and frozen parameters."""

    stock = AllAttentionLanguageModel

    @classmethod
    def set_defaults(cls, args: Any) -> None:
        """Set the options that `args` leaves open."""
        fill(args, persistent_vectors=2048, mem_len=0)
        if not hasattr(args, "tokens_per_sample"):  # see `build_model`
            args.tokens_per_sample = None
        base_preset(TransformerLanguageModel)(args)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of `transformer_lm`, of the layers and of this plugin; fairseq calls it."""
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        parser.add_argument(
            "--persistent-vectors",
            type=int,
            metavar="N",
            help="number of persistent key and value vectors of each head; with 4 times --decoder-embed-dim, a layer "
            "has as many parameters in them as a feed-forward block of that size (default: 2048)",
        )
        parser.add_argument(
            "--mem-len",
            type=int,
            metavar="M",
            help="number of tokens before a block that its tokens attend to; above 0 it needs --task "
            "language_modeling_segments (default: 0)",
        )
        super().add_args(parser)


register_preset(
    "transformer_lm_all_attention", "transformer_lm_all_attention", TransformerLMAllAttentionModel.set_defaults
)


def preset(name: str, layers: int, heads: int, dim: int, **options: Any) -> None:
    """Register an architecture with sizes and other options for what the command line leaves open."""
    options |= {"decoder_layers": layers, "decoder_attention_heads": heads}
    options |= {f"decoder_{part}_dim": dim for part in ("embed", "input", "output")}

    def set_options(args: Any) -> None:
        fill(args, **options)
        TransformerLMAllAttentionModel.set_defaults(args)

    register_preset("transformer_lm_all_attention", f"transformer_lm_all_attention_{name}", set_options)


# Shim et al. 2021 and their configuration: segment and memory of 192 (--tokens-per-sample 192), WikiText-103
preset(
    "wt103",
    layers=16,
    heads=8,
    dim=512,
    persistent_vectors=2048,
    mem_len=192,
    adaptive_input=True,
    adaptive_input_cutoff="20000,40000,200000",
    adaptive_softmax_cutoff="20000,40000,200000",
    attention_dropout=0.2,
    tie_adaptive_weights=True,
    tie_adaptive_proj=True,
)
# Trains on two CPU cores; with --tokens-per-sample 64
preset("small", 6, 8, 128, persistent_vectors=512, mem_len=64, share_decoder_input_output_embed=True)
