"""`headgates path`: print the folder of this package, for --user-dir."""

from fairseq_headgates.cli.command import Options, command


@command(
    "path",
    "headgates path",
    "fairseq-generate data-bin --user-dir $(headgates path) --path gated/checkpoint_last.pt",
)
class PathOptions(Options):
    """Print the folder for --user-dir."""

    needs_models = False
