"""`headgates evaluate`: measure checkpoints, and test the differences between them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.parser import AS_STORED, add_data, add_inference_dtype, add_output, counted, filled
from fairseq_headgates.files import lines_of, read_text
from fairseq_headgates.report.evaluations import difference_table, evaluation_table
from fairseq_headgates.report.tables import open_counts

if TYPE_CHECKING:
    from fairseq_headgates.cli.session import Session
    from fairseq_headgates.evaluation.corpus import Corpus
    from fairseq_headgates.evaluation.results import Evaluation, Loss

GIVE_TEXT = "give the text that was binarised, with blanks between words"
GIVE_REFERENCE = "give a line for each sentence of --gen-subset"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates evaluate`."""
    add_data(parser)
    parser.description = (
        "Measure loss and perplexity, BLEU and chrF2 of translations or accuracy of a classifier, with 95% confidence "
        "intervals, and test the differences between any two of several checkpoints. For BLEU of detokenised text pass "
        "--remove-bpe --tokenizer moses."
    )
    parser.add_argument(
        "--loss-subset",
        metavar="S[,S...]",
        type=filled,
        help="measure the loss on these subsets (default: --gen-subset)",
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        type=filled,
        help="reference translations of --gen-subset as plain text, a line for each sentence (default: the binarised "
        "target, detokenised like the translations)",
    )
    parser.add_argument(
        "--text",
        metavar="SUBSET=FILE",
        type=_subset_and_file,
        action="append",
        default=[],
        help="for language models: the text of a subset with blanks between words, to report perplexity per word, in "
        "which the end of a line counts as a word; can be repeated",
    )
    parser.add_argument(
        "--hypotheses",
        metavar="FILE",
        type=filled,
        help="write the translations of one checkpoint, a line for each sentence, empty if the sentence is skipped",
    )
    parser.add_argument(
        "--speed",
        metavar="ROUNDS",
        type=partial(counted, rule="a number of rounds: give 1 or more, or no number"),
        nargs="?",
        const=2,
        help="also measure words translated, sentences classified, or tokens of a language model per second on "
        "--gen-subset: all checkpoints in turn, ROUNDS times (default: %(const)s) after a round that does not count; "
        "the fastest counts. Processor time on a CPU with one thread",
    )
    add_inference_dtype(parser, AS_STORED)
    parser.add_argument(
        "--inference-mode",
        metavar="MODE",
        help="how decoder steps of beam search run: eager; graph (on a GPU replayed as CUDA graphs, which avoids "
        "launches from Python; on a CPU eager); or static (in tensors of fixed shapes like graph, but without graphs, "
        f"for tests). With graph and static, the search is that of --task translation_device_search {AS_STORED}",
    )
    add_output(parser, "write the results as JSON, with the predictions and the loss of every sentence")


def _subset_and_file(text: str) -> tuple[str, str]:
    subset, _, file = text.partition("=")
    if not subset or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not a subset and a file, such as test=test.txt")
    return subset, file


def run(args: argparse.Namespace) -> int:
    """Run `headgates evaluate` and return its exit code."""
    from fairseq_headgates.cli.session import session
    from fairseq_headgates.evaluation.results import pairwise

    with session(args) as work:
        inputs = _Inputs.read(work)
        found, systems = [], []
        for path in work.progress("evaluate")(work.paths):
            evaluation, system = _evaluate(work, path, inputs)
            found.append(evaluation)
            systems.append(system)
        if args.speed:
            found = _with_speeds(work, found, systems)
        pairs = pairwise(found)  # before files are written, because it can fail
        objects = [evaluation.as_json() for evaluation in found]
        content = json.dumps(objects[0] if len(objects) == 1 else objects)
        work.write(args.out, content + "\n")
        work.say(content if args.json else as_text(found, pairs))
    return 0


