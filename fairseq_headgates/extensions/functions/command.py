"""`headgates functions`: find positional, syntactic, rare-token and alignment heads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_headgates.analysis.options import EXPLANATIONS, FunctionOptions
from fairseq_headgates.cli.output import warn
from fairseq_headgates.cli.parser import add_data, add_output, filled
from fairseq_headgates.evaluation.symbols import MARKS, subwords_of
from fairseq_headgates.extensions.functions.drawing import alignment_line, drift_table, scored_table, statistics_table
from fairseq_headgates.heads import HeadTable, Signature, read_scores
from fairseq_headgates.report.functions import function_table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fairseq_headgates.cli.session import Loaded, Session
    from fairseq_headgates.evaluation.losses import Sample
    from fairseq_headgates.extensions.functions.counting import Annotations

NAME = "functions"
HELP = "find positional, syntactic, rare-token and alignment heads"
EXAMPLES = (
    "headgates functions data-bin --path baseline/checkpoint_best.pt --gen-subset valid --statistics "
    "--out functions.json",
    "headgates functions data-bin --path baseline/checkpoint_best.pt --gen-subset valid "
    "--write-alignments model.align --align-by dec-enc:0.1",
)

DEFAULTS = FunctionOptions()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates functions`."""
    add_data(parser)
    parser.description = (
        "Find the functions of heads by where their largest attention weight is: at a fixed offset (positional), on a "
        "word in a syntactic relation, on a rare token, on the aligned word. The decoder reads the reference; options "
        "of the search have no effect. With several checkpoints (--path A:B), show which functions remain; the first "
        "checkpoint is that before pruning, the others are trained from it."
    )
    parser.add_argument(
        "--conllu",
        metavar="FILE",
        help="dependency trees of the source: CoNLL-U, also as .gz, with one tree for every sentence of --gen-subset",
    )
    parser.add_argument("--target-conllu", metavar="FILE", help="the same of the target, for decoder self-attention")
    parser.add_argument(
        "--relations",
        metavar="R[,R...]",
        help="relations of the trees to look for, subtypes included (default: those of nsubj, obj or dobj, iobj, amod, "
        "advmod, det and case that the trees have)",
    )
    parser.add_argument(
        "--alignment",
        metavar="FILE",
        help="word alignments for decoder-encoder attention: a line for every sentence with pairs source-target of "
        "words counted from 0, as fast_align and eflomal write them (Pharaoh format); for the AER, 1p2 is a possible "
        "link and 1-2 a sure one",
    )
    parser.add_argument(
        "--write-alignments",
        metavar="FILE",
        type=filled,
        help="write word alignments of source and reference in the Pharaoh format, a line for every sentence of "
        "--gen-subset: each target word is linked to the source word with the largest weight. With --alignment, also "
        "print the alignment error rate (AER)",
    )
    parser.add_argument(
        "--align-by",
        metavar="WHAT",
        help="weights of --write-alignments: attention weights of decoder-encoder heads, averaged over them "
        "(dec-enc:1.3,dec-enc:2.*); best, those of the head with the highest rate of the function alignment; or "
        f"contributions of tokens ({', '.join(EXPLANATIONS)}) as in `headgates explain` (default: alti)",
    )
    parser.add_argument("--no-rare", action="store_true", help="do not look for heads that attend to rare tokens")
    parser.add_argument(
        "--positional",
        metavar="PERCENT",
        type=_percent,
        default=DEFAULTS.positional,
        help="a head is positional if its maximum is at the same offset for at least PERCENT of the tokens for which "
        "that position exists (default: %(default)g)",
    )
    parser.add_argument(
        "--margin",
        metavar="POINTS",
        type=_percent,
        default=DEFAULTS.margin,
        help="for relations and alignments: minimum difference between the rate of a head and the baseline, the rate "
        "of the most frequent offset; the 95%% confidence interval must also be above the baseline (default: "
        "%(default)g)",
    )
    parser.add_argument(
        "--rare",
        metavar="PERCENT",
        type=_percent,
        default=DEFAULTS.rare,
        help="a head attends to rare tokens if its maximum is on one of the two rarest tokens of the sentence for at "
        "least PERCENT of the tokens (default: %(default)g)",
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help="also print the most frequent offset, entropy, confidence, weights on EOS, the first token, the token "
        "itself and the last earlier token of the same form, and how monotonic decoder-encoder attention is, for every "
        "head",
    )
    parser.add_argument(
        "--scores",
        metavar="FILE",
        help="score file of the checkpoint (of the first one, if there are several): also print a table that compares "
        "the scores of heads with and without a function (not in the JSON)",
    )
    add_output(parser, "write the result as JSON")


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def run(args: argparse.Namespace) -> int:
    """Run `headgates functions` and return its exit code."""
    from fairseq_headgates.cli.session import session
    from fairseq_headgates.extensions.functions.results import kept_functions, scored_functions

    if args.relations is not None and args.conllu is None and args.target_conllu is None:
        raise ValueError("--relations needs trees: add --conllu FILE or --target-conllu FILE")
    _check_align_by(args)
    scores = [] if args.scores is None else read_scores(args.scores)
    with session(args) as work:
        if args.write_alignments is not None:
            work.only_path()
        annotations = _annotations(work)
        results: dict[str, dict[str, Any]] = {}
        for path in work.paths:
            loaded = work.load(path)
            if not results:
                _check_scores(scores, loaded)
            results[work.name(path)] = _functions(work, loaded, annotations)
        first, *others = results
        aligned = [_write_alignments(work, loaded, results[first], annotations)] if args.write_alignments else []
        tests = {name: kept_functions(results[first], results[name]) for name in others}
        tables = [drift_table(results, tests)] if tests else []
        if scores:
            tables += [scored_table(scored_functions(results[first], scores)), *(t.signature for t in scores)]
        found: Any = list(results.values()) if others else results[first]
        text = json.dumps(found, allow_nan=False)
        _warn_without_mark(work, annotations)
        work.write(args.out, text + "\n")
        work.say(text if args.json else "\n\n".join([*_text(results, args.statistics), *aligned, *tables]))
    return 0


