"""The settings of the recipes: environment variables, each with its type, meaning and group.

Families inherit what they share. DEFAULTS of a class has defaults as texts, as the name of another setting ("$LR"), or
as functions of the other settings; a recipe gives its own in its script. A setting that nothing sets is None, and empty
in the shell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from settings import checks, estimates
from settings import types as t
from settings.runs import Heads, plan
from settings.shared import (
    STEPS,
    Curves,
    Download,
    Methods,
    Search,
    Sequences,
    Settings,
    Training,
    TypesOfRuns,
    Weights,
    evaluation,
    given,
    machine,
    model,
    pruning,
    text,
    training,
)


class Translation(Sequences, Search):
    """Settings of translation.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("RAW_DIR", "OUT_DIR", "SRC", "TGT")
    DEFAULTS = (
        Search.DEFAULTS
        | Training.DEFAULTS
        | {
            **given(
                "LOWERCASE=0 PRETOKENIZED=0 BPE=6000 JOINT=1 UNTIED=0 ARCH=transformer EMBED=128 FFN=512 "
                "LAYERS=3 HEADS=8 PRE_NORM=1 DROPOUT=0.1 MAX_TOKENS=2500 SCHEDULE=polynomial_decay LR=0.004 "
                "WARMUP=600"
            ),
            "DECODER_LAYERS": "$LAYERS",
            "EPOCHS": lambda s: "16" if s.SCHEDULE == "inverse_sqrt" else None,
            "UPDATES": lambda s: "6000" if s.SCHEDULE != "inverse_sqrt" and s.EPOCHS is None else None,
            **given(
                "AVERAGE=0 SELECTION=bleu KEEP_EPOCHS=0 SCRATCH= PRUNE_UPDATES=2000 "
                "PRUNE_SCHEDULE=polynomial_decay METRIC_NAME=metric SPEED=0"
            ),
            "RUNS": "all=0.5 enc-self=0.25",
            "PRUNE_WARMUP": lambda s: s.PRUNE_UPDATES // 20,
            "SPARSITY_WARMUP": lambda s: s.PRUNE_UPDATES // 5,
            "FIX_AFTER": lambda s: s.PRUNE_UPDATES * 3 // 10,
        }
    )

    SRC: t.Language = text("source language")
    TGT: t.Language = text("target language")
    LOWERCASE: t.Switch = text("1: lowercase the text; BLEU is then case-insensitive")
    PRETOKENIZED: t.Switch = text("1: the text is already tokenised; the reference is detokenised for scoring")
    CLEAN: t.Cleaning = text(
        "remove pairs of the training text that are empty, too long, of too different lengths, or in valid or test: "
        "options of text.clean, --max-length N (default: 200), --max-ratio R (9), --unique; empty: no cleaning"
    )
    BPE: t.Whole = text("number of BPE merge operations", first=True)
    JOINT: t.Switch = text("1: one BPE code for both languages; 0: one for each")
    UNTIED: t.Switch = model(
        "1: a dictionary for each language, no shared embeddings; 0: with JOINT=1 one dictionary, and all embeddings "
        "and the output matrix are shared; with JOINT=0 the decoder's embeddings and the output matrix are",
        record="settings?",
    )
    ARCH: t.Word = model(
        "architecture of the baseline and baseline+; apart from the settings of the recipe it must equal "
        "transformer_head_gates, the architecture of the runs"
    )
    DECODER_LAYERS: t.Whole = model("layers of the decoder (default: LAYERS)")
    SCHEDULE: Literal["polynomial_decay", "inverse_sqrt"] = training(
        "learning rate schedule of the baseline; polynomial_decay, to 0 at UPDATES: its last checkpoint is used"
    )
    EPOCHS: t.Count = training("epochs of the baseline with SCHEDULE=inverse_sqrt, if UPDATES is empty")
    AVERAGE: t.Count = training(
        "number of last checkpoints to average, with SAVE_EVERY; 0: use the last one, and of a baseline with "
        "SCHEDULE=inverse_sqrt the one that SELECTION names"
    )
    SELECTION: Literal["bleu", "last"] = training(
        "checkpoint of a baseline with SCHEDULE=inverse_sqrt and AVERAGE=0: the one with the best BLEU on the "
        "validation set, which is translated after each epoch, or the last one, which costs no translation",
        record="settings?",
    )
    SCRATCH: TypesOfRuns = pruning(
        "TYPES as in RUNS, separated by spaces: models with the heads of these runs are also trained from scratch",
        record="",
        none=True,
    )
    METRIC: t.Program = evaluation(
        "command that is run with the files SOURCE TRANSLATION REFERENCE; its last line is a number for all sentences"
    )
    METRIC_NAME: t.Column = evaluation("name of the column of METRIC")
    PAPER: Literal["wmt", "opensubtitles"] = evaluation("also print table 2 of Voita et al. 2019 for this data")

    def heads(self) -> Heads:
        decoder = self.HEADS * (self.DECODER_LAYERS or self.LAYERS)
        return Heads({"enc-self": self.HEADS * self.LAYERS, "dec-self": decoder, "dec-enc": decoder})

    def plan(self) -> list[str]:
        return plan(self.runs(), self.heads(), self.SCRATCH, self.ITERATIONS)

    def problems(self) -> None:
        super().problems()
        checks.translation(self)


