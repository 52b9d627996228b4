"""Small models for the tests, built as fairseq builds them."""

import argparse
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture

from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

VOCABULARY = 40
PAD = 1


def make_task():
    """As much of a translation task as building a model needs."""
    dictionary = Dictionary()
    for i in range(VOCABULARY):
        dictionary.add_symbol(f"w{i}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def make_args(**options):
    """A namespace as the command line gives it: two layers, four heads, width 32."""
    sizes = {"embed_dim": 32, "ffn_embed_dim": 64, "layers": 2, "attention_heads": 4, "normalize_before": True}
    args = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sizes.items()}
    namespace = argparse.Namespace(**{**args, **options})
    base_architecture(namespace)
    return namespace


def make_stock(seed=0, **options):
    torch.manual_seed(seed)
    return TransformerModel.build_model(make_args(**options), make_task()).eval()


def make_gated(seed=0, **options):
    torch.manual_seed(seed)
    return TransformerHeadGatesModel.build_model(make_args(**options), make_task()).eval()


def make_batch(seed=0, source_pad="left", target_pad="right"):
    """Three sentence pairs of different lengths: src_tokens, src_lengths, prev_output_tokens."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, VOCABULARY, (3, 7), generator=generator)
    target = torch.randint(4, VOCABULARY, (3, 5), generator=generator)
    _pad(source, [7, 4, 5], source_pad)
    _pad(target, [5, 3, 2], target_pad)
    return {"src_tokens": source, "src_lengths": torch.tensor([7, 4, 5]), "prev_output_tokens": target}


def _pad(tokens, lengths, side):
    for row, length in zip(tokens, lengths, strict=True):
        if side == "left":
            row[: len(row) - length] = PAD
        elif side == "right":
            row[length:] = PAD


def logits(model, batch):
    with torch.no_grad():
        return model(**batch)[0]


def assert_same(a, b, where="state"):
    """Nested containers with equal values; tensors equal to the last bit.

    The entries `_float_tensor` of fairseq may differ: they have a type, and a value that nothing sets.
    """
    if isinstance(a, argparse.Namespace):
        a, b = vars(a), vars(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if not str(key).endswith("_float_tensor"):
                assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b, where
