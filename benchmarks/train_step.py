#!/usr/bin/env python3
"""Measure the time of an update: fairseq's `transformer`, and this plugin's with gates, and without half of the heads.

    python benchmarks/train_step.py [--size small|base|big] [--device cpu|cuda] [--dtype fp32|bf16|fp16]

The models train in one process on one batch, in turn. `no gates` is this plugin's model; then follow gates of every
method, on all attention types; `pruned` is `no gates` without the share --remove of the heads of every layer. An update
is forward, label-smoothed cross-entropy (with the penalty of the gating method), backward, gradient clipping, Adam.
"""

from functools import partial

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.transformer import TransformerModel
from harness import (
    DTYPES,
    begin,
    finish,
    make_args,
    make_parser,
    make_task,
    random_mask,
    timed,
    training_batch,
    training_update,
)

from fairseq_headgates import prune
from fairseq_headgates.heads import TYPES
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

METHODS = {
    "l0": {},
    "lagrangian": {"sparsity_method": "lagrangian", "target_heads": "0.5"},
    "subset": {"sparsity_method": "subset", "target_heads": "0.5"},
}


def main() -> None:
    options = parse()
    begin(options)
    task, batch = make_task(options.vocabulary), training_batch(options)
    make = partial(make_args, options.size, dropout=options.dropout, attention_dropout=options.attention_dropout)
    torch.manual_seed(1)
    models = {
        "stock": TransformerModel.build_model(make(), task),
        "no gates": TransformerHeadGatesModel.build_model(make(), task),
    }
    for name, method in METHODS.items():
        models[name] = TransformerHeadGatesModel.build_model(make(gate_heads=",".join(TYPES), **method), task)
    models["pruned"] = prune(models["no gates"], random_mask(options.size, options.remove))
    updates = {}
    for name, model in models.items():
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
        if name in METHODS:
            criterion = PENALISED["label_smoothed_cross_entropy"](task, False, 0.1)
            criterion.set_l0("0.01" if name == "l0" else "0")
        updates[name] = training_update(model, criterion, batch, DTYPES[options.dtype])
    seconds = timed(updates, options)
    rows = {
        name: {"ms/update": 1000 * each, "ratio to stock": each / seconds["stock"]} for name, each in seconds.items()
    }
    finish(options, {f"{batch['ntokens']} target tokens, {options.dtype}": rows})


def parse():
    parser = make_parser(__doc__, "--updates", vocabulary=6000, length=26, rounds=30)
    add = parser.add_argument
    add("--sentences", type=int, default=96, help="sentences of the batch; the shortest has half of --length tokens")
    add("--dropout", type=float, default=0.1, help="residual dropout")
    add("--attention-dropout", type=float, default=0.0, help="dropout of attention weights")
    add("--dtype", choices=DTYPES, default="fp32", help="data type of autocast")
    add("--remove", type=float, default=0.5, help="share of the heads that `pruned` does not have")
    return parser.parse_args()


if __name__ == "__main__":
    main()
