"""Settings of the recipes for classifiers."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from runs import Heads
from settings import types as t
from settings.general import (
    STEPS,
    Download,
    Training,
    evaluation,
    given,
    model,
    pruning,
    text,
    training,
)

Curves = Annotated[
    list[
        Literal[
            "gradient", "ablation", "confidence", "relevance", "random", "gradient-refit", "ablation-refit",
            "confidence-refit", "relevance-refit", "random-refit", "refit",
        ]
    ],
    t.BLANKS,
    t.ONCE,
]  # fmt: skip


class Classification(Training):
    """Settings of classification.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("RAW_DIR", "OUT_DIR")
    DEFAULTS = Training.DEFAULTS | {
        **given("LOWERCASE=0 ENCODED=0 BPE=6000"),
        "TOKENIZE": "-l en tokenize",
        "PRETRAINED_DICT": lambda s: s.beside_pretrained("dict.txt"),
        "PRETRAINED_CODES": lambda s: None if s.ENCODED == "1" else s.beside_pretrained("tokenizer.json", "bpecodes"),
        **given(
            "EMBED=128 FFN=512 LAYERS=4 HEADS=8 MAX_POSITIONS=128 DROPOUT=0.1 MLM_UPDATES=4000 "
            "MLM_LR=0.001 MLM_WARMUP=300 MLM_TOKENS=4096 UPDATES=1000 LR=0.0003 WARMUP=60 BATCH=32 "
            "STEPS=20,40,60,80 EVALUATION_TOKENS=8000 KEEP_EPOCHS=0 SPEED=0"
        ),
        "CURVES": "gradient ablation random",
        "RUNS": "all=0.8 all=0.6 all=0.4 all=0.2",
        "PRUNE_UPDATES": "$UPDATES",
        "PRUNE_WARMUP": lambda s: s.PRUNE_UPDATES * 6 // 100,
        "SPARSITY_WARMUP": lambda s: s.PRUNE_UPDATES // 5,
        "FIX_AFTER": lambda s: s.PRUNE_UPDATES * 3 // 10,
    }

    TOKENIZE: t.Text = text("options and command of sacremoses for the text; empty: the text is tokenised", none=True)
    LOWERCASE: t.Switch = text("1: lowercase the text")
    ENCODED: t.Switch = text("1: the text is BPE already, tokens separated by spaces; needs PRETRAINED")
    BPE: t.Whole = text("number of BPE merge operations; no effect with PRETRAINED")
    PRETRAINED: t.Text = model(
        "RoBERTa checkpoint of fairseq to fine-tune, with its dictionary and BPE codes; EMBED, FFN, LAYERS, HEADS and "
        "MAX_POSITIONS must be those of the model (empty: a model is trained on the text of the training set)",
        first=True,
    )
    PRETRAINED_DICT: t.Text = model("dictionary of PRETRAINED (default: dict.txt in its folder)")
    PRETRAINED_CODES: t.Text = model(
        "BPE codes of PRETRAINED, of subword-nmt, or its tokenizer.json (NAME.json) of Hugging Face, without TOKENIZE "
        "and LOWERCASE (default: tokenizer.json in its folder, or else bpecodes); not with ENCODED=1"
    )
    MAX_POSITIONS: t.Whole = model(
        "positions of the model; longer inputs (a sentence, or a pair as a whole) lose their end"
    )
    MLM_UPDATES: t.Whole = training("updates of masked language modelling, without PRETRAINED")
    MLM_LR: t.Above0 = training("learning rate of masked language modelling")
    MLM_WARMUP: t.Count = training("warm-up updates of masked language modelling")
    MLM_TOKENS: t.Whole = training("tokens for each update of masked language modelling on any number of GPUs")
    BATCH: t.Whole = training("sentences, or pairs of them, for each update on any number of GPUs")
    CURVES: Curves = pruning(
        "scores (gradient, ablation, confidence, relevance, random), separated by spaces, by which heads of the "
        "baseline are removed step by step without training; after NAME-refit, and by the score refit, the model is "
        "refitted on the training set; empty: none",
        record="",
        first=True,
        none=True,
    )
    STEPS: t.Percents = pruning(STEPS, record="curves")
    EVALUATION_TOKENS: t.Whole = evaluation("--max-tokens of scores and of the evaluation on the test set")
    INPUTS: Literal["1", "2"] = text(
        "columns of text that a dry run assumes where the data is missing: 2 for pairs (default: 1)", record=""
    )

    def beside_pretrained(self, *names: str) -> str | None:
        """Return the path of the first of these files that exists in the folder of PRETRAINED, or else of the last."""
        if not self.PRETRAINED:
            return None
        paths = [os.path.join(os.path.dirname(self.PRETRAINED) or ".", name) for name in names]
        return next(filter(os.path.isfile, paths), paths[-1])

    def heads(self) -> Heads:
        return Heads({"enc-self": self.HEADS * self.LAYERS})

    def problems(self) -> None:
        super().problems()
        self.below("MLM_WARMUP", "MLM_UPDATES")
        if len(self.UPDATE_FREQ) > 1:
            raise ValueError(f"{self.said('UPDATE_FREQ')} must be one number: BATCH is divided by it")
        if self.MAX_POSITIONS < 8:
            raise ValueError(f"{self.said('MAX_POSITIONS')} must be 8 or more")
        if self.ENCODED == "1" and not self.PRETRAINED:
            raise ValueError("ENCODED=1 needs PRETRAINED, the model that the text is encoded for: set it, or ENCODED=0")
        if self.PRETRAINED and os.path.isdir(self.PRETRAINED):
            raise ValueError(f"{self.said('PRETRAINED')} is a folder: give a RoBERTa checkpoint of fairseq")


class Mnli(Download, Classification):
    """Settings of mnli.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    DEFAULTS = Classification.DEFAULTS

    MODEL: t.Word = model(
        "name of the trained model, as in torch.hub; it must use the BPE of GPT-2", record="data", first=True
    )
