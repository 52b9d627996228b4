"""`headgates prune`: write a checkpoint without the heads that gates, a threshold, a mask or scores remove."""

from fairseq_headgates.cli.command import argument, command, option
from fairseq_headgates.cli.options import OPEN, REPAIR, Checkpoint, Choice, Refit, inference_dtype
from fairseq_headgates.cli.parser import filled


@command(
    "prune",
    "headgates prune gated/checkpoint_last.pt pruned.pt",
    "headgates prune baseline/checkpoint_best.pt half.pt --scores scores.json --keep 0.5 --refit data-bin",
)
class PruneOptions(Checkpoint, Choice, Refit):
    """Remove heads from the weights of a checkpoint.

    Write a checkpoint without the closed heads, which contribute nothing. --threshold, --alive or --scores removes more
    heads.
    """

    epilog = OPEN

    checkpoint: str = Checkpoint.checkpoint  # before OUT
    output: str = argument(metavar="OUT", type=filled, help="the checkpoint to write")
    stock: bool = option(
        default=False,
        help="write a checkpoint for fairseq's own transformer, which needs no plugin: the heads are set to 0 instead "
        "of removed, so its size does not change; without the optimiser state",
    )
    inference_dtype: str | None = inference_dtype(
        "(default: that of CKPT). OUT stores this option only; its weights are not quantised"
    )
    no_optimizer: bool = option(default=False, help="drop the optimiser state")
    dry_run: bool = option(default=False, help="print the plan and write nothing")
    json: bool = option(default=False, help="print the plan as JSON")
    force: bool = option(default=False, help="overwrite OUT if it exists")
    refit: str | None = option(
        metavar="DATA",
        type=filled,
        within=REPAIR,
        help="refit the model: change out_proj of attention and fc2 of feed-forward blocks, from the first block that "
        "loses heads on, so that the hidden states stay close (least squares) to those before the removal. DATA: a "
        "folder written by fairseq-preprocess; options of fairseq-generate set task and batches (--task, --max-tokens, "
        "--cpu, ...). Of no use to a model that is trained further; OUT has no optimiser state",
    )

    def files_to_write(self) -> dict[str, str]:
        """Return OUT, unless nothing is written."""
        return {} if self.dry_run else {"OUT": self.output}

    def fairseq_arguments(self) -> list[str] | None:
        """Return DATA of --refit, the checkpoint, and all words that are not options of this command."""
        return None if self.refit is None else [self.refit, "--path", self.checkpoint, *self.rest]
