"""How the scripts report bad input: one line on stderr, and exit code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headgates_start  # noqa: F401  (with it fairseq_headgates imports fairseq and torch only where they are needed)
from fairseq_headgates.messages import fail


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the process with one line for an OSError or ValueError. Other errors are bugs and keep their traceback."""
    try:
        yield
    except (OSError, ValueError) as error:
        fail(Path(sys.argv[0]).name, str(error))