def _check_align_by(args: argparse.Namespace) -> None:
    by = args.align_by
    if by is None:
        return
    if args.write_alignments is None:
        raise ValueError("--align-by needs a file to write: add --write-alignments FILE")
    if by == "best" and args.alignment is None:
        raise ValueError("--align-by best compares heads with word alignments: add --alignment FILE")
    if by != "best" and by not in EXPLANATIONS and ":" not in by:
        raise ValueError(
            f"--align-by is {by!r}: it must be heads such as dec-enc:1.3, best, or one of {', '.join(EXPLANATIONS)}"
        )


def _functions(work: Session, loaded: Loaded, annotations: Annotations) -> dict[str, Any]:
    from fairseq_headgates.attention.sites import gate_values
    from fairseq_headgates.extensions.functions.counting import check_annotations, count_functions
    from fairseq_headgates.extensions.functions.results import functions_of

    args = work.args
    check_annotations(annotations, len(work.task.dataset(loaded.corpus.subset)))
    counts = count_functions(loaded.model, loaded.corpus, annotations, work.progress("functions"))
    options = FunctionOptions(args.positional, args.margin, args.rare)
    return functions_of(counts, options, gate_values(loaded.model), str(loaded.signature))


def _write_alignments(work: Session, loaded: Loaded, result: dict[str, Any], annotations: Annotations) -> str:
    """Write the alignments. Add what they are, and their errors, to the result, and return it as a line of text."""
    from fairseq_headgates.extensions.functions.aligning import Alignments, align
    from fairseq_headgates.extensions.functions.trees import read_alignments

    args, corpus = work.args, loaded.corpus
    by, weights = _weights(args.align_by or "alti", loaded.model, result)
    progress = work.progress("alignments")
    found = align(loaded.model, corpus.task, corpus.batches, weights, annotations.subwords, progress)
    found = Alignments({i: found.of.get(i) for i in range(corpus.lines)})  # some may be too long for the model
    work.write(args.write_alignments, found.lines())
    result["written_alignments"] = {"by": by, "left_out": sum(links is None for links in found.of.values())}
    if annotations.links is not None:
        sure = read_alignments(args.alignment, sure=True)
        result["written_alignments"] |= found.errors(sure, annotations.links)
    return alignment_line(result["written_alignments"], len(found.of))


