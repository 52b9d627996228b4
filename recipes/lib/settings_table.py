"""The settings of the recipes: their rules and meanings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import NamedTuple

from rules import (
    TITLES,
    TYPES,
    Rule,
    anything,
    cutoffs,
    each,
    english_russian_set,
    epochs,
    folder,
    heads_to_keep,
    lambdas,
    language,
    number,
    one_of,
    optimizer,
    place,
    plugin_folder,
    program,
    seeds,
    share,
    types_of_runs,
    whole,
    word,
    words,
)
from runs import GATED, SCORES, runs


class Setting(NamedTuple):
    """The values that a setting may have, and its meaning."""

    rule: Rule
    meaning: str


Settings = Mapping[str, Setting]


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"must be options of clean.py; {message}")


def cleaning(text: str) -> argparse.Namespace:
    """Options of clean.py."""
    from text.clean import add_options

    parser = _Options(add_help=False)
    add_options(parser)
    return parser.parse_args(text.split())


def column(text: str) -> str:
    """The name of a column beside those of the table, and a part of a file name."""
    own = ("model", *TYPES, "total", "params", "BLEU", "diff", "p", "chrF", "nll")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", text) or text in own:
        raise ValueError(
            f"must be letters and digits, for example COMET, and no column of the table ({', '.join(own)})"
        )
    return text


switch = one_of("0", "1")
MACHINE: Settings = {
    "DRY_RUN": Setting(switch, "1: as --dry-run"),
    "GPUS": Setting(whole(0), "number of GPUs of this machine (default: all that nvidia-smi shows)"),
    "HOSTS": Setting(
        words,
        "names of the machines, separated by spaces, this one first: torchrun is started on each by ssh in this "
        "folder, which must have the same path on all",
    ),
    "SSH": Setting(words, "command that reaches the other HOSTS (default: ssh)"),
    "PORT": Setting(whole(1, 65535), "free port of the first machine, for HOSTS and SLURM"),
    "LAUNCHER": Setting(words, "command that starts WORKERS processes of a script, instead of torchrun: srun python3"),
    "WORKERS": Setting(whole(), "number of processes that LAUNCHER starts, one for each GPU; required with LAUNCHER"),
    "CPU": Setting(switch, "1: run a recipe of full size although there is no GPU (GPUS=0: although there is one)"),
    "DISK_GB": Setting(whole(0), "free disk space in GB that the recipe requires (default: estimated)"),
}
SEARCH: Settings = {
    "BEAM": Setting(whole(), "beam size"),
    "LENPEN": Setting(number(), "exponent of the length penalty, as fairseq-generate --lenpen"),
    "GENERATION_TOKENS": Setting(whole(), "--max-tokens of generation"),
    "HEADGATES": Setting(plugin_folder, "folder of the plugin (default: the output of headgates path)"),
}
TRANSLATION: Settings = {
    "LOWERCASE": Setting(switch, "1: lowercase the text; BLEU is then case-insensitive"),
    "PRETOKENIZED": Setting(switch, "1: the text is already tokenised; the reference is detokenised for scoring"),
    "CLEAN": Setting(
        cleaning,
        "remove pairs of the training text that are empty, too long, of too different lengths, or in valid or test: "
        "options of clean.py, --max-length N (default: 200), --max-ratio R (9), --unique; empty: no cleaning",
    ),
    "BPE": Setting(whole(), "number of BPE merge operations"),
    "JOINT": Setting(switch, "1: one BPE code for both languages; 0: one for each"),
    "UNTIED": Setting(
        switch,
        "1: a dictionary for each language, no shared embeddings; 0: with JOINT=1 one dictionary, and all embeddings "
        "and the output matrix are shared; with JOINT=0 the decoder's embeddings and the output matrix are",
    ),
    "ARCH": Setting(
        word,
        "architecture of the baseline and baseline+; apart from the settings of the recipe it must equal "
        "transformer_head_gates, the architecture of the runs",
    ),
    "EMBED": Setting(whole(), "embedding dimension"),
    "FFN": Setting(whole(), "dimension of the feed-forward layers"),
    "LAYERS": Setting(whole(), "layers of the encoder"),
    "DECODER_LAYERS": Setting(whole(), "layers of the decoder (empty: as many as LAYERS)"),
    "HEADS": Setting(whole(), "attention heads in a layer; they must divide EMBED"),
    "PRE_NORM": Setting(switch, "1: layer normalisation before each sublayer"),
    "DROPOUT": Setting(number(0, 1), "dropout"),
    "MAX_TOKENS": Setting(whole(), "--max-tokens of training: tokens in a batch, limited by memory"),
    "UPDATE_FREQ": Setting(each(whole()), "batches for each update, as fairseq-train --update-freq"),
    "TOKENS_PER_UPDATE": Setting(
        whole(), "source tokens for each update on any number of GPUs; sets UPDATE_FREQ and lowers MAX_TOKENS"
    ),
    "SCHEDULE": Setting(
        one_of("polynomial_decay", "inverse_sqrt"),
        "learning rate schedule of the baseline; polynomial_decay, to 0 at UPDATES: its last checkpoint is used",
    ),
    "EPOCHS": Setting(whole(0), "epochs of the baseline with SCHEDULE=inverse_sqrt, if UPDATES is empty"),
    "UPDATES": Setting(whole(), "updates of the baseline"),
    "LR": Setting(number(above=0), "learning rate of the baseline"),
    "WARMUP": Setting(whole(), "warm-up updates of the baseline"),
    "KEEP_EPOCHS": Setting(switch, "1: keep a checkpoint of every epoch; no effect with SAVE_EVERY"),
    "SAVE_EVERY": Setting(whole(), "updates between checkpoints and between validations (default: an epoch)"),
    "AVERAGE": Setting(
        whole(0),
        "number of last checkpoints to average, with SAVE_EVERY; 0: use the last one, and of a baseline with "
        "SCHEDULE=inverse_sqrt the one that SELECTION names",
    ),
    "SELECTION": Setting(
        one_of("bleu", "last"),
        "checkpoint of a baseline with SCHEDULE=inverse_sqrt and AVERAGE=0: the one with the best BLEU on the "
        "validation set, which is translated after each epoch, or the last one, which costs no translation",
    ),
    "RUNS": Setting(
        runs,
        "pruning runs, separated by spaces. TYPES:LAMBDA trains gates with an L0 penalty (TYPES:LAMBDA@SCALE: with "
        "--gate-lr-scale SCALE, a number); TYPES=N@METHOD keeps N "
        "heads, a number (12) or a fraction (0.5). METHOD trains gates (lagrangian, subset), removes heads by scores "
        "and then trains (gradient, ablation, random, iterative), or does not train (gradient-only, ablation-only); "
        "without @METHOD it is SPARSITY_METHOD. TYPES: all, or attention types (enc-self,dec-self,dec-enc). With "
        "enc-self alone the decoder is frozen",
    ),
    "SCRATCH": Setting(
        types_of_runs,
        "TYPES as in RUNS, separated by spaces: models with the heads of these runs are also trained from scratch",
    ),
    "PRUNE_UPDATES": Setting(whole(), "updates of each run of RUNS and its control"),
    "PRUNE_LR": Setting(each(number(above=0)), "learning rate of each run of RUNS and its control"),
    "PRUNE_WARMUP": Setting(
        whole(0), "warm-up updates of each run of RUNS and its control (translation.sh: 5% of PRUNE_UPDATES)"
    ),
    "PRUNE_SCHEDULE": Setting(
        one_of("polynomial_decay", "inverse_sqrt", "fixed", "cosine", "reduce_lr_on_plateau"),
        "learning rate schedule of each run of RUNS and its control: polynomial_decay, inverse_sqrt, fixed, cosine or "
        "reduce_lr_on_plateau",
    ),
    "GATE_LR_SCALE": Setting(number(above=0), "--gate-lr-scale of runs that train gates (default: 50)"),
    "L0_WARMUP": Setting(whole(0), "--l0-warmup-updates of runs with a LAMBDA"),
    "SPARSITY_METHOD": Setting(one_of("lagrangian", "subset"), "METHOD of runs without one: lagrangian or subset"),
    "SPARSITY_WARMUP": Setting(
        whole(0), "--sparsity-warmup-updates of lagrangian and subset (translation.sh: 20% of PRUNE_UPDATES)"
    ),
    "FIX_AFTER": Setting(
        whole(0), "--fix-gates-after of runs that train gates (0: never; translation.sh: 30% of PRUNE_UPDATES)"
    ),
    "SENTENCES": Setting(whole(), "compute scores on the first SENTENCES sentences of the training set"),
    "ITERATIONS": Setting(whole(), "steps of METHOD iterative"),
    "TRAIN_FLAGS": Setting(anything, "more options for every fairseq-train, separated by spaces (no quotes): --fp16"),
    "SEEDS": Setting(seeds, "random seeds of training, separated by spaces; with several, each has its folder"),
    "SEED": Setting(whole(0, 2**32 - 1), "one random seed: the same as SEEDS with one"),
    "METRIC": Setting(
        program,
        "command that is run with the files SOURCE TRANSLATION REFERENCE; its last line is a number for all sentences",
    ),
    "METRIC_NAME": Setting(column, "name of the column of METRIC"),
    "SHARE": Setting(share, "I/N: train only the I-th of N shares of the models, beside the other shares; no table"),
    "SPEED": Setting(switch, "1: translate once more with each model, alone, to measure words per second"),
    "PAPER": Setting(one_of("wmt", "opensubtitles"), "also print table 2 of Voita et al. 2019 for this data"),
    **SEARCH,
    **MACHINE,
}
DATA_DIR = Setting(place, "folder with downloaded files (missing ones are downloaded), or the URL of a mirror")
PUBLISHED: Settings = {
    "DATA_DIR": DATA_DIR,
    "RAW_DIR": Setting(
        folder,
        "folder with your own text, {train,valid,test}.{en,ru}, instead of the download (tokenised: PRETOKENIZED=1)",
    ),
    "PRECISION": Setting(one_of("fp16", "amp", "fp32"), "precision of training (default: fp16 on a GPU)"),
    **TRANSLATION,
}
LANGUAGE_MODEL: Settings = {
    "BPE": Setting(whole(0), "number of BPE merge operations; 0: tokens are the words of the text"),
    "VOCABULARY": Setting(
        whole(0),
        "with BPE=0: symbols of the dictionary, the 4 special ones included; rarer words are unknown; 0: all words",
    ),
    "ARCH": Setting(
        one_of("transformer_lm", "transformer_lm_all_attention"),
        "architecture: transformer_lm (with gates: transformer_lm_head_gates) or transformer_lm_all_attention",
    ),
    "EMBED": TRANSLATION["EMBED"],
    "FFN": Setting(whole(), "transformer_lm: dimension of the feed-forward layers"),
    "LAYERS": Setting(whole(), "layers"),
    "HEADS": TRANSLATION["HEADS"],
    "PRE_NORM": Setting(switch, "transformer_lm: 1: layer normalisation before each sublayer"),
    "DROPOUT": TRANSLATION["DROPOUT"],
    "TOKENS_PER_SAMPLE": Setting(whole(), "tokens of a block, as fairseq-train --tokens-per-sample"),
    "MEM_LEN": Setting(whole(0), "transformer_lm_all_attention: --mem-len (default: TOKENS_PER_SAMPLE)"),
    "PERSISTENT_VECTORS": Setting(
        whole(), "transformer_lm_all_attention: --persistent-vectors (default: 4 times EMBED)"
    ),
    "STREAM_BLOCKS": Setting(whole(), "transformer_lm_all_attention: --stream-blocks (default: 64)"),
    "ADAPTIVE": Setting(
        cutoffs, "adaptive input and softmax with these cut-offs, separated by commas: 20000,60000 (default: none)"
    ),
    "MAX_TOKENS": Setting(whole(), "--max-tokens of training: tokens in a batch, limited by memory"),
    "UPDATE_FREQ": Setting(each(whole()), "batches for each update, as fairseq-train --update-freq"),
    "TOKENS_PER_UPDATE": Setting(
        whole(), "tokens for each update on any number of GPUs; sets UPDATE_FREQ and lowers MAX_TOKENS"
    ),
    "OPTIMIZER": Setting(optimizer, "adam, or lamb, which needs NVIDIA's apex"),
    "SCHEDULE": Setting(
        one_of("polynomial_decay", "inverse_sqrt", "cosine"),
        "learning rate schedule of the baseline; inverse_sqrt: the checkpoint with the lowest loss on the validation "
        "set is used, otherwise the last one",
    ),
    **{name: TRANSLATION[name] for name in ("UPDATES", "LR", "WARMUP", "SAVE_EVERY")},
    "MIN_LR": Setting(number(0), "learning rate at the end of cosine schedules (default: 0)"),
    "LAMBDAS": Setting(lambdas, "values of --l0-weight, separated by spaces, a gated run for each"),
    "PRUNE_UPDATES": Setting(whole(), "updates of each gated run and of baseline+"),
    "PRUNE_LR": Setting(number(above=0), "learning rate of each gated run and of baseline+"),
    "PRUNE_WARMUP": Setting(whole(0), "warm-up updates of each gated run and of baseline+"),
    "PRUNE_SCHEDULE": Setting(
        one_of("polynomial_decay", "inverse_sqrt", "fixed", "cosine"),
        "learning rate schedule of each gated run and of baseline+",
    ),
    "L0_WARMUP": Setting(
        whole(0),
        "--l0-warmup-updates (default: none; with transformer_lm_all_attention 40% of PRUNE_UPDATES)",
    ),
    "GATE_INIT": Setting(number(), "--gate-init (default: that of fairseq-train, and 2 with all-attention)"),
    "GATE_HARD": Setting(switch, "1: --gate-hard"),
    "GATE_OUTPUT_SCALE": Setting(switch, "1: --gate-output-scale"),
    "GATE_LR_SCALE": Setting(number(above=0), "--gate-lr-scale (default: 50)"),
    "FIX_AFTER": Setting(whole(0), "--fix-gates-after (default: never)"),
    "EVAL_TOKENS": Setting(whole(), "--max-tokens of evaluation"),
    "SPEED": Setting(switch, "1: evaluate every model on the test set once more, to measure tokens per second"),
    "PAPER": Setting(one_of("shim", "none"), "shim: also print the heads that Shim et al. 2021 keep"),
    **{name: TRANSLATION[name] for name in ("TRAIN_FLAGS", "SEEDS", "SEED", "HEADGATES")},
    **MACHINE,
}
STEPS = Setting(each(number(0, 100)), "cumulative percentages of the heads to remove, separated by commas")
RECIPES: Mapping[str, Settings] = {
    "translation.sh": {**TRANSLATION, "SRC": Setting(language, "argument"), "TGT": Setting(language, "argument")},
    "sweep.sh": {
        "TYPES": Setting(
            types_of_runs,
            "attention types of the runs, separated by spaces: all, or types joined by commas. If RUNS is set, TYPES, "
            "LAMBDAS, TARGETS and METHODS have no effect",
        ),
        "LAMBDAS": Setting(each(number(0), spaces=True), "values of --l0-weight, separated by spaces, a run for each"),
        "TARGETS": Setting(
            each(heads_to_keep, spaces=True),
            "numbers (12) or fractions (0.5) of heads to keep, separated by spaces, a run for each with each METHOD",
        ),
        "METHODS": Setting(
            each(one_of(*GATED, *SCORES), spaces=True), "METHOD as in RUNS, one or more, separated by spaces"
        ),
        "JOBS": Setting(whole(), "models trained at the same time (default: the number of GPUs, 1 without)"),
        **TRANSLATION,
    },
    "demo.sh": {
        "OMP_NUM_THREADS": Setting(
            whole(), "threads of a process on the CPU; more are slower on models of this size, and change the results"
        ),
        **TRANSLATION,
    },
    "wmt_en_ru.sh": {
        "DEV": Setting(english_russian_set, "validation set, named as in sacrebleu"),
        "TEST": Setting(english_russian_set, "test set, named as in sacrebleu"),
        "TITLES": Setting(one_of(*TITLES), "titles of Wikipedia: the headlines of WMT15, or wiki titles v2"),
        "EXPECTED_PAIRS": Setting(
            whole(0), "pairs for training; the recipe stops if it finds over a tenth more or less (0: no check)"
        ),
        **PUBLISHED,
    },
    "opensubtitles_en_ru.sh": {
        "OVERLAP": Setting(number(0, 1), "smallest overlap in time of a pair's subtitles"),
        "PAIRS": Setting(whole(), "pairs for training"),
        "HELD_OUT": Setting(whole(), "pairs in the validation set, and in the test set"),
        **PUBLISHED,
    },
    "iwslt14_de_en.sh": {
        "MEASURED": Setting(epochs, "epochs after which heads are removed; training ends after the last one"),
        "STEPS": STEPS,
        "DATA_DIR": DATA_DIR,
        **TRANSLATION,
        "SENTENCES": Setting(whole(), "for RUNS only, which this recipe has none of: it scores heads on all of valid"),
    },
    "prune_pretrained.sh": {
        "SRC": Setting(language, "source language"),
        "TGT": Setting(language, "target language"),
        "STEPS": STEPS,
        "KEEP": Setting(
            heads_to_keep,
            "heads that the pruned checkpoint keeps, by the gradient score: a fraction (0.8) or a number (38)",
        ),
        "SENTENCES": Setting(whole(), "score heads on the first SENTENCES sentences of valid (default: all)"),
        "TOKENIZE": Setting(
            anything,
            "sacremoses command that tokenises the text, after normalize; empty: the text is already tokenised",
        ),
        "DATA_DIR": DATA_DIR,
        **SEARCH,
        **MACHINE,
    },
    "language_model.sh": LANGUAGE_MODEL,
    "wikitext103.sh": {"DATA_DIR": DATA_DIR, "PRECISION": PUBLISHED["PRECISION"], **LANGUAGE_MODEL},
}
