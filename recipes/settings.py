#!/usr/bin/env python3
"""Checks the settings of a recipe before anything runs.

    settings.py RECIPE      for example translation.sh; the settings are environment variables

Prints nothing when all settings are valid. Otherwise one line on stderr names the setting, its value and the rule, and
the exit code is 2. An empty setting takes the default of the recipe, except RUNS and SCRATCH, where it means none.
TRAIN_FLAGS is left to fairseq-train. The comment at the top of each recipe says what its settings mean.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

from rules import (
    Rules,
    each,
    english_russian_set,
    epochs,
    heads_to_keep,
    language,
    number,
    one_of,
    place,
    plugin_folder,
    runs,
    shown,
    types_of_runs,
    whole,
    word,
    words,
)

# --- the table ----------------------------------------------------------------------------------------------------


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"must be options of clean.py; {message}")


def cleaning(text: str) -> argparse.Namespace:
    """Options of clean.py."""
    from clean import add_options

    parser = _Options(add_help=False)
    add_options(parser)
    return parser.parse_args(text.split())


switch = one_of("0", "1")
MACHINE: Rules = {
    "DRY_RUN": switch,
    "GPUS": whole(0),
    "HOSTS": words,
    "LAUNCHER": words,
    "WORKERS": whole(),
    "PORT": whole(1, 65535),
    "CPU": switch,
    "DISK_GB": whole(0),
}
SEARCH: Rules = {"BEAM": whole(), "LENPEN": number(), "GENERATION_TOKENS": whole(), "HEADGATES": plugin_folder}
TRANSLATION: Rules = {
    **MACHINE,
    **SEARCH,
    "LOWERCASE": switch,
    "PRETOKENIZED": switch,
    "CLEAN": cleaning,
    "BPE": whole(),
    "JOINT": switch,
    "ARCH": word,
    "EMBED": whole(),
    "FFN": whole(),
    "LAYERS": whole(),
    "HEADS": whole(),
    "PRE_NORM": switch,
    "DROPOUT": number(0, 1),
    "MAX_TOKENS": whole(),
    "UPDATE_FREQ": each(whole()),
    "TOKENS_PER_UPDATE": whole(),
    "EPOCHS": whole(0),
    "UPDATES": whole(),
    "LR": number(above=0),
    "WARMUP": whole(),
    "KEEP_EPOCHS": switch,
    "SAVE_EVERY": whole(),
    "AVERAGE": whole(0),
    "RUNS": runs,
    "SCRATCH": types_of_runs,
    "PRUNE_UPDATES": whole(),
    "PRUNE_LR": each(number(above=0)),
    "PRUNE_WARMUP": whole(0),
    "PRUNE_SCHEDULE": one_of("polynomial_decay", "inverse_sqrt", "fixed", "cosine", "reduce_lr_on_plateau"),
    "GATE_LR_SCALE": number(above=0),
    "SEED": whole(0, 2**32 - 1),
    "PAPER": one_of("wmt", "opensubtitles"),
}
PUBLISHED: Rules = {**TRANSLATION, "DATA_DIR": place, "PRECISION": one_of("fp16", "amp", "fp32")}
STEPS: Rules = {"STEPS": each(number(0, 100))}
RECIPES: Mapping[str, Rules] = {
    "translation.sh": {**TRANSLATION, "SRC": language, "TGT": language},
    "demo.sh": TRANSLATION,
    "wmt_en_ru.sh": {**PUBLISHED, "DEV": english_russian_set, "TEST": english_russian_set},
    "opensubtitles_en_ru.sh": {**PUBLISHED, "OVERLAP": number(0, 1), "PAIRS": whole(), "HELD_OUT": whole()},
    "iwslt14_de_en.sh": {"MEASURED": epochs, **STEPS, **TRANSLATION, "DATA_DIR": place},
    "prune_pretrained.sh": {
        **MACHINE,
        **SEARCH,
        **STEPS,
        "DATA_DIR": place,
        "SRC": language,
        "TGT": language,
        "KEEP": heads_to_keep,
        "SENTENCES": whole(),
    },
}


# --- settings that depend on each other -------------------------------------------------------------------------


def check_launcher(given: Mapping[str, Any]) -> None:
    if "LAUNCHER" in given and "WORKERS" not in given:
        launcher = " ".join(given["LAUNCHER"])
        raise ValueError(f"WORKERS must be set to the number of processes that LAUNCHER={launcher!r} starts")


def check_architecture(given: Mapping[str, Any]) -> None:
    """fairseq or the plugin has the architecture; the default is not looked up, which takes seconds."""
    name = given.get("ARCH", "transformer")
    if name == "transformer" or "HEADGATES" in given:
        return
    from fairseq.models import ARCH_MODEL_REGISTRY

    import fairseq_headgates  # noqa: F401  (registers its architectures)

    if name not in ARCH_MODEL_REGISTRY:
        raise ValueError(f"ARCH={shown(name)} must be an architecture of fairseq, for example transformer_iwslt_de_en")


def check_sizes(given: Mapping[str, Any]) -> None:
    embed, heads = given.get("EMBED"), given.get("HEADS")
    if embed and heads and embed % heads:
        raise ValueError(f"HEADS={heads} must divide EMBED={embed}")


def check_length(given: Mapping[str, Any]) -> None:
    if given.get("EPOCHS") == 0 and "UPDATES" not in given:
        raise ValueError("EPOCHS=0 would train without end: it must be 1 or more, or set UPDATES")
    if given.get("PRUNE_SCHEDULE") == "inverse_sqrt" and given.get("PRUNE_WARMUP") == 0:
        raise ValueError("PRUNE_WARMUP=0 must be 1 or more with PRUNE_SCHEDULE=inverse_sqrt")


def check_average(given: Mapping[str, Any]) -> None:
    """The baseline saves enough checkpoints; of shorter gated runs the mean takes all there are."""
    average, every, updates = (given.get(name) for name in ("AVERAGE", "SAVE_EVERY", "UPDATES"))
    if average and not every:
        raise ValueError(
            f"AVERAGE={average} needs checkpoints to take the mean of: set SAVE_EVERY to a number of updates"
        )
    if average and updates and average > (saved := math.ceil(updates / every)):
        raise ValueError(
            f"AVERAGE={average} must be at most {saved}, the number of checkpoints of UPDATES={updates} with "
            f"SAVE_EVERY={every}"
        )


def check_scratch(given: Mapping[str, Any]) -> None:
    there = ", ".join(dict.fromkeys(types for types, _ in given.get("RUNS", ())))
    for types in given.get("SCRATCH", ()):
        if types not in there.split(", "):
            raise ValueError(f"SCRATCH={types!r} must be among the types of RUNS ({there or 'there are none'})")


def check_epochs(given: Mapping[str, Any]) -> None:
    if "MEASURED" in given and "SAVE_EVERY" in given:
        raise ValueError(
            f"SAVE_EVERY={given['SAVE_EVERY']} must not be set: MEASURED needs a checkpoint of every epoch"
        )


TOGETHER = [check_launcher, check_sizes, check_length, check_average, check_scratch, check_epochs, check_architecture]


def check(recipe: str, environment: Mapping[str, str]) -> None:
    """Raises ValueError, with one line, for the first setting of the recipe that cannot be obeyed."""
    given = {}
    for name, rule in RECIPES[recipe].items():
        text = environment.get(name, "")
        if text:
            try:
                given[name] = rule(text)
            except ValueError as error:
                raise ValueError(f"{name}={shown(text)} {error}") from None
    for check_together in TOGETHER:
        check_together(given)


def main(argv: list[str]) -> int:
    if len(argv) != 1 or argv[0] not in RECIPES:
        print(f"settings.py: give the name of one recipe: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    try:
        check(argv[0], os.environ)
    except ValueError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
