"""The settings of the recipes for classifiers: their rules, meanings, and rules for several of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classifier_runs import CURVES, curves, entries
from rules import anything, number, seeds, whole, word
from settings_table import DATA_DIR, MACHINE, PUBLISHED, SEARCH, STEPS, TRANSLATION, Setting, Settings, switch

CLASSIFICATION: Settings = {
    "TOKENIZE": Setting(anything, "options and command of sacremoses for the text; empty: the text is tokenised"),
    "LOWERCASE": Setting(switch, "1: lowercase the text"),
    "ENCODED": Setting(switch, "1: the text is BPE already, tokens separated by spaces; needs PRETRAINED"),
    "BPE": Setting(whole(), "number of BPE merge operations; no effect with PRETRAINED"),
    "PRETRAINED": Setting(
        anything,
        "RoBERTa checkpoint of fairseq to fine-tune, with its dictionary and BPE codes; EMBED, FFN, LAYERS, HEADS and "
        "MAX_POSITIONS must be those of the model (empty: a model is trained on the text of the training set)",
    ),
    "PRETRAINED_DICT": Setting(anything, "dictionary of PRETRAINED (default: dict.txt in its folder)"),
    "PRETRAINED_CODES": Setting(
        anything, "BPE codes of PRETRAINED, of subword-nmt (default: bpecodes in its folder); not with ENCODED=1"
    ),
    "EMBED": Setting(whole(), "embedding dimension"),
    "FFN": Setting(whole(), "dimension of the feed-forward layers"),
    "LAYERS": Setting(whole(), "layers"),
    "HEADS": Setting(whole(), "attention heads in a layer; they must divide EMBED"),
    "MAX_POSITIONS": Setting(
        whole(8), "positions of the model; longer inputs (a sentence, or a pair as a whole) lose their end"
    ),
    "DROPOUT": Setting(number(0, 1), "dropout, also of attention weights and of the classification head"),
    "MLM_UPDATES": Setting(whole(), "updates of masked language modelling, without PRETRAINED"),
    "MLM_LR": Setting(number(above=0), "learning rate of masked language modelling"),
    "MLM_WARMUP": Setting(whole(0), "warm-up updates of masked language modelling"),
    "MLM_TOKENS": Setting(whole(), "tokens for each update of masked language modelling on any number of GPUs"),
    "UPDATES": Setting(whole(), "updates of the baseline"),
    "LR": Setting(number(above=0), "learning rate of the baseline; it falls linearly to 0"),
    "WARMUP": Setting(whole(0), "warm-up updates of the baseline"),
    "BATCH": Setting(whole(), "sentences, or pairs of them, for each update on any number of GPUs"),
    "UPDATE_FREQ": Setting(whole(), "batches for each update on a GPU: more need less memory"),
    "TRAIN_FLAGS": Setting(anything, "more options for every fairseq-train, separated by spaces (no quotes): --fp16"),
    "SEEDS": Setting(seeds, "random seeds of training, separated by spaces; with several, each has its folder"),
    "SEED": TRANSLATION["SEED"],
    "GATES": Setting(
        entries,
        "gated runs, separated by spaces. N keeps N heads, a number (12) or a fraction (0.5), with the method "
        "lagrangian; N@subset with the method subset; :LAMBDA trains gates with an L0 penalty. Empty: none",
    ),
    "FINETUNE": Setting(
        switch,
        "1: for each N of GATES also remove heads by the scores of each of CURVES, and train as long as a gated run",
    ),
    "PRUNE_UPDATES": Setting(whole(), "updates of each run after the baseline, and of baseline+ (default: UPDATES)"),
    "PRUNE_LR": Setting(number(above=0), "learning rate of these trainings; it falls linearly to 0 (default: LR)"),
    "PRUNE_WARMUP": Setting(whole(0), "warm-up updates of these trainings (default: 6% of PRUNE_UPDATES)"),
    "GATE_LR_SCALE": TRANSLATION["GATE_LR_SCALE"],
    "L0_WARMUP": TRANSLATION["L0_WARMUP"],
    "SPARSITY_WARMUP": TRANSLATION["SPARSITY_WARMUP"],
    "FIX_AFTER": TRANSLATION["FIX_AFTER"],
    "CURVES": Setting(
        curves,
        f"scores ({', '.join(CURVES)}), separated by spaces, by which heads of the baseline are removed step by step "
        "without training; empty: none",
    ),
    "STEPS": STEPS,
    "SENTENCES": Setting(whole(), "compute scores on the first SENTENCES lines of the shuffled training set"),
    "EVALUATION_TOKENS": Setting(whole(), "--max-tokens of scores and of the evaluation on the test set"),
    "HEADGATES": SEARCH["HEADGATES"],
    **MACHINE,
}
MNLI: Settings = {
    "DATA_DIR": DATA_DIR,
    "MODEL": Setting(word, "name of the trained model, as in torch.hub; it must use the BPE of GPT-2"),
    "PRECISION": PUBLISHED["PRECISION"],
    **CLASSIFICATION,
}
RECIPES: Mapping[str, Settings] = {"classification.sh": CLASSIFICATION, "mnli.sh": MNLI}


def check_classifier(given: Mapping[str, Any]) -> None:
    """Schedules that end, text that can be read, and no run with more heads than there are."""
    if "MLM_UPDATES" not in given:
        return  # another recipe
    for prefix in ("", "MLM_", "PRUNE_"):
        warmup, updates = given.get(f"{prefix}WARMUP"), given.get(f"{prefix}UPDATES")
        if warmup is not None and updates is not None and warmup >= updates:
            raise ValueError(f"{prefix}WARMUP={warmup} must be below {prefix}UPDATES={updates}")
    layers, heads = given.get("LAYERS"), given.get("HEADS")
    for entry in given.get("GATES", ()):
        if layers and heads and entry.method != "l0" and "." not in entry.value and int(entry.value) > layers * heads:
            raise ValueError(
                f"GATES names {str(entry)!r}, more heads than there are: it must be at most {layers * heads}"
            )
    if given.get("ENCODED") == "1" and "PRETRAINED" not in given:
        raise ValueError("ENCODED=1 needs PRETRAINED, the model that the text is encoded for: set it, or ENCODED=0")
    if given.get("FINETUNE") == "1" and not given.get("CURVES"):
        raise ValueError(f"FINETUNE=1 needs CURVES, the scores to remove heads by: choose from {', '.join(CURVES)}")
