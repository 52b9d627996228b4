"""`headgates convert`: prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model."""

from fairseq_headgates.cli.command import argument, command, option
from fairseq_headgates.cli.options import Checkpoint, Choice
from fairseq_headgates.cli.parser import filled


@command(
    "convert",
    "headgates convert gated/checkpoint_last.pt ct2 --to ctranslate2 --data data-bin",
    "headgates convert gated/checkpoint_last.pt ct2-int8 --to ctranslate2 --data data-bin --quantization int8",
)
class ConvertOptions(Choice, Checkpoint):
    """Prune a checkpoint and write it as a CTranslate2 model.

    Prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model.
    """

    checkpoint: str = Checkpoint.checkpoint  # before OUT
    output: str = argument(metavar="OUT", type=filled, help="the folder to write")
    to: str = option(choices=["ctranslate2"], required=True, help="the format to write")
    data: str | None = option(
        metavar="DIR",
        type=filled,
        reads="the dictionaries in",
        help="folder of dict.*.txt (default: the folder of CKPT)",
    )
    quantization: str | None = option(
        metavar="TYPE",
        help="type of the weights, as CTranslate2 names it: int8, int16, float16, ... (default: float32)",
    )
    alignment_heads: str | None = option(
        metavar="HEADS",
        type=filled,
        reads="the functions",
        help="decoder-encoder heads of one layer, such as dec-enc:1.3,dec-enc:1.5: CTranslate2 returns their mean "
        "attention weights (return_attention). Or the JSON file of `headgates functions --alignment LINKS --out FILE`: "
        "the remaining head with the highest alignment rate (default: all heads of the last layer)",
    )
    force: bool = option(default=False, help="replace OUT if it is a CTranslate2 model")
