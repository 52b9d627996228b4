"""Convert the options of fairseq-generate for fairseq's tasks."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_headgates.messages import first_line, logging_only


def to_config(args: argparse.Namespace) -> Any:
    """Return the options as fairseq's commands pass them on. Raise ValueError for those that hydra refuses."""
    try:
        with logging_only(logging.CRITICAL, "fairseq"):  # which logs what it raises
            return convert_namespace_to_omegaconf(args)
    except Exception as error:
        raise ValueError(
            f"fairseq cannot use these options ({first_line(error)}): see fairseq-generate --help"
        ) from None
