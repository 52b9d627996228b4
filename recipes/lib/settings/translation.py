"""Settings of the recipes for translation."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from runs import Heads, method, plan, types_of_runs, weight
from settings import types as t
from settings.general import (
    DATA_DIR,
    STEPS,
    Download,
    Search,
    Sequences,
    Training,
    evaluation,
    given,
    machine,
    model,
    pruning,
    text,
    training,
)

TypesOfRuns = Annotated[list[Annotated[str, t.check(types_of_runs)]], t.BLANKS, t.ONCE]
Kinds = Annotated[list[str], t.BLANKS, t.ONCE]
Methods = Annotated[list[Annotated[str, t.check(method)]], t.BLANKS, t.ONCE]
Weights = Annotated[list[Annotated[str, t.check(weight)]], t.BLANKS, t.ONCE]
# Columns of the table, which METRIC_NAME may not name.
COLUMNS = ("model", "enc-self", "dec-self", "dec-enc", "total", "params", "BLEU", "diff", "p", "chrF", "nll")


class Translation(Sequences, Search):
    """Settings of translation.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("RAW_DIR", "OUT_DIR", "SRC", "TGT")
    DEFAULTS = (
        Search.DEFAULTS
        | Training.DEFAULTS
        | {
            **given(
                "LOWERCASE=0 PRETOKENIZED=0 BPE=6000 JOINT=1 UNTIED=0 EMBED=128 FFN=512 "
                "LAYERS=3 HEADS=8 PRE_NORM=1 DROPOUT=0.1 MAX_TOKENS=2500 SCHEDULE=polynomial_decay LR=0.004 "
                "WARMUP=600"
            ),
            "DECODER_LAYERS": "$LAYERS",
            "EPOCHS": lambda s: "16" if s.SCHEDULE == "inverse_sqrt" else None,
            "UPDATES": lambda s: "6000" if s.SCHEDULE != "inverse_sqrt" and s.EPOCHS is None else None,
            **given(
                "AVERAGE=0 SELECTION=bleu KEEP_EPOCHS=0 DEV_TRANSLATIONS=0 SCRATCH= PRUNE_UPDATES=2000 "
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
    SCRATCH: Kinds = pruning(
        "TYPES as in RUNS, params or speed, separated by spaces: models with the heads (and neurons) of these runs are "
        "also trained from scratch",
        record="",
        none=True,
    )
    METRIC: t.Program = evaluation(
        "command that is run with the files SOURCE TRANSLATION REFERENCE; its last line is a number for all sentences"
    )
    METRIC_NAME: t.Column = evaluation("name of the column of METRIC")
    DEV_TRANSLATIONS: t.Count = evaluation(
        "translate the first N sentences of the validation set with the checkpoint of every epoch of each model, into "
        "dev/EPOCH.json of its folder (needs KEEP_EPOCHS=1); 0: none",
        record="",
    )
    PAPER: Literal["wmt", "opensubtitles"] = evaluation("also print table 2 of Voita et al. 2019 for this data")

    def heads(self) -> Heads:
        decoder = self.HEADS * (self.DECODER_LAYERS or self.LAYERS)
        return Heads({"enc-self": self.HEADS * self.LAYERS, "dec-self": decoder, "dec-enc": decoder})

    def plan(self) -> list[str]:
        return plan(self.runs(), self.heads(), self.SCRATCH, self.ITERATIONS)

    def problems(self) -> None:
        super().problems()
        if self.SCHEDULE == "polynomial_decay" and not self.UPDATES:
            raise ValueError(
                "SCHEDULE=polynomial_decay needs UPDATES, the number of updates of the baseline, not "
                f"{self.said('EPOCHS')}: set UPDATES, or SCHEDULE=inverse_sqrt, which also takes EPOCHS"
            )
        if self.EPOCHS == 0 and not self.UPDATES:
            raise ValueError("EPOCHS=0 would train without end: it must be 1 or more, or set UPDATES")
        if self.AVERAGE and not self.SAVE_EVERY:
            raise ValueError(
                f"{self.said('AVERAGE')} needs checkpoints to average: set SAVE_EVERY to a number of updates"
            )
        # For shorter runs the average takes all checkpoints that exist.
        if self.AVERAGE and self.UPDATES and (saved := math.ceil(self.UPDATES / self.SAVE_EVERY)) < self.AVERAGE:
            raise ValueError(
                f"{self.said('AVERAGE')} must be at most {saved}, the number of checkpoints of "
                f"{self.said('UPDATES')} with {self.said('SAVE_EVERY')}"
            )
        if self.DEV_TRANSLATIONS and (self.KEEP_EPOCHS == "0" or self.SAVE_EVERY):
            raise ValueError(
                f"{self.said('DEV_TRANSLATIONS')} needs a checkpoint of every epoch: set KEEP_EPOCHS=1 alone"
            )
        existing = list(dict.fromkeys(run.types for run in self.RUNS))
        for types in self.SCRATCH:
            if types not in existing:
                raise ValueError(
                    f"SCRATCH={types} must be among the types of RUNS ({', '.join(existing) or 'RUNS is empty'})"
                )
        if self.METRIC and self.METRIC_NAME in COLUMNS:
            columns = ", ".join(COLUMNS)
            raise ValueError(f"{self.said('METRIC_NAME')} is a column of the table: choose a name beside {columns}")


class Demo(Translation):
    """Settings of demo.sh."""

    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    HIDDEN: ClassVar[tuple[str, ...]] = (
        *("HOSTS", "SSH", "PORT", "LAUNCHER", "WORKERS", "CPU", "HEADGATES", "SHARE", "SRC", "TGT", "PAPER"),
        *("METRIC", "METRIC_NAME", "KEEP_EPOCHS", "DEV_TRANSLATIONS", "TOKENS_PER_UPDATE"),
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
        "PRUNE_WARMUP": "$WARMUP",
        "SCRATCH": lambda s: "all" if any(run.types == "all" and run.method == "l0" for run in s.RUNS) else "",
    }

    RAW_DIR: t.Folder = text(
        "folder with your own text, {train,valid,test}.{en,ru}, instead of the download (tokenised: PRETOKENIZED=1)",
        record="",
    )


class WmtEnRu(Published):
    """Settings of wmt_en_ru.sh."""

    DEV: t.Word = text("validation set, named as in sacrebleu", record="data")
    TEST: t.Word = text("test set, named as in sacrebleu", record="data")
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
    DATA_DIR: t.Place = text(DATA_DIR, record="")
