"""The setting ARCH of translation: an architecture of fairseq."""

from __future__ import annotations

import argparse
from typing import Any

SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")


def check(name: str, pre_norm: bool) -> None:
    """Raise ValueError unless it is a transformer that trains as the architecture of runs, transformer_head_gates."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerModel

    from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

    if name not in ARCH_MODEL_REGISTRY:
        raise ValueError(f"ARCH={name} must be an architecture of fairseq, for example transformer_iwslt_de_en")
    if ARCH_MODEL_REGISTRY[name] not in (TransformerModel, TransformerHeadGatesModel):
        raise ValueError(f"ARCH={name} must be an architecture of fairseq's encoder-decoder transformer")
    own, others = (_options(arch, pre_norm) for arch in (name, "transformer"))
    other = [
        f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}")
        for key, value in own.items()
        if others.get(key) != value
    ]
    if other:
        raise ValueError(
            f"ARCH={name} has other defaults than transformer_head_gates, the architecture of the runs: set "
            f"ARCH=transformer, and {' '.join(other)} in TRAIN_FLAGS"
        )


def _options(name: str, pre_norm: bool) -> dict[str, Any]:
    """Return the options that an architecture sets, without those that the recipe gives to every training."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    ours = {f"{side}_{size}": 1 for side in ("encoder", "decoder") for size in SIZES} | {"dropout": 0.0}
    ours |= {"share_all_embeddings": True, "share_decoder_input_output_embed": True}
    if pre_norm:
        ours |= {"encoder_normalize_before": True, "decoder_normalize_before": True}
    found = argparse.Namespace(**ours)
    ARCH_CONFIG_REGISTRY[name](found)
    return {key: value for key, value in vars(found).items() if key not in ours}
