#!/usr/bin/env python3
"""Check the settings of a recipe, which are environment variables, before anything runs.

    settings.py RECIPE            for example translation.sh
    settings.py --help RECIPE     list the settings with their meaning and value

Prints nothing when all settings are valid. Otherwise one line on stderr gives the setting, its value and the rule, and
the exit code is 2. An empty setting means the default of the recipe, except for RUNS, SCRATCH, GATES, CURVES, the lists
of sweep.sh and TOKENIZE, where it means none. fairseq-train checks TRAIN_FLAGS.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import classifier_settings
import settings_table
from classifier_settings import check_classifier
from commands import exit_code
from rules import shown
from runs import sizes_of, with_method

RECIPES = {**settings_table.RECIPES, **classifier_settings.RECIPES}

# --- settings that depend on each other -------------------------------------------------------------------------


def check_launcher(given: Mapping[str, Any]) -> None:
    if "LAUNCHER" in given and "WORKERS" not in given:
        launcher = " ".join(given["LAUNCHER"])
        raise ValueError(f"WORKERS must be set to the number of processes that LAUNCHER={launcher!r} starts")


SIZES = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")


def check_architecture(given: Mapping[str, Any]) -> None:
    """The architecture is a transformer, and trains as `transformer_head_gates` does, the architecture of the runs.

    The default is not looked up, because importing fairseq takes seconds.
    """
    name = given.get("ARCH", "transformer")
    if name == "transformer" or "HEADGATES" in given:
        return
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerModel

    from fairseq_headgates.models.transformer import TransformerHeadGatesModel

    if name not in ARCH_MODEL_REGISTRY:
        raise ValueError(f"ARCH={shown(name)} must be an architecture of fairseq, for example transformer_iwslt_de_en")
    if ARCH_MODEL_REGISTRY[name] not in (TransformerModel, TransformerHeadGatesModel):
        raise ValueError(f"ARCH={shown(name)} must be an architecture of fairseq's encoder-decoder transformer")
    own, runs = (_defaults(arch, given) for arch in (name, "transformer"))
    other = [
        f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}")
        for key, value in own.items()
        if runs.get(key) != value
    ]
    if other:
        raise ValueError(
            f"ARCH={shown(name)} has other defaults than transformer_head_gates, the architecture of the runs: set "
            f"ARCH=transformer, and {' '.join(other)} in TRAIN_FLAGS"
        )


def _defaults(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that an architecture sets, without those that the recipe gives to every training."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    ours = {f"{side}_{size}": 1 for side in ("encoder", "decoder") for size in SIZES} | {"dropout": 0.0}
    ours |= {"share_all_embeddings": True, "share_decoder_input_output_embed": True}
    if given.get("PRE_NORM", "1") == "1":
        ours |= {"encoder_normalize_before": True, "decoder_normalize_before": True}
    found = argparse.Namespace(**ours)
    ARCH_CONFIG_REGISTRY[name](found)
    return {key: value for key, value in vars(found).items() if key not in ours}


def check_sizes(given: Mapping[str, Any]) -> None:
    embed, heads = given.get("EMBED"), given.get("HEADS")
    if embed and heads and embed % heads:
        raise ValueError(f"HEADS={heads} must divide EMBED={embed}")


def check_length(given: Mapping[str, Any]) -> None:
    schedule, updates, warmup = (given.get(name) for name in ("SCHEDULE", "UPDATES", "WARMUP"))
    if schedule == "polynomial_decay" and not updates:
        ignored = f", not EPOCHS={given['EPOCHS']}" if "EPOCHS" in given else ""
        raise ValueError(
            f"SCHEDULE='polynomial_decay' needs UPDATES, the number of updates of the baseline{ignored}: set UPDATES, "
            "or SCHEDULE=inverse_sqrt, which also takes EPOCHS"
        )
    if schedule in ("polynomial_decay", "cosine") and warmup and updates and warmup >= updates:
        raise ValueError(f"WARMUP={warmup} must be below UPDATES={updates}")
    further, first = given.get("PRUNE_UPDATES"), given.get("PRUNE_WARMUP")
    if given.get("PRUNE_SCHEDULE") in ("polynomial_decay", "cosine") and further and first and first >= further:
        raise ValueError(f"PRUNE_WARMUP={first} must be below PRUNE_UPDATES={further}")
    if given.get("EPOCHS") == 0 and not updates:
        raise ValueError("EPOCHS=0 would train without end: it must be 1 or more, or set UPDATES")
    if given.get("PRUNE_SCHEDULE") == "inverse_sqrt" and given.get("PRUNE_WARMUP") == 0:
        raise ValueError("PRUNE_WARMUP=0 must be 1 or more with PRUNE_SCHEDULE=inverse_sqrt")


def check_average(given: Mapping[str, Any]) -> None:
    """The baseline saves enough checkpoints. For shorter gated runs the average takes all that exist."""
    average, every, updates = (given.get(name) for name in ("AVERAGE", "SAVE_EVERY", "UPDATES"))
    if average and not every:
        raise ValueError(f"AVERAGE={average} needs checkpoints to average: set SAVE_EVERY to a number of updates")
    if average and updates and average > (saved := math.ceil(updates / every)):
        raise ValueError(
            f"AVERAGE={average} must be at most {saved}, the number of checkpoints of UPDATES={updates} with "
            f"SAVE_EVERY={every}"
        )


def check_scratch(given: Mapping[str, Any]) -> None:
    existing = ", ".join(dict.fromkeys(run.types for run in given.get("RUNS", ())))
    for types in given.get("SCRATCH", ()):
        if types not in existing.split(", "):
            raise ValueError(f"SCRATCH={types!r} must be among the types of RUNS ({existing or 'RUNS is empty'})")


def check_runs(given: Mapping[str, Any]) -> None:
    """Names of runs are unique, and no run keeps more heads than there are."""
    found = given.get("RUNS", [])
    names = [run.name for run in with_method(found, given.get("SPARSITY_METHOD", "lagrangian"))]
    layers, decoder_layers, heads = (given.get(name) for name in ("LAYERS", "DECODER_LAYERS", "HEADS"))
    sizes = sizes_of(layers or 0, decoder_layers, heads or 0)
    for i, run in enumerate(found):
        if names[i] in names[:i]:
            raise ValueError(f"RUNS must not name {str(run)!r} twice")
        total = run.total(sizes) if layers and heads else math.inf
        if run.method != "l0" and "." not in run.value and int(run.value) > total:
            raise ValueError(
                f"RUNS names {str(run)!r}, more heads than there are: it must be at most {total} ("
                + ", ".join(f"{kind} {sizes[kind]}" for kind in run.kinds)
                + ")"
            )
        if run.method == "iterative" and given.get("ITERATIONS", 0) > given.get("PRUNE_UPDATES", math.inf):
            raise ValueError(f"ITERATIONS={given['ITERATIONS']} must be at most PRUNE_UPDATES={given['PRUNE_UPDATES']}")


def check_seeds(given: Mapping[str, Any]) -> None:
    if "SEED" in given and given.get("SEEDS", [given["SEED"]]) != [given["SEED"]]:
        raise ValueError(f"SEED={given['SEED']} and SEEDS={' '.join(map(str, given['SEEDS']))!r}: set only SEEDS")


def check_epochs(given: Mapping[str, Any]) -> None:
    if "MEASURED" in given and "SAVE_EVERY" in given:
        raise ValueError(
            f"SAVE_EVERY={given['SAVE_EVERY']} must not be set: MEASURED needs a checkpoint of every epoch"
        )
    if "MEASURED" in given and len(given.get("SEEDS", [])) > 1:
        raise ValueError(f"SEEDS={' '.join(map(str, given['SEEDS']))!r} must be one seed: run the recipe once for each")


def check_language_model(given: Mapping[str, Any]) -> None:
    """Settings of a language model: blocks fit into a batch, rates fall, and no size is given in vain."""
    arch, block = given.get("ARCH", "transformer_lm"), given.get("TOKENS_PER_SAMPLE", 0)
    for name in ("MEM_LEN", "PERSISTENT_VECTORS", "STREAM_BLOCKS"):
        if arch == "transformer_lm" and name in given:
            raise ValueError(f"{name}={given[name]} has no effect on ARCH=transformer_lm: unset it")
    for name in ("MAX_TOKENS", "EVAL_TOKENS"):
        if given.get(name, block) < block:
            raise ValueError(f"{name}={given[name]} must be at least TOKENS_PER_SAMPLE={block}")
    for name in ("LR", *(["PRUNE_LR"] if given.get("PRUNE_SCHEDULE") == "cosine" else [])):
        if given.get("MIN_LR", 0) >= given.get(name, math.inf):
            raise ValueError(f"MIN_LR={given['MIN_LR']:g} must be below {name}={given[name]:g}")
    if given.get("BPE") and given.get("VOCABULARY"):
        raise ValueError(
            f"VOCABULARY={given['VOCABULARY']} has no effect with BPE={given['BPE']}: set BPE=0, or unset it"
        )


TOGETHER = [
    check_launcher,
    check_sizes,
    check_length,
    check_average,
    check_scratch,
    check_runs,
    check_seeds,
    check_epochs,
    check_architecture,
    check_classifier,
]
OF_LANGUAGE_MODELS = [check_launcher, check_sizes, check_length, check_seeds, check_language_model]
OF_RECIPE = {"language_model.sh": OF_LANGUAGE_MODELS, "wikitext103.sh": OF_LANGUAGE_MODELS}  # of the others: TOGETHER


def check(recipe: str, environment: Mapping[str, str]) -> None:
    """Raise ValueError, with one line, for the first invalid setting of the recipe."""
    given = {}
    for name, setting in RECIPES[recipe].items():
        text = environment.get(name, "")
        if text:
            try:
                given[name] = setting.rule(text)
                if len(text.splitlines()) > 1:
                    raise ValueError("must be one line")
            except ValueError as error:
                raise ValueError(f"{name}={shown(text)} {error}") from None
    for check_together in OF_RECIPE.get(recipe, TOGETHER):
        check_together(given)


def describe(recipe: str, environment: Mapping[str, str]) -> str:
    """List the settings of a recipe: name and value, then the meaning."""
    lines = ["Settings are environment variables: NAME=VALUE recipes/" + recipe + " ... (current values below)"]
    for name, setting in RECIPES[recipe].items():
        if setting.meaning != "argument":
            value = environment.get(name, "")
            lines += [f"  {name}={value!r}" if " " in value else f"  {name}={value}", f"      {setting.meaning}"]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    *option, recipe = argv or [""]
    if recipe not in RECIPES or option not in ([], ["--help"]):
        print(f"settings.py: give the name of one recipe: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    if option:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # with "--help | head" end as other programs do
        print(describe(recipe, os.environ))
        return 0
    return exit_code(recipe, check, recipe, os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
