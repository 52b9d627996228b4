"""`headgates path`: print the folder of this package, for --user-dir."""

from typing import Any

import fairseq_headgates
from fairseq_headgates.cli.command import Answer, Options, command


@command(
    "path",
    "headgates path",
    "fairseq-generate data-bin --user-dir $(headgates path) --path gated/checkpoint_last.pt",
)
class Path(Options):
    """Print the folder for --user-dir."""

    needs_models = False

    def run(self, session: Any) -> Answer:
        """Find the folder."""
        return Answer(text=fairseq_headgates.__path__[0])
