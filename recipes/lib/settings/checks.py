"""Settings that depend on each other. A function raises ValueError, in one line, for those that contradict."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from settings import declared, runs

SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")


def training(s: declared.Training) -> None:
    """Sizes, seeds, schedules and runs of any model."""
    if s.EMBED % s.HEADS:
        raise ValueError(f"{s.said('HEADS')} must divide {s.said('EMBED')}")
    if s.SEED is not None and s.SEEDS != [s.SEED]:
        raise ValueError(f"{s.said('SEED')} and {s.said('SEEDS')}: set only SEEDS")
    runs.check(s.runs(), s.heads(), s.PRUNE_UPDATES, s.ITERATIONS)
    falling = ("polynomial_decay", "cosine")
    for prefix, schedule in (
        ("", getattr(s, "SCHEDULE", falling[0])),
        ("PRUNE_", getattr(s, "PRUNE_SCHEDULE", falling[0])),
    ):
        below(s, f"{prefix}WARMUP", f"{prefix}UPDATES", schedule in falling)
        if schedule == "inverse_sqrt" and getattr(s, f"{prefix}WARMUP") == 0:
            raise ValueError(f"{prefix}WARMUP=0 must be 1 or more with {prefix}SCHEDULE=inverse_sqrt")


def below(s: declared.Training, name: str, other: str, needed: bool = True) -> None:
    """Raise ValueError unless a setting is below another one."""
    value, limit = getattr(s, name), getattr(s, other)
    if needed and limit is not None and value >= limit:
        raise ValueError(f"{s.said(name)} must be below {s.said(other)}")


def translation(s: declared.Translation) -> None:
    """The length of the baseline, averages, runs from scratch, and the architecture."""
    if s.SCHEDULE == "polynomial_decay" and not s.UPDATES:
        raise ValueError(
            "SCHEDULE=polynomial_decay needs UPDATES, the number of updates of the baseline, not "
            f"{s.said('EPOCHS')}: set UPDATES, or SCHEDULE=inverse_sqrt, which also takes EPOCHS"
        )
    if s.EPOCHS == 0 and not s.UPDATES:
        raise ValueError("EPOCHS=0 would train without end: it must be 1 or more, or set UPDATES")
    if s.AVERAGE and not s.SAVE_EVERY:
        raise ValueError(f"{s.said('AVERAGE')} needs checkpoints to average: set SAVE_EVERY to a number of updates")
    # For shorter runs the average takes all checkpoints that exist.
    if s.AVERAGE and s.UPDATES and (saved := math.ceil(s.UPDATES / s.SAVE_EVERY)) < s.AVERAGE:
        raise ValueError(
            f"{s.said('AVERAGE')} must be at most {saved}, the number of checkpoints of {s.said('UPDATES')} with "
            f"{s.said('SAVE_EVERY')}"
        )
    existing = list(dict.fromkeys(run.types for run in s.RUNS))
    for types in s.SCRATCH:
        if types not in existing:
            raise ValueError(
                f"SCRATCH={types} must be among the types of RUNS ({', '.join(existing) or 'RUNS is empty'})"
            )
    if s.METRIC:
        from results.translation import COLUMNS

        if s.METRIC_NAME in (titles := ["model", *(column.title for column in COLUMNS)]):
            raise ValueError(
                f"{s.said('METRIC_NAME')} is a column of the table: choose a name beside {', '.join(titles)}"
            )
    # Of the default nothing is looked up: importing fairseq takes seconds.
    if s.ARCH != "transformer" and not s.HEADGATES:
        _architecture(s)


def _architecture(s: declared.Translation) -> None:
    """The architecture is a transformer, and trains as `transformer_head_gates` does, the architecture of the runs."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerModel

    from fairseq_headgates.models.transformer import TransformerHeadGatesModel

    if s.ARCH not in ARCH_MODEL_REGISTRY:
        raise ValueError(f"{s.said('ARCH')} must be an architecture of fairseq, for example transformer_iwslt_de_en")
    if ARCH_MODEL_REGISTRY[s.ARCH] not in (TransformerModel, TransformerHeadGatesModel):
        raise ValueError(f"{s.said('ARCH')} must be an architecture of fairseq's encoder-decoder transformer")
    own, others = (_options(arch, s.PRE_NORM == "1") for arch in (s.ARCH, "transformer"))
    other = [
        f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}")
        for key, value in own.items()
        if others.get(key) != value
    ]
    if other:
        raise ValueError(
            f"{s.said('ARCH')} has other defaults than transformer_head_gates, the architecture of the runs: set "
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


def language_model(s: declared.LanguageModel) -> None:
    """Blocks fit into a batch, rates fall, and no size is given in vain."""
    for name in ("MEM_LEN", "PERSISTENT_VECTORS", "STREAM_BLOCKS"):
        if not s.all_attention and getattr(s, name) is not None:
            raise ValueError(f"{s.said(name)} has no effect on ARCH=transformer_lm: unset it")
    for name in ("MAX_TOKENS", "EVAL_TOKENS"):
        if getattr(s, name) < s.TOKENS_PER_SAMPLE:
            raise ValueError(f"{s.said(name)} must be at least {s.said('TOKENS_PER_SAMPLE')}")
    if s.MIN_LR is not None:
        below(s, "MIN_LR", "LR")
        if s.PRUNE_SCHEDULE == "cosine" and s.PRUNE_LR[0] <= s.MIN_LR:
            raise ValueError(f"{s.said('MIN_LR')} must be below {s.said('PRUNE_LR')}")
    if s.BPE and s.VOCABULARY:
        raise ValueError(f"{s.said('VOCABULARY')} has no effect with {s.said('BPE')}: set BPE=0, or unset it")


def classification(s: declared.Classification) -> None:
    """Schedules that end, and text that can be read."""
    below(s, "MLM_WARMUP", "MLM_UPDATES")
    if len(s.UPDATE_FREQ) > 1:
        raise ValueError(f"{s.said('UPDATE_FREQ')} must be one number: BATCH is divided by it")
    if s.MAX_POSITIONS < 8:
        raise ValueError(f"{s.said('MAX_POSITIONS')} must be 8 or more")
    if s.ENCODED == "1" and not s.PRETRAINED:
        raise ValueError("ENCODED=1 needs PRETRAINED, the model that the text is encoded for: set it, or ENCODED=0")
    if s.PRETRAINED and os.path.isdir(s.PRETRAINED):
        raise ValueError(f"{s.said('PRETRAINED')} is a folder: give a RoBERTa checkpoint of fairseq")