@dataclass(frozen=True)
class _Inputs:
    """What the options name besides the checkpoints.

    Attributes:
        metric: name of the metric, see `evaluation.metrics.metric_of`
        losses: subsets for the loss
        reference: reference translations; None for those of the data
        words: numbers of lines and of words of the text of a subset
    """

    metric: str
    losses: list[str]
    reference: list[str] | None
    words: dict[str, tuple[int, int]]

    @classmethod
    def read(cls, work: Session) -> _Inputs:
        """Check the options and read the files. Raise ValueError."""
        args, metric = work.args, work.objective.metric(None)
        losses = list(dict.fromkeys((args.loss_subset or work.fairseq.gen_subset).split(",")))
        if "" in losses:
            raise ValueError(f"--loss-subset is {args.loss_subset!r}: give names with commas between them")
        for option, value in (("--reference", args.reference), ("--hypotheses", args.hypotheses)):
            if value and metric != "bleu":
                raise ValueError(f"{option} is for translation, which this --task is not: leave it out")
        if args.hypotheses and len(work.paths) > 1:
            raise ValueError(f"--hypotheses is for one checkpoint, --path names {len(work.paths)}: leave one of both")
        if args.speed and work.fairseq.distributed_world_size > 1:
            raise ValueError("--speed is measured by one worker: leave it out, or start one")
        if args.text and not hasattr(work.task, "eval_lm_dataloader"):
            raise ValueError("--text is for language models: leave it out")
        reference = lines_of(read_text(args.reference, "the reference", GIVE_REFERENCE)) if args.reference else None
        return cls(metric, losses, reference, _words(args.text, losses))


