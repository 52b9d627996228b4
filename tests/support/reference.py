"""Weights and inputs of the original TensorFlow implementation, the-story-of-heads, commit efaa0dd, mapped to fairseq.

`fixtures/reference_model.npz`: its transformer with random weights (`var/*`), two layers of four heads, once as it is
(`baseline/*`) and once with some heads removed (`fixed/*`); arrays are [sentence, position, ...]. All in float32.

The two transformers compute the same function once the weights are mapped:
- LayerNorm has an epsilon of 1e-6 (fairseq: 1e-5), and positions start at 0 (fairseq: at pad + 1 = 2).
- The vocabulary is bos 0, eos 1, unk 2, words from 3; fairseq has a pad symbol in row 1 and its logit, too.
- A bias is added to the scaled source embeddings; fairseq scales by sqrt(d), so b / sqrt(d) goes into the rows.
- The decoder's first input is a zero vector; fairseq's is the embedding of eos, whose row is set to zero.
- Linear layers are x W with W [in, out], and q|k|v are one of them (cross-attention: q and k|v).
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import nn

from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from support.models import PAD, make_args

DATA = Path(__file__).parents[1] / "fixtures"
MODEL = dict(np.load(DATA / "reference_model.npz"))

D, LAYERS, HEADS = 32, 2, 4

dtypes = pytest.mark.parametrize("dtype", [torch.float, torch.double])


def assert_close(actual, expected, tolerance):
    """Equal up to `tolerance` times the largest number of the expected array."""
    expected = torch.as_tensor(expected, dtype=torch.double)
    assert actual.shape == expected.shape
    difference = float((actual.detach().double() - expected).abs().max())
    assert difference <= tolerance * float(expected.abs().max())


def attention_parameters(arrays, name):
    """The projections of one attention under fairseq's names: the combined ones are cut into q, k and v."""
    combined = ("query_conv", "mem_conv") if name.startswith("dec_enc") else ("mem_conv",)
    parameters = {}
    for kind, ours in (("W", "weight"), ("b", "bias")):
        qkv = np.concatenate([arrays[f"{name}/{part}/{kind}"] for part in combined], axis=-1)
        for projection, array in zip("qkv", np.split(qkv, 3, axis=-1), strict=True):
            parameters[f"{projection}_proj.{ours}"] = array.T
        parameters[f"out_proj.{ours}"] = arrays[f"{name}/out_conv/{kind}"].T
    return parameters


def linear_parameters(arrays, name):
    return {"weight": arrays[f"{name}/W"].T, "bias": arrays[f"{name}/b"]}


def norm_parameters(arrays, name):
    return {"weight": arrays[f"{name}/scale"], "bias": arrays[f"{name}/bias"]}


def layer_parameters(arrays):
    """All parameters but embeddings and output projection under fairseq's names: weights, or gradients alike."""
    parts = {
        "encoder.layer_norm": norm_parameters(arrays, "enc_out_norm"),
        "decoder.layer_norm": norm_parameters(arrays, "dec_out_norm"),
    }
    for i in range(LAYERS):
        for side, name in (("encoder", "enc"), ("decoder", "dec")):
            layer = f"{side}.layers.{i}"
            parts[f"{layer}.self_attn"] = attention_parameters(arrays, f"{name}_attn-{i}")
            parts[f"{layer}.self_attn_layer_norm"] = norm_parameters(arrays, f"{name}_attn-{i}/layer_norm")
            parts[f"{layer}.fc1"] = linear_parameters(arrays, f"{name}_ffn-{i}/conv1")
            parts[f"{layer}.fc2"] = linear_parameters(arrays, f"{name}_ffn-{i}/conv2")
            parts[f"{layer}.final_layer_norm"] = norm_parameters(arrays, f"{name}_ffn-{i}/layer_norm")
        layer, name = f"decoder.layers.{i}", f"dec_enc_attn-{i}"
        parts[f"{layer}.encoder_attn"] = attention_parameters(arrays, name)
        parts[f"{layer}.encoder_attn_layer_norm"] = norm_parameters(arrays, f"{name}/layer_norm")
    return {f"{part}.{key}": array for part, named in parts.items() for key, array in named.items()}


def arrays_of(prefix):
    """The arrays whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): array for name, array in MODEL.items() if name.startswith(prefix)}


def with_pad(rows):
    """Rows of the original's vocabulary as those of fairseq's, which has a pad symbol in row 1."""
    return np.insert(rows, PAD, 0, axis=0)


def mapped_weights():
    weights = arrays_of("var/mod/")
    source = weights["emb_inp/mat"] + weights["emb_inp_bias"].reshape(1, D) / math.sqrt(D)
    target = with_pad(weights["emb_out/mat"])
    target[Dictionary().eos()] = 0
    return {
        **layer_parameters(weights),
        "encoder.embed_tokens.weight": with_pad(source),
        "decoder.embed_tokens.weight": target,
        "decoder.output_projection.weight": with_pad(MODEL["var/loss_xent_lm/logits/W"].T),
    }


def make_dictionary(letter, vocabulary):
    dictionary = Dictionary()
    for i in range(vocabulary - 3):  # but bos, eos and unk
        dictionary.add_symbol(f"{letter}{i:02}")
    return dictionary


def make_task():
    source = make_dictionary("s", len(MODEL["var/mod/emb_inp/mat"]))
    target = make_dictionary("t", len(MODEL["var/mod/emb_out/mat"]))
    return SimpleNamespace(source_dictionary=source, target_dictionary=target)


def load(model):
    """Gives a model the original's weights, epsilon and positions."""
    state, mapped = model.state_dict(), mapped_weights()
    left = set(state) ^ set(mapped)
    assert all(name.endswith(("log_alpha", "version")) for name in left), f"not mapped: {left}"
    model.load_state_dict({**state, **{name: torch.tensor(array) for name, array in mapped.items()}})
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
        if isinstance(module, SinusoidalPositionalEmbedding):
            table = SinusoidalPositionalEmbedding.get_embedding(100, D)
            module.weights = nn.functional.pad(table, (0, 0, PAD + 1, 0))
    return model


def build(case, dtype=torch.float, **options):
    """Our model with the original's weights; some heads removed in the case "fixed"."""
    if case == "fixed":
        options["alive_heads"] = json.dumps({each: rows.tolist() for each, rows in alive_heads("fixed").items()})
    model = TransformerHeadGatesModel.build_model(make_args(**options), make_task())
    return load(model).to(dtype).eval()


def alive_heads(case):
    """{type: [layer, head]}, 1 for the heads that the original kept."""
    kept = arrays_of("fixed/alive_heads/")
    return kept if case == "fixed" else {attention_type: np.ones_like(rows) for attention_type, rows in kept.items()}


def pads(side):
    """True where the batch is padded: [sentence, position]; side "inp" or "out"."""
    lengths = torch.tensor(MODEL[f"in/{side}_len"])
    return torch.arange(int(lengths.max())) >= lengths[:, None]


def tokens(side):
    """The symbols of the batch in fairseq's vocabulary: all but bos, 0, come one later."""
    ids = torch.tensor(MODEL[f"in/{side}"]).long()
    return (ids + ids.gt(0).long()).masked_fill(pads(side), PAD)


def batch():
    out = tokens("out")
    previous = torch.cat([torch.full((len(out), 1), Dictionary().eos()), out[:, :-1]], dim=1)
    return {"src_tokens": tokens("inp"), "src_lengths": (~pads("inp")).sum(1), "prev_output_tokens": previous}
