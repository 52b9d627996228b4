"""Print the folder of this package, for --user-dir."""

from pathlib import Path

from fairseq_headgates.cli.commands.path import PathOptions
from fairseq_headgates.cli.output import say


def run(options: PathOptions) -> None:
    """Run `headgates path`."""
    say(str(Path(__file__).resolve().parents[2]))
