#!/usr/bin/env python3
"""Measure the speed of a language model with fairseq-eval-lm.

    lm_speed.py SPEED.json ARGUMENTS        ARGUMENTS: those of fairseq-eval-lm

Writes the tokens per second of the whole subset. The first batch is evaluated once before, because the first call of a
model takes longer. The time is that of the evaluation, without start and loading; fairseq's own clock does not wait for
a GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from fairseq_cli import eval_lm as fairseq_eval_lm

from fairseq_headgates.files import write_whole


def main() -> None:
    output = sys.argv.pop(1)
    evaluate = fairseq_eval_lm.eval_lm

    def timed(batch_iterator: Iterable[dict[str, Any]], **options: Any) -> dict[str, float]:
        batches = list(batch_iterator)
        evaluate(batch_iterator=batches[:1], **options)
        begun = time.perf_counter()
        result = evaluate(batch_iterator=batches, **options)
        seconds = time.perf_counter() - begun
        tokens = sum(batch["ntokens"] for batch in batches)
        found = {"tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds}
        write_whole(output, json.dumps(found) + "\n", force=True)
        return result

    fairseq_eval_lm.eval_lm = timed
    fairseq_eval_lm.cli_main()


if __name__ == "__main__":
    main()
