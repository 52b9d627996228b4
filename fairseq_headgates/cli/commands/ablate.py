"""`headgates ablate`: measure a model with single heads masked, or with one head alone in its layer."""

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import CHOOSING, FirstSentences, Output, inference_dtype, metric
from fairseq_headgates.cli.parser import filled
from fairseq_headgates.scores.options import ABLATION_MODES


@command(
    "ablate",
    "headgates ablate data-bin --path baseline/checkpoint_best.pt --gen-subset valid --out ablation.json",
    "headgates ablate data-bin --path baseline/checkpoint_best.pt --metric bleu --remove-bpe --mode all-but-one",
)
class AblateOptions(FirstSentences, Output):
    """Measure the loss, BLEU or accuracy with single heads masked."""

    mode: str = option(
        choices=ABLATION_MODES,
        default="single",
        help="single: mask one head at a time; all-but-one: mask all heads of a layer but one. The loss is measured "
        "for every head; with all-but-one, BLEU and accuracy are measured only for the best head (lowest loss) of each "
        "layer (default: %(default)s)",
    )
    metric: str | None = metric("nll", " BLEU has p-values of a paired bootstrap, accuracy of McNemar's exact test.")
    select_subset: str | None = option(
        metavar="S",
        type=filled,
        help="with --mode all-but-one and --metric bleu or accuracy: choose the head of each layer by the loss on this "
        f"subset (default: {CHOOSING})",
    )
    inference_dtype: str | None = inference_dtype()
    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the result as JSON; with BLEU or accuracy, FILE.part keeps partial results to resume from",
    )
