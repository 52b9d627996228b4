#!/usr/bin/env python3
"""Classify the sentences of a subset, and print the predictions as JSON.

    classify.py DATA --path CHECKPOINT --gen-subset SUBSET --task sentence_prediction ...

DATA and options are those of `headgates curve`. The output has the accuracy in percent, the labels and the predictions
(numbers of classes, in the order of the sentences), and the number of parameters of one head.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import Any

from torch import nn

from commands import exit_code
from fairseq_headgates import evaluation, prune
from fairseq_headgates.checkpoints import load_model
from fairseq_headgates.cli.fairseq_options import fairseq_options
from fairseq_headgates.evaluation.metrics import Accuracy
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.surgery import open_mask


def head_parameters(model: nn.Module) -> int:
    """Return how many parameters a model loses with one head; 0 if it has no heads."""
    rows = {kind: [list(row) for row in layers] for kind, layers in open_mask(model).values.items()}
    for row in (row for layers in rows.values() for row in layers):
        if any(row):
            row[row.index(1)] = 0
            return _parameters(model) - _parameters(prune(model, HeadTable(rows)))
    return 0


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def classify(arguments: list[str]) -> dict[str, Any]:
    """Return what the program prints."""
    args = fairseq_options("curve", arguments)
    task = evaluation.setup_task(args)
    _, model = load_model(args.path, False)
    model.to(evaluation.device_of(args)).eval()
    metric = Accuracy(model, evaluation.load_corpus(args, task, model))
    found = metric.predict(metric.prepared(model))
    return {
        "accuracy": metric.score(found),
        "signature": f"{metric.signature()} of {args.gen_subset}",
        "head_parameters": head_parameters(model),
        "labels": metric.labels,
        "predictions": found,
    }


def main(argv: list[str]) -> int:
    logging.disable(logging.INFO)

    def work() -> None:
        with contextlib.redirect_stdout(sys.stderr):  # fairseq may print
            found = classify(argv)
        print(json.dumps(found))

    return exit_code("classify.py", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
