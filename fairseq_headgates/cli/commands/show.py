"""`headgates show`: print the gates of a checkpoint, or write its open heads as a mask."""

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import OPEN, Checkpoint, Output


@command(
    "show",
    "headgates show gated/checkpoint_last.pt",
    "headgates show gated/checkpoint_last.pt --out heads.json",
)
class ShowOptions(Checkpoint, Output):
    """Show the gates of a checkpoint."""

    epilog = OPEN

    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the open heads as a mask file for --alive-heads; - prints it instead of the table",
    )
    json: bool = option(default=False, help="print JSON instead of a table")

    def files_to_write(self) -> dict[str, str]:
        """Return the mask file, unless it is standard output."""
        return {} if self.out == "-" else super().files_to_write()
