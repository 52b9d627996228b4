"""Read files of `headgates evaluate` (no torch)."""

from __future__ import annotations

from fairseq_headgates.evaluation.results import Evaluation
from fairseq_headgates.files import parse_json, read_records, read_text

HINT = "write it with `headgates evaluate --out`"


def read_evaluations(path: str) -> list[Evaluation]:
    """Read the evaluations of a file of `headgates evaluate --out`.

    Raises:
        ValueError: in one line, if the file cannot be read or has other content
    """
    return read_records(Evaluation, parse_json(read_text(path, "the evaluation", HINT), path, HINT), path, HINT)
