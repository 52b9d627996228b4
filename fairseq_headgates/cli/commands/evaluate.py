"""`headgates evaluate`: measure checkpoints, and test the differences between them."""

import argparse
from functools import partial

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import FirstSentences, Output, inference_dtype
from fairseq_headgates.cli.parser import counted, filled


def _subset_and_file(text: str) -> tuple[str, str]:
    subset, _, file = text.partition("=")
    if not subset or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not a subset and a file, such as test=test.txt")
    return subset, file


@command(
    "evaluate",
    "headgates evaluate data-bin --path baseline/checkpoint_best.pt:pruned.pt --remove-bpe --tokenizer moses",
    "headgates evaluate data-bin --path pruned.pt --cpu --inference-dtype int8 --speed --out int8.json",
)
class EvaluateOptions(FirstSentences, Output):
    """Measure loss, BLEU or accuracy, and speed of checkpoints, and test their differences.

    Measure loss and perplexity, BLEU and chrF2 of translations or accuracy of a classifier, with 95% confidence
    intervals, and test the differences between any two of several checkpoints. For BLEU of detokenised text pass
    --remove-bpe --tokenizer moses.
    """

    loss_subset: str | None = option(
        metavar="S[,S...]",
        type=filled,
        help="measure the loss on these subsets (default: --gen-subset)",
    )
    reference: str | None = option(
        metavar="FILE",
        type=filled,
        reads="the reference",
        help="reference translations of --gen-subset as plain text, a line for each sentence (default: the binarised "
        "target, detokenised like the translations)",
    )
    text: list[tuple[str, str]] = option(
        metavar="SUBSET=FILE",
        type=_subset_and_file,
        action="append",
        default=[],
        reads="the text",
        help="for language models: the text of a subset with blanks between words, to report perplexity per word, in "
        "which the end of a line counts as a word; can be repeated",
    )
    hypotheses: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the translations of one checkpoint, a line for each sentence, empty if the sentence is skipped",
    )
    speed: int | None = option(
        metavar="ROUNDS",
        type=partial(counted, rule="a number of rounds: give 1 or more, or no number"),
        nargs="?",
        const=4,
        help="also measure words translated, sentences classified, or tokens of a language model per second on "
        "--gen-subset: all checkpoints in turn, ROUNDS times (default: %(const)s) after a round that does not count; "
        "the fastest counts, brackets are the slowest and the fastest. Processor time on a CPU with one thread",
    )
    inference_dtype: str | None = inference_dtype()
    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the results as JSON, with the predictions and the loss of every sentence",
    )