class Demo(Translation):
    """Settings of demo.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    HIDDEN: ClassVar[tuple[str, ...]] = (
        *("HOSTS", "SSH", "PORT", "LAUNCHER", "WORKERS", "CPU", "HEADGATES", "SHARE", "SRC", "TGT", "PAPER"),
        *("METRIC", "METRIC_NAME", "KEEP_EPOCHS", "TOKENS_PER_UPDATE"),
    )

    OMP_NUM_THREADS: t.Whole = machine(
        "threads of a process on the CPU; more are slower on models of this size, and change the results"
    )


class Sweep(Translation):
    """Settings of sweep.sh."""

    DEFAULTS = Translation.DEFAULTS | {
        **given("TYPES=all LAMBDAS= METHODS=lagrangian"),
        "TARGETS": "0.5 0.25 0.125",
        "RUNS": lambda s: s.product(),
    }

    TYPES: TypesOfRuns = pruning(
        "attention types of the runs, separated by spaces: all, or types joined by commas. If RUNS is set, TYPES, "
        "LAMBDAS, TARGETS and METHODS have no effect",
        record="",
    )
    LAMBDAS: Weights = pruning("values of --l0-weight, separated by spaces, a run for each", record="", none=True)
    TARGETS: Annotated[list[t.Heads], t.BLANKS, t.ONCE] = pruning(
        "numbers (12) or fractions (0.5) of heads to keep, separated by spaces, a run for each with each METHOD",
        record="",
        none=True,
    )
    METHODS: Methods = pruning("METHOD as in RUNS, one or more, separated by spaces", record="", none=True)
    JOBS: t.Whole = machine("models trained at the same time (default: the number of GPUs, 1 without)")

    def product(self) -> str:
        """Return the runs of all types with all lambdas, targets and methods."""
        return " ".join(
            run
            for types in self.TYPES
            for run in (
                *(f"{types}:{weight}" for weight in self.LAMBDAS),
                *(f"{types}={target}@{method}" for target in self.TARGETS for method in self.METHODS),
            )
        )


class Published(Download, Translation):
    """Settings of the recipes of Voita et al. 2019."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    DEFAULTS = Translation.DEFAULTS | {
        "DISK_GB": estimates.voita,
        "PRUNE_WARMUP": "$WARMUP",
        "SCRATCH": lambda s: "all" if any(run.types == "all" and run.method == "l0" for run in s.RUNS) else "",
    }

    RAW_DIR: t.Folder = text(
        "folder with your own text, {train,valid,test}.{en,ru}, instead of the download (tokenised: PRETOKENIZED=1)",
        record="",
    )


class WmtEnRu(Published):
    """Settings of wmt_en_ru.sh."""

    DEV: t.EnglishRussianSet = text("validation set, named as in sacrebleu", record="data")
    TEST: t.EnglishRussianSet = text("test set, named as in sacrebleu", record="data")
    TITLES: Literal["wmt15", "v2"] = text(
        "titles of Wikipedia: the headlines of WMT15, or wiki titles v2", record="data"
    )
    EXPECTED_PAIRS: t.Count = text(
        "pairs for training; the recipe stops if it finds over a tenth more or less (0: no check)", record=""
    )


class OpenSubtitlesEnRu(Published):
    """Settings of opensubtitles_en_ru.sh."""

    OVERLAP: t.Share = text("smallest overlap in time of a pair's subtitles", record="data")
    PAIRS: t.Whole = text("pairs for training", record="data")
    HELD_OUT: t.Whole = text("pairs in the validation set, and in the test set", record="data")