def _weights(by: str, model: nn.Module, result: dict[str, Any]) -> tuple[str, Callable[[Sample], Tensor]]:
    """Return what the weights of alignments are, and the function that computes them."""
    from fairseq_headgates.attention.sites import head_counts
    from fairseq_headgates.extensions.functions.aligning import attention_of, contributions_by
    from fairseq_headgates.heads import parse_heads
    from fairseq_headgates.heads.functions import best_head

    sizes = head_counts(model)
    if "dec-enc" not in sizes:
        raise ValueError("the model has no decoder-encoder attention: --write-alignments needs a translation model")
    if by in EXPLANATIONS:
        return by, contributions_by(model, by)
    heads = [best_head(result)] if by == "best" else parse_heads(by, {"dec-enc": sizes["dec-enc"]}, "--align-by")
    removed = [head for head in heads if result["heads"]["dec-enc"][head.layer][head.head] is None]
    if removed:
        raise ValueError(f"--align-by has {removed[0]}, which is removed: name heads that are left")
    return ",".join(f"dec-enc:{head.layer}.{head.head}" for head in heads), attention_of(model, heads)


def _check_scores(scores: Sequence[HeadTable], loaded: Loaded) -> None:
    """Raise ValueError unless the scores are of the heads of this model, after as many updates."""
    from fairseq_headgates.attention.choice import check_scored
    from fairseq_headgates.attention.cuts import open_mask

    updates = loaded.signature.parts["updates"]
    for table in scores:
        scored = Signature.parse(table.signature).parts.get("updates", updates)
        if scored != updates:
            raise ValueError(
                f"the scores of {table.name} are of a model after {scored} updates, and the checkpoint had {updates}: "
                "run `headgates score` on this checkpoint"
            )
        check_scored(table, open_mask(loaded.model), table.types)


def _annotations(work: Session) -> Annotations:
    from fairseq_headgates.extensions.functions.counting import Annotations
    from fairseq_headgates.extensions.functions.trees import parse_relations, read_alignments, read_trees

    args, files = work.args, {"source": work.args.conllu, "target": work.args.target_conllu}
    trees = {side: read_trees(path) for side, path in files.items() if path is not None}
    relations = parse_relations(args.relations, [tree for each in trees.values() for tree in each]) if trees else ()
    links = None if args.alignment is None else read_alignments(args.alignment)
    joined = {"none": "none", **{value: kind for kind, mark in MARKS.items() for value in mark.post_process}}
    subwords = joined.get(work.fairseq.post_process or "", "")
    return Annotations(trees, relations, links, not args.no_rare, subwords)


def _warn_without_mark(work: Session, annotations: Annotations) -> None:
    """Warn of sides whose words are needed, and whose dictionary has no known mark of subwords."""
    aligned = annotations.links is not None or work.args.write_alignments is not None
    needed = ("source", "target") if aligned else annotations.trees
    whole = [side for side in needed if subwords_of(getattr(work.task, f"{side}_dictionary").symbols) == "none"]
    if whole and not annotations.subwords and work.writes:
        marks = " ".join(mark.text for mark in MARKS.values())
        warn(
            work.args.command,
            f"the dictionary of the {' and the '.join(whole)} has none of the marks of subwords {marks}: each token "
            "counts as a word; if that is right, pass --post-process none",
        )


def _text(results: dict[str, Any], statistics: bool) -> list[str]:

    found = []
    for name, result in results.items():
        title = [name] if len(results) > 1 else []
        tables = [function_table(result), *([statistics_table(result)] if statistics else [])]
        found += [*title, *tables, result["signature"]]
    return found
