"""`headgates path`: print the folder of this package, for --user-dir."""

from pathlib import Path
from typing import Any

from fairseq_headgates.cli.command import Answer, Options, command


@command(
    "path",
    "headgates path",
    "fairseq-generate data-bin --user-dir $(headgates path) --path gated/checkpoint_last.pt",
)
class Folder(Options):
    """Print the folder for --user-dir."""

    needs_models = False

    def run(self, session: Any) -> Answer:
        """Find the folder."""
        return Answer(text=str(Path(__file__).resolve().parents[2]))
