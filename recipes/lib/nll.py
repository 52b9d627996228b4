#!/usr/bin/env python3
"""Print the loss on the validation set as JSON, from the log of `fairseq-validate --log-format json`.

    nll.py VALIDATE.log

The value is fairseq's nll_loss: bits per target token, without label smoothing and without a penalty on gates.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path

from commands import ArgumentParser, exit_code

FOUND = re.compile(r'^.* \| INFO \| valid \| (\{.*"valid_nll_loss".*\})$', re.MULTILINE)


def read(log: Path) -> float:
    """Return the loss of the last validation in a log."""
    found = FOUND.findall(log.read_text(encoding="utf-8", errors="replace"))
    try:
        nll = float(json.loads(found[-1])["valid_nll_loss"])
    except (IndexError, ValueError, TypeError):
        raise ValueError(f"{log} has no valid_nll_loss: give the log of fairseq-validate --log-format json") from None
    if not math.isfinite(nll):
        raise ValueError(f"the loss on the validation set is {nll} (log: {log})")
    return nll


def work(args: argparse.Namespace) -> None:
    print(json.dumps({"subset": "valid", "unit": "bits per token", "nll": read(args.log)}))


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("log", type=Path, metavar="VALIDATE.log")
    return exit_code("nll.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
