"""Settings of the recipes for language models."""

from __future__ import annotations

from typing import ClassVar, Literal

from runs import Heads
from settings import types as t
from settings.general import (
    Download,
    Sequences,
    Training,
    evaluation,
    given,
    model,
    pruning,
    text,
    training,
)


class LanguageModel(Sequences):
    """Settings of language_model.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("RAW_DIR", "OUT_DIR")
    DEFAULTS = Training.DEFAULTS | {
        **given(
            "BPE=2000 VOCABULARY=0 ARCH=transformer_lm EMBED=64 FFN=256 LAYERS=4 HEADS=4 PRE_NORM=1 "
            "DROPOUT=0.1 MAX_TOKENS=2048 OPTIMIZER=adam SCHEDULE=inverse_sqrt UPDATES=2000 LR=0.004 "
            "WARMUP=300 KEEP_EPOCHS=0 PRUNE_SCHEDULE=inverse_sqrt PRUNE_UPDATES=1500 PRUNE_LR=0.001 "
            "PRUNE_WARMUP=100 EVAL_TOKENS=4096 SPEED=1 PAPER=none"
        ),
        "TOKENS_PER_SAMPLE": lambda s: "64" if s.all_attention else "128",
        "MEM_LEN": lambda s: s.TOKENS_PER_SAMPLE if s.all_attention else None,
        "STREAM_BLOCKS": lambda s: "64" if s.all_attention else None,
        "PERSISTENT_VECTORS": lambda s: 4 * s.EMBED if s.all_attention else None,
        # With all-attention, techniques of Shim et al. 2021; without their scaled outputs, which cost perplexity.
        "L0_WARMUP": lambda s: s.PRUNE_UPDATES * 2 // 5 if s.all_attention else None,
        "GATE_INIT": lambda s: "2" if s.all_attention else None,
        "GATE_HARD": lambda s: str(int(s.all_attention)),
        "GATE_OUTPUT_SCALE": "0",
        "RUNS": lambda s: "all:0.1 all:0.2" if s.all_attention else "all:0.02 all:0.04",
    }

    BPE: t.Count = text("number of BPE merge operations; 0: tokens are the words of the text", first=True)
    VOCABULARY: t.Count = text(
        "with BPE=0: symbols of the dictionary, the 4 special ones included; rarer words are unknown; 0: all words"
    )
    ARCH: Literal["transformer_lm", "transformer_lm_all_attention"] = model(
        "architecture: transformer_lm (with gates: transformer_lm_head_gates) or transformer_lm_all_attention",
        first=True,
    )
    ADAPTIVE: t.Cutoffs = model(
        "adaptive input and softmax with these cut-offs, separated by commas: 20000,60000 (default: none)"
    )
    TOKENS_PER_SAMPLE: t.Whole = model("tokens of a block, as fairseq-train --tokens-per-sample", first=True)
    MEM_LEN: t.Count = model("transformer_lm_all_attention: --mem-len (default: TOKENS_PER_SAMPLE)")
    PERSISTENT_VECTORS: t.Whole = model("transformer_lm_all_attention: --persistent-vectors (default: 4 times EMBED)")
    STREAM_BLOCKS: t.Whole = model("transformer_lm_all_attention: --stream-blocks (default: 64)")
    OPTIMIZER: Literal["adam", "lamb"] = training("adam, or lamb, which needs NVIDIA's apex")
    SCHEDULE: Literal["polynomial_decay", "inverse_sqrt", "cosine"] = training(
        "learning rate schedule of the baseline; inverse_sqrt: the checkpoint with the lowest loss on the validation "
        "set is used, otherwise the last one"
    )
    MIN_LR: t.From0 = training("learning rate at the end of cosine schedules (default: 0)")
    GATE_INIT: t.Number = pruning("--gate-init (default: that of fairseq-train, and 2 with all-attention)")
    GATE_HARD: t.Switch = pruning("1: --gate-hard")
    GATE_OUTPUT_SCALE: t.Switch = pruning("1: --gate-output-scale")
    EVAL_TOKENS: t.Whole = evaluation("--max-tokens of evaluation", record="evaluation")
    PAPER: Literal["shim", "none"] = evaluation("shim: also print the heads that Shim et al. 2021 keep")

    @property
    def all_attention(self) -> bool:
        """Whether the model is an all-attention language model."""
        return self.ARCH != "transformer_lm"

    def heads(self) -> Heads:
        return Heads({"dec-self": self.HEADS * self.LAYERS})

    def problems(self) -> None:
        super().problems()
        for name in ("MEM_LEN", "PERSISTENT_VECTORS", "STREAM_BLOCKS"):
            if not self.all_attention and getattr(self, name) is not None:
                raise ValueError(f"{self.said(name)} has no effect on ARCH=transformer_lm: unset it")
        for name in ("MAX_TOKENS", "EVAL_TOKENS"):
            if getattr(self, name) < self.TOKENS_PER_SAMPLE:
                raise ValueError(f"{self.said(name)} must be at least {self.said('TOKENS_PER_SAMPLE')}")
        if self.MIN_LR is not None:
            self.below("MIN_LR", "LR")
            if self.PRUNE_SCHEDULE == "cosine" and self.PRUNE_LR[0] <= self.MIN_LR:
                raise ValueError(f"{self.said('MIN_LR')} must be below {self.said('PRUNE_LR')}")
        if self.BPE and self.VOCABULARY:
            raise ValueError(f"{self.said('VOCABULARY')} has no effect with {self.said('BPE')}: set BPE=0, or unset it")


class WikiText103(Download, LanguageModel):
    """Settings of wikitext103.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    DEFAULTS = LanguageModel.DEFAULTS
