"""What the settings of all recipes share: how a setting is declared, and those of every recipe and of every training.

DEFAULTS of a class has defaults as texts, as the name of another setting ("$LR"), or as functions of the other
settings; a recipe gives its own in its script. A setting that nothing sets is None, and empty in the shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr

from runs import GATED, TRAINED, UNTRAINED, Heads, Run, check, parse, plan, with_method
from settings import types as t

Default = str | Callable[[Any], Any]
GROUPS = ("text", "model", "training", "pruning", "evaluation", "machine")
Precision = Literal["fp16", "amp", "fp32"]
Runs = Annotated[list[Run], BeforeValidator(lambda text: [parse(word) for word in text.split()]), t.ONCE]
STEPS = "cumulative percentages of the heads to remove, separated by commas"
DATA_DIR = "folder with downloaded files (missing ones are downloaded), or the URL of a mirror"


def setting(group: str, usual_record: str, meaning: str, **options: Any) -> Any:
    """Declare a setting.

    Args:
        group: its group in --help
        usual_record: name of the file in OUT_DIR that holds its value, from which later runs may not differ; "" for
            none. With a trailing "?" it holds it only if it is not the default
        meaning: what it does
        options: first=True, if it is among those that matter first; none=True, if an empty text means none instead of
            the default; another `record`
    """
    return Field(None, description=meaning, json_schema_extra={"group": group, "record": usual_record} | options)


text, model, training = (partial(setting, group, "settings") for group in ("text", "model", "training"))
pruning = partial(setting, "pruning", "runs")
evaluation, machine = (partial(setting, group, "") for group in ("evaluation", "machine"))


def given(words: str) -> dict[str, str]:
    """Return defaults from words NAME=VALUE."""
    return dict(word.split("=", 1) for word in words.split())


class Settings(BaseModel):
    """Settings that every recipe has."""

    DEFAULTS: ClassVar[dict[str, Default]] = {"DRY_RUN": "0"}
    ARGUMENTS: ClassVar[tuple[str, ...]] = ("OUT_DIR",)
    HIDDEN: ClassVar[tuple[str, ...]] = ()  # settings that --help leaves out

    _texts: dict[str, str] = PrivateAttr(default_factory=dict)

    OUT_DIR: str = Field("")
    DRY_RUN: t.Switch = machine("1: as --dry-run")
    GPUS: t.Count = machine("number of GPUs of this machine (default: all that nvidia-smi shows)")
    HOSTS: t.Words = machine(
        "names of the machines, separated by spaces, this one first: torchrun is started on each by ssh in this "
        "folder, which must have the same path on all"
    )
    SSH: t.Words = machine("command that reaches the other HOSTS (default: ssh)")
    PORT: t.Port = machine("free port of the first machine, for HOSTS and SLURM (default: 29500)")
    LAUNCHER: t.Words = machine("command that starts WORKERS processes of a script, instead of torchrun: srun python3")
    WORKERS: t.Whole = machine("number of processes that LAUNCHER starts, one for each GPU; required with LAUNCHER")
    CPU: t.Switch = machine("1: run a recipe of full size although there is no GPU (GPUS=0: although there is one)")
    HEADGATES: t.Plugin = machine("folder of the plugin (default: the output of headgates path)")

    @property
    def texts(self) -> dict[str, str]:
        """The settings as they are given, without those that nothing sets."""
        return self._texts

    def said(self, name: str) -> str:
        """Return NAME=VALUE for messages."""
        return f"{name}={shlex.quote(self.texts.get(name, ''))}"

    def problems(self) -> None:
        """Raise ValueError, in one line, for settings that contradict each other."""
        if self.LAUNCHER and not self.WORKERS:
            raise ValueError(f"WORKERS must be set to the number of processes that {self.said('LAUNCHER')} starts")

    def arrays(self) -> dict[str, list[str]]:
        """Return the arrays that the shell gets besides the settings."""
        return {}


class Search(Settings):
    """Translation with beam search."""

    DEFAULTS = Settings.DEFAULTS | {"BEAM": "4", "LENPEN": "1", "GENERATION_TOKENS": "4000"}

    BEAM: t.Whole = evaluation("beam size", record="generation")
    LENPEN: t.Number = evaluation("exponent of the length penalty, as fairseq-generate --lenpen", record="generation")
    GENERATION_TOKENS: t.Whole = evaluation("--max-tokens of generation")


class Training(Settings):
    """Training of a model, and of the runs that prune it."""

    DEFAULTS = Settings.DEFAULTS | {
        "PORT": "29500",
        "UPDATE_FREQ": "1",
        "SEEDS": "1",
        "SPARSITY_METHOD": "lagrangian",
        "PRUNE_LR": "$LR",
        "ITERATIONS": "4",
        "SENTENCES": "2000",
        "SHARE": "",
    }

    RAW_DIR: str = Field("")
    EMBED: t.Whole = model("embedding dimension", first=True)
    FFN: t.Whole = model("dimension of the feed-forward layers", first=True)
    LAYERS: t.Whole = model("layers (of a translation model: of the encoder)", first=True)
    HEADS: t.Whole = model("attention heads in a layer; they must divide EMBED", first=True)
    DROPOUT: t.Share = model("dropout")
    UPDATES: t.Whole = training("updates of the baseline", first=True)
    LR: t.Above0 = training("learning rate of the baseline", first=True)
    WARMUP: t.Count = training("warm-up updates of the baseline")
    UPDATE_FREQ: t.Wholes = training("batches for each update, as fairseq-train --update-freq")
    TRAIN_FLAGS: t.Text = training("more options for every fairseq-train, separated by spaces (no quotes): --fp16")
    SEEDS: t.Seeds = training(
        "random seeds of training, separated by spaces; with several, each has its folder", first=True
    )
    RUNS: Runs = pruning(
        "pruning runs, separated by spaces. TYPES:LAMBDA trains gates with an L0 penalty (TYPES:LAMBDA@SCALE: with "
        "--gate-lr-scale SCALE, a number); TYPES=N@METHOD keeps N heads, a number (12) or a fraction (0.5). METHOD "
        f"trains gates ({', '.join(GATED)}), removes heads by scores and then trains ({', '.join(TRAINED)}), or does "
        f"not train ({', '.join(UNTRAINED)}: with refit the model is refitted); without @METHOD it is "
        "SPARSITY_METHOD. params=N removes heads and feed-forward neurons until N parameters, or a share of all (0.7), "
        "are left, and speed=X until the model is X times as fast; then it trains, with @only it does not. TYPES: all, "
        "or attention types (enc-self,dec-self,dec-enc); without TYPES it is all. With enc-self alone "
        "the decoder of a translation model is frozen. Empty: none",
        record="",
        first=True,
        none=True,
    )
    PRUNE_UPDATES: t.Whole = pruning("updates of each run of RUNS and its control", first=True)
    PRUNE_LR: t.Rates = pruning("learning rate of each run of RUNS and its control")
    PRUNE_WARMUP: t.Count = pruning("warm-up updates of each run of RUNS and its control")
    GATE_LR_SCALE: t.Above0 = pruning("--gate-lr-scale of runs that train gates (default: 50)")
    L0_WARMUP: t.Count = pruning("--l0-warmup-updates of runs with a LAMBDA")
    SPARSITY_METHOD: Literal["lagrangian", "subset"] = pruning(
        "METHOD of runs without one: lagrangian or subset", record=""
    )
    SPARSITY_WARMUP: t.Count = pruning("--sparsity-warmup-updates of lagrangian and subset")
    FIX_AFTER: t.Count = pruning("--fix-gates-after of runs that train gates (0: never)")
    SENTENCES: t.Whole = pruning("compute scores, and compress, on the first SENTENCES of the training set")
    ITERATIONS: t.Whole = pruning("steps of METHOD iterative")
    SHARE: t.Part = machine("I/N: train only the I-th of N shares of the models, beside the other shares; no table")

    KEEP_EPOCHS: t.Switch = training("1: keep a checkpoint of every epoch; no effect with SAVE_EVERY", record="")
    SPEED: t.Switch = evaluation("1: evaluate every model once more, to measure its speed")

    def heads(self) -> Heads:
        """Return the numbers of heads of the whole model."""
        raise NotImplementedError

    def runs(self) -> list[Run]:
        """Return the runs of RUNS, with their methods."""
        return with_method(self.RUNS, self.SPARSITY_METHOD)

    def plan(self) -> list[str]:
        """Return the models that are trained besides the baseline, a line for each."""
        return plan(self.runs(), self.heads(), [], self.ITERATIONS)

    def arrays(self) -> dict[str, list[str]]:
        """Return the lines of the plan, also as options of results.table, and the folder of the models of each seed."""
        plan, seeds = self.plan(), [f"{self.OUT_DIR}/seed{seed}" for seed in self.SEEDS]
        return {
            "plan_of_runs": plan,
            "options_of_runs": [word for line in plan for word in ("--run", line)],
            "places": seeds if len(seeds) > 1 else [self.OUT_DIR],
        }

    def problems(self) -> None:
        super().problems()
        if self.EMBED % self.HEADS:
            raise ValueError(f"{self.said('HEADS')} must divide {self.said('EMBED')}")
        check(self.runs(), self.heads(), self.PRUNE_UPDATES, self.ITERATIONS)
        falling = ("polynomial_decay", "cosine")
        for prefix, schedule in (
            ("", getattr(self, "SCHEDULE", falling[0])),
            ("PRUNE_", getattr(self, "PRUNE_SCHEDULE", falling[0])),
        ):
            self.below(f"{prefix}WARMUP", f"{prefix}UPDATES", schedule in falling)
            if schedule == "inverse_sqrt" and getattr(self, f"{prefix}WARMUP") == 0:
                raise ValueError(f"{prefix}WARMUP=0 must be 1 or more with {prefix}SCHEDULE=inverse_sqrt")

    def below(self, name: str, other: str, needed: bool = True) -> None:
        """Raise ValueError unless a setting is below another one."""
        value, limit = getattr(self, name), getattr(self, other)
        if needed and limit is not None and value >= limit:
            raise ValueError(f"{self.said(name)} must be below {self.said(other)}")


class Sequences(Training):
    """Training of models that predict sequences: translation and language models."""

    PRE_NORM: t.Switch = model("1: layer normalisation before each sublayer")
    MAX_TOKENS: t.Whole = training("--max-tokens of training: tokens in a batch, limited by memory")
    TOKENS_PER_UPDATE: t.Whole = training(
        "tokens (of translation: source tokens) for each update on any number of GPUs; sets UPDATE_FREQ and lowers "
        "MAX_TOKENS"
    )
    SAVE_EVERY: t.Whole = training("updates between checkpoints and between validations (default: an epoch)")
    PRUNE_SCHEDULE: Literal["polynomial_decay", "inverse_sqrt", "fixed", "cosine", "reduce_lr_on_plateau"] = pruning(
        "learning rate schedule of each run of RUNS and its control"
    )


class Download(Settings):
    """Recipes of full size, which download their data."""

    DATA_DIR: t.Place = text(DATA_DIR, record="", first=True)
    PRECISION: Precision = training("precision of training (default: fp16 on a GPU)", record="")
    DISK_GB: t.Count = machine(
        "free disk space in GB that the recipe requires; larger models need more than the default"
    )