class Iwslt14DeEn(Download, Translation):
    """Settings of iwslt14_de_en.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    DEFAULTS = Translation.DEFAULTS | {
        "DISK_GB": estimates.iwslt,
        "EPOCHS": lambda s: s.MEASURED and s.MEASURED[-1],
    }

    MEASURED: t.Epochs = pruning(
        "epochs after which heads are removed; training ends after the last one", record="", first=True
    )
    STEPS: t.Percents = pruning(STEPS, record="")

    def problems(self) -> None:
        super().problems()
        if self.SAVE_EVERY:
            raise ValueError(f"{self.said('SAVE_EVERY')} must not be set: MEASURED needs a checkpoint of every epoch")
        if len(self.SEEDS) > 1:
            raise ValueError(f"{self.said('SEEDS')} must be one seed: run the recipe once for each")


class PrunePretrained(Search):
    """Settings of prune_pretrained.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("CHECKPOINT", "DATA", "OUT_DIR")
    DEFAULTS = Search.DEFAULTS | {
        **given("SRC=en TGT=fr STEPS=0,10,20,30,40,50,60,70,80,90 KEEP=0.8"),
        "TOKENIZE": "tokenize -a",
        "BEAM": "5",
    }

    CHECKPOINT: str = Field("", json_schema_extra={"record": "settings"})
    DATA: str = Field("", json_schema_extra={"record": "settings"})
    SRC: t.Language = text("source language", first=True)
    TGT: t.Language = text("target language", first=True)
    STEPS: t.Percents = pruning(STEPS, record="settings", first=True)
    KEEP: t.Heads = pruning(
        "heads that the pruned checkpoint keeps, by the gradient score: a fraction (0.8) or a number (38)",
        record="settings",
        first=True,
    )
    SENTENCES: t.Whole = pruning(
        "score heads on the first SENTENCES sentences of valid (default: all)", record="settings"
    )
    TOKENIZE: t.Text = text(
        "sacremoses command that tokenises the text, after normalize; empty: the text is already tokenised", none=True
    )
    DATA_DIR: t.Place = text(
        "folder with downloaded files (missing ones are downloaded), or the URL of a mirror", record=""
    )


class LanguageModel(Sequences):
    """Settings of language_model.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("RAW_DIR", "OUT_DIR")
    GONE = {"LAMBDAS": "RUNS='all:0.02 all:0.04'"}
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
        # With all-attention, the three techniques of Shim et al. 2021.
        "L0_WARMUP": lambda s: s.PRUNE_UPDATES * 2 // 5 if s.all_attention else None,
        "GATE_INIT": lambda s: "2" if s.all_attention else None,
        "GATE_HARD": lambda s: str(int(s.all_attention)),
        "GATE_OUTPUT_SCALE": lambda s: str(int(s.all_attention)),
        "RUNS": lambda s: "all:0.05 all:0.1" if s.all_attention else "all:0.02 all:0.04",
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
    OPTIMIZER: t.Optimizer = training("adam, or lamb, which needs NVIDIA's apex")
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
        checks.language_model(self)


class WikiText103(Download, LanguageModel):
    """Settings of wikitext103.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    DEFAULTS = LanguageModel.DEFAULTS | {"DISK_GB": estimates.wikitext}
    UNIT = "tokens"


class Classification(Training):
    """Settings of classification.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("RAW_DIR", "OUT_DIR")
    GONE = {"GATES": "RUNS='all=0.5 all=0.5@subset all:0.1'", "FINETUNE": "RUNS='all=0.5@gradient all=0.5@random'"}
    DEFAULTS = Training.DEFAULTS | {
        **given("LOWERCASE=0 ENCODED=0 BPE=6000"),
        "TOKENIZE": "-l en tokenize",
        "PRETRAINED_DICT": lambda s: s.beside_pretrained("dict.txt"),
        "PRETRAINED_CODES": lambda s: None if s.ENCODED == "1" else s.beside_pretrained("bpecodes"),
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
        "BPE codes of PRETRAINED, of subword-nmt (default: bpecodes in its folder); not with ENCODED=1"
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
        "scores (gradient, ablation, random), separated by spaces, by which heads of the baseline are removed step by "
        "step without training; empty: none",
        record="",
        first=True,
        none=True,
    )
    STEPS: t.Percents = pruning(STEPS, record="curves")
    EVALUATION_TOKENS: t.Whole = evaluation("--max-tokens of scores and of the evaluation on the test set")
    INPUTS: Literal["1", "2"] = text(
        "columns of text that a dry run assumes where the data is missing: 2 for pairs (default: 1)", record=""
    )

    def beside_pretrained(self, name: str) -> str | None:
        """Return the path of a file in the folder of PRETRAINED."""
        return os.path.join(os.path.dirname(self.PRETRAINED) or ".", name) if self.PRETRAINED else None

    def heads(self) -> Heads:
        return Heads({"enc-self": self.HEADS * self.LAYERS})

    def problems(self) -> None:
        super().problems()
        checks.classification(self)


class Mnli(Download, Classification):
    """Settings of mnli.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    DEFAULTS = Classification.DEFAULTS | {"DISK_GB": estimates.mnli}
    UNIT = "pairs of sentences"

    MODEL: t.Word = model(
        "name of the trained model, as in torch.hub; it must use the BPE of GPT-2", record="data", first=True
    )


RECIPES: Mapping[str, type[Settings]] = {
    "translation.sh": Translation,
    "sweep.sh": Sweep,
    "demo.sh": Demo,
    "wmt_en_ru.sh": WmtEnRu,
    "opensubtitles_en_ru.sh": OpenSubtitlesEnRu,
    "iwslt14_de_en.sh": Iwslt14DeEn,
    "prune_pretrained.sh": PrunePretrained,
    "language_model.sh": LanguageModel,
    "wikitext103.sh": WikiText103,
    "classification.sh": Classification,
    "mnli.sh": Mnli,
}
