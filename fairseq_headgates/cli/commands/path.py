"""`headgates path`: print the folder of this package, for --user-dir."""

from dataclasses import dataclass
from typing import ClassVar

from fairseq_headgates.cli.command import Options, command


@command(
    "path",
    "print the folder for --user-dir",
    "headgates path",
    "fairseq-generate data-bin --user-dir $(headgates path) --path gated/checkpoint_last.pt",
)
@dataclass(kw_only=True)
class PathOptions(Options):
    """This command has no options."""

    needs_models: ClassVar[bool] = False
