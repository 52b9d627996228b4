"""`headgates functions`: find positional, syntactic, rare-token and alignment heads."""

import argparse

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import FirstSentences, Output
from fairseq_headgates.cli.parser import filled
from fairseq_headgates.scores.options import EXPLANATIONS, FunctionOptions

DEFAULTS = FunctionOptions()


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


@command(
    "functions",
    "headgates functions data-bin --path baseline/checkpoint_best.pt --gen-subset valid --statistics "
    "--out functions.json",
    "headgates functions data-bin --path baseline/checkpoint_best.pt --gen-subset valid "
    "--write-alignments model.align --align-by dec-enc:0.1",
)
class FunctionsOptions(FirstSentences, Output):
    """Find positional, syntactic, rare-token and alignment heads.

    Find the functions of heads by where their largest attention weight is: at a fixed offset (positional), on a word in
    a syntactic relation, on a rare token, on the aligned word. The decoder reads the reference; options of the search
    have no effect. With several checkpoints (--path A:B), show which functions remain; the first checkpoint is that
    before pruning, the others are trained from it.
    """

    conllu: str | None = option(
        metavar="FILE",
        reads="the trees",
        help="dependency trees of the source: CoNLL-U, also as .gz, with one tree for every sentence of --gen-subset",
    )
    target_conllu: str | None = option(
        metavar="FILE", reads="the trees", help="the same of the target, for decoder self-attention"
    )
    relations: str | None = option(
        metavar="R[,R...]",
        help="relations of the trees to look for, subtypes included (default: those of nsubj, obj or dobj, iobj, amod, "
        "advmod, det and case that the trees have)",
    )
    alignment: str | None = option(
        metavar="FILE",
        reads="the word alignments",
        help="word alignments for decoder-encoder attention: a line for every sentence with pairs source-target of "
        "words counted from 0, as fast_align and eflomal write them (Pharaoh format)",
    )
    write_alignments: str | None = option(
        metavar="FILE",
        writes=True,
        help="write word alignments of source and reference in the Pharaoh format, a line for every sentence of "
        "--gen-subset: each target word is linked to the source word with the largest weight",
    )
    align_by: str | None = option(
        metavar="WHAT",
        help="weights of --write-alignments: attention weights of decoder-encoder heads, averaged over them "
        "(dec-enc:1.3,dec-enc:2.*; of an asterisk, over those that are left); best, those of the head with the highest "
        f"rate of the function alignment; or contributions of tokens ({', '.join(EXPLANATIONS)}) as in `headgates "
        "explain` (default: alti)",
    )
    no_rare: bool = option(default=False, help="do not look for heads that attend to rare tokens")
    positional: float = option(
        metavar="PERCENT",
        type=_percent,
        default=DEFAULTS.positional,
        help="a head is positional if its maximum is at the same offset for at least PERCENT of the tokens for which "
        "that position exists (default: %(default)g)",
    )
    margin: float = option(
        metavar="POINTS",
        type=_percent,
        default=DEFAULTS.margin,
        help="for relations and alignments: minimum difference between the rate of a head and the baseline, the rate "
        "of the most frequent offset; the 95%% confidence interval must also be above the baseline (default: "
        "%(default)g)",
    )
    rare: float = option(
        metavar="PERCENT",
        type=_percent,
        default=DEFAULTS.rare,
        help="a head attends to rare tokens if its maximum is on one of the two rarest tokens of the sentence for at "
        "least PERCENT of the tokens (default: %(default)g)",
    )
    statistics: bool = option(
        default=False,
        help="also print the most frequent offset, entropy, confidence, weights on EOS, the first token, the token "
        "itself and the last earlier token of the same form, and how monotonic decoder-encoder attention is, for every "
        "head",
    )
    scores: str | None = option(
        metavar="FILE",
        type=filled,
        reads="the score file",
        help="score file of the checkpoint (of the first one, if there are several): also print a table that compares "
        "the scores of heads with and without a function (not in the JSON)",
    )