def _words(texts: Sequence[tuple[str, str]], losses: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of lines and of words, ends of lines included, of the text of each subset."""
    found: dict[str, tuple[int, int]] = {}
    for subset, file in texts:
        if subset not in losses:
            raise ValueError(f"--text {subset}={file}: choose a subset of --loss-subset, {', '.join(losses)}")
        if subset in found:
            raise ValueError(f"--text is given twice for {subset}: give it once")
        lines = lines_of(read_text(file, "the text", GIVE_TEXT))
        found[subset] = len(lines), sum(len(line.split()) + 1 for line in lines)
    return found


def _evaluate(work: Session, path: str, inputs: _Inputs) -> tuple[Evaluation, Callable[[], int] | None]:
    """Evaluate a checkpoint. Return also what is timed with --speed."""
    from fairseq_headgates.cli.session import Loaded
    from fairseq_headgates.evaluation.metrics import METRICS
    from fairseq_headgates.evaluation.results import Evaluation
    from fairseq_headgates.evaluation.speed import run_once
    from fairseq_headgates.surgery import gate_values, to_table

    subset = work.fairseq.gen_subset
    model, origin = work.model(path)
    needed = [subset] if inputs.metric in METRICS or work.args.speed else []
    corpora = {name: work.corpus(model, name) for name in dict.fromkeys([*needed, *inputs.losses])}
    signature = _signature(work, corpora, inputs.metric == "bleu", origin)
    gate = to_table(gate_values(model), "gate")
    metric = work.metric(inputs.metric, Loaded(model, corpora[subset], signature)) if needed else None
    _check(inputs, corpora, subset)
    prepared = metric.prepared(model) if metric else model
    predictions: Any = metric.predict(prepared) if metric else None
    if metric and inputs.reference is not None:
        metric.use([inputs.reference[number] for number in corpora[subset].numbers()])
    if work.args.hypotheses:
        lines = dict(zip(corpora[subset].numbers(), predictions or (), strict=True))
        work.write(work.args.hypotheses, "".join(lines.get(i, "") + "\n" for i in range(corpora[subset].lines)))
    evaluation = Evaluation(
        checkpoint=work.name(path),
        heads=open_counts(gate),
        layers={each: [sum(value > 0 for value in row) for row in rows] for each, rows in gate.values.items()},
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        losses={name: _loss(model, corpora[name], inputs.words.get(name)) for name in inputs.losses},
        subset=subset,
        scores={name: scorer.score(predictions) for name, scorer in metric.scorers.items()} if metric else {},
        predictions=predictions,
        references=metric.references if metric else None,
        speed=None,
        signature=str(signature),
    )
    system = partial(run_once, prepared, corpora[subset], metric) if work.args.speed else None
    return evaluation, system


def _signature(work: Session, corpora: Mapping[str, Corpus], translates: bool, origin: Mapping[str, Any]) -> Any:
    """Return the signature of an evaluation, with all subsets and their numbers of sentences."""
    from fairseq_headgates.cli.session import short_name

    sentences = ",".join(str(corpus.sentences) for corpus in corpora.values())
    found = work.origin(",".join(corpora)).with_parts({"sents": sentences, **origin})
    reference = {"ref": short_name(work.args.reference)} if work.args.reference else {}
    return found.with_parts({**work.search.parts, **reference} if translates else {})


def _check(inputs: _Inputs, corpora: Mapping[str, Corpus], predicted: str) -> None:
    """Raise ValueError unless the reference and the texts have as many lines as the data."""
    from fairseq_headgates.evaluation.corpus_losses import occurrences

    if inputs.reference is not None:
        lines, sentences = len(inputs.reference), corpora[predicted].lines
        if lines != sentences:
            raise ValueError(f"--reference has {lines:,} lines, the subset {sentences:,} sentences: {GIVE_REFERENCE}")
    for subset, (lines, _) in inputs.words.items():
        eos_tokens = occurrences(corpora[subset], corpora[subset].eos)
        if lines != eos_tokens:
            raise ValueError(f"--text {subset} has {lines:,} lines, the subset {eos_tokens:,}: {GIVE_TEXT}")


def _loss(model: Any, corpus: Corpus, text: tuple[int, int] | None) -> Loss:
    from fairseq_headgates.evaluation.corpus_losses import occurrences, sentence_losses
    from fairseq_headgates.evaluation.objectives import NextToken
    from fairseq_headgates.evaluation.results import Loss

    sentences, counts = sentence_losses(model, corpus)
    others: dict[str, Any] = {}
    if isinstance(corpus.objective, NextToken):
        unknown = occurrences(corpus, corpus.task.target_dictionary.unk())
        others = {"tokens": sum(counts), "unknown": unknown, "words": text and text[1]}
    return Loss.of(sentences, counts, corpus.objective.unit.split()[-1], **others)


def _with_speeds(work: Session, found: Sequence[Evaluation], systems: Sequence[Any]) -> list[Evaluation]:
    from fairseq_headgates.evaluation.results import Speed
    from fairseq_headgates.evaluation.speed import speeds
    from fairseq_headgates.evaluation.workers import device_of

    unit = {"bleu": "words", "accuracy": "sentences"}.get(work.objective.metric(None), "tokens")
    measured = speeds(systems, device_of(work.fairseq), work.args.speed)
    return [replace(each, speed=Speed(unit, speed)) for each, speed in zip(found, measured, strict=True)]


def as_text(found: Sequence[Evaluation], pairs: Mapping[tuple[int, int], Mapping[str, Any]]) -> str:
    """Return what `headgates evaluate` prints: evaluations, differences of pairs, signatures."""
    names = [evaluation.checkpoint for evaluation in found]
    text = [evaluation_table({each.checkpoint: each.as_json() for each in found})]
    signatures = {name: score.signature for each in found for name, score in each.scores.items()}
    tests = {name: each.signature for of in pairs.values() for name, each in of.items()}
    if pairs:
        text.append(difference_table({f"{names[a]} - {names[b]}": of for (a, b), of in pairs.items()}))
    lines = [f"{name}: {signature}" for name, signature in signatures.items()]
    lines += [f"p of {name}: {signature}" for name, signature in tests.items()]
    return "\n\n".join([*text, "\n".join([*lines, *(each.signature for each in found)])])
