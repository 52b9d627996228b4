"""`headgates evaluate`: measure checkpoints, and test the differences between them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import Output, Precision, Text
from fairseq_headgates.cli.parser import counted, filled
from fairseq_headgates.drawing.evaluations import difference_table, evaluation_table
from fairseq_headgates.drawing.tables import open_counts
from fairseq_headgates.files import lines_of, read_text, to_json

if TYPE_CHECKING:
    from torch import nn

    from fairseq_headgates.cli.session import Session
    from fairseq_headgates.data.corpus import Corpus
    from fairseq_headgates.data.results import Evaluation, Loss
    from fairseq_headgates.heads import Signature

GIVE_TEXT = "give the text that was binarised, with blanks between words"
GIVE_REFERENCE = "give a line for each sentence of --gen-subset"


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
class Evaluate(Text, Precision, Output):
    """Measure loss, BLEU or accuracy, and speed; test differences.

    Measure loss and perplexity, and BLEU and chrF2 (translation) or accuracy (classification), with 95% confidence
    intervals. With several checkpoints, test the difference of each from the first. For BLEU of detokenised text pass
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
        help="reference translations of --gen-subset as plain text, a line for each sentence (default: the target of "
        "DATA, detokenised like the translations)",
    )
    words: list[tuple[str, str]] = option(
        metavar="SUBSET=FILE",
        type=_subset_and_file,
        action="append",
        default=[],
        reads="the text",
        help="for language models: the text of a subset with blanks between words, to report perplexity per word; the "
        "end of a line counts as a word. Can be repeated",
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
        help="also measure speed on --gen-subset: words translated, sentences classified, or tokens of a language "
        "model per second. All checkpoints take turns: a warm-up, then ROUNDS timed rounds (default: %(const)s). "
        "Prints the fastest, in brackets the slowest and the fastest. On a CPU with one thread, processor time",
    )
    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the results as JSON, with the predictions and the loss of every sentence",
    )
    json: bool = option(default=False, help="print JSON instead of tables, without predictions and references")

    def run(self, session: Session) -> Answer:
        """Evaluate all checkpoints."""
        from fairseq_headgates.data.results import Speed, differences
        from fairseq_headgates.data.speed import speeds
        from fairseq_headgates.data.workers import device_of

        evaluator = _Evaluator(self, session)
        evaluations = [evaluator.evaluate(path) for path in session.paths]
        if self.speed:
            unit = {"bleu": "words", "accuracy": "sentences"}.get(evaluator.metric, "tokens")
            measured = speeds(evaluator.systems, device_of(session.fairseq), self.speed, session.progress("speed"))
            intervals = [rates.interval for rates in measured]
            found = [Speed(unit, fast, (slow, fast) if self.speed > 1 else None) for slow, fast in intervals]
            evaluations = [replace(each, speed=speed) for each, speed in zip(evaluations, found, strict=True)]
        objects = [evaluation.as_json() for evaluation in evaluations]
        texts = ("predictions", "references")
        printed = [{name: of[name] for name in of if name not in texts} for of in objects]
        written, shown = (to_json(each[0] if len(each) == 1 else each) for each in (objects, printed))
        return Answer(
            text=as_text(evaluations, differences(evaluations[0], evaluations[1:])),
            json=shown,
            files={"out": written + "\n", "hypotheses": evaluator.hypotheses},
        )


class _Evaluator:
    """Evaluates checkpoints with the options of the command, which are checked first.

    Attributes:
        metric: name of the metric, see `data.metrics.metric_of`
        hypotheses: what --hypotheses writes
        losses: subsets for the loss
        reference: reference translations; None for those of the data
        words: numbers of lines and of words, ends of lines included, of the text of each subset
        systems: what is timed with --speed
    """

    def __init__(self, options: Evaluate, session: Session):
        self.options, self.session, self.hypotheses = options, session, ""
        self.metric = session.objective.metric(None)
        self.losses = list(dict.fromkeys((options.loss_subset or session.fairseq.gen_subset).split(",")))
        if "" in self.losses:
            raise ValueError(f"--loss-subset is {options.loss_subset!r}: give names with commas between them")
        for name, value in (("--reference", options.reference), ("--hypotheses", options.hypotheses)):
            if value and self.metric != "bleu":
                raise ValueError(f"{name} is for translation, which this --task is not: leave it out")
        if options.hypotheses and len(session.paths) > 1:
            raise ValueError(
                f"--hypotheses is for one checkpoint, --path names {len(session.paths)}: leave one of both"
            )
        if options.speed and session.fairseq.distributed_world_size > 1:
            raise ValueError("--speed is measured by one worker: leave it out, or start one")
        if options.words and not hasattr(session.task, "eval_lm_dataloader"):
            raise ValueError("--words is for language models: leave it out")
        file = options.reference
        self.reference = lines_of(read_text(file, "the reference", GIVE_REFERENCE)) if file else None
        self.words: dict[str, tuple[int, int]] = {}
        for subset, file in options.words:
            if subset not in self.losses:
                raise ValueError(f"--words {subset}={file}: choose a subset of --loss-subset, {', '.join(self.losses)}")
            if subset in self.words:
                raise ValueError(f"--words is given twice for {subset}: give it once")
            lines = lines_of(read_text(file, "the text", GIVE_TEXT))
            self.words[subset] = len(lines), sum(len(line.split()) + 1 for line in lines)
        self.systems: list[Any] = []

    def evaluate(self, path: str) -> Evaluation:
        """Evaluate a checkpoint."""
        from fairseq_headgates.attention.modules import gate_values, number_of_parameters, to_table
        from fairseq_headgates.data.metrics import METRICS
        from fairseq_headgates.data.results import Evaluation
        from fairseq_headgates.data.speed import run_once

        session, options, subset = self.session, self.options, self.session.fairseq.gen_subset
        name, (model, origin) = session.name(path), session.model(path)
        needed = [subset] if self.metric in METRICS or options.speed else []
        corpora = {each: session.corpus(model, each) for each in dict.fromkeys([*needed, *self.losses])}
        signature = self._signature(corpora, origin)
        gate = to_table(gate_values(model), "gate")
        metric = session.metric(self.metric, model, corpora[subset]) if needed else None
        self._check_lines(corpora)
        prepared = metric.prepared(model) if metric else model
        predictions: Any = metric.predict(prepared, session.progress(f"{name} {metric.name}")) if metric else None
        if metric and self.reference is not None:
            metric.use([self.reference[number] for number in corpora[subset].numbers()])
        if options.hypotheses:
            lines = dict(zip(corpora[subset].numbers(), predictions or (), strict=True))
            self.hypotheses = "".join(lines.get(i, "") + "\n" for i in range(corpora[subset].lines))
        if options.speed:
            self.systems.append(partial(run_once, prepared, corpora[subset], metric))
        return Evaluation(
            checkpoint=name,
            heads=open_counts(gate),
            layers={each: [sum(value > 0 for value in row) for row in rows] for each, rows in gate.layers.items()},
            parameters=number_of_parameters(model),
            losses={each: self._loss(model, corpora[each], f"{name} loss {each}") for each in self.losses},
            subset=subset,
            scores={each: scorer.score(predictions) for each, scorer in metric.scorers.items()} if metric else {},
            predictions=predictions,
            references=metric.references if metric else None,
            speed=None,
            signature=str(signature),
        )

    def _signature(self, corpora: Mapping[str, Corpus], origin: Mapping[str, Any]) -> Signature:
        """Return the signature of an evaluation, with all subsets and their numbers of sentences."""
        from fairseq_headgates.cli.signature import short_name

        sentences = ",".join(str(corpus.sentences) for corpus in corpora.values())
        signature = self.session.origin(",".join(corpora)).with_parts({"sents": sentences, **origin})
        if self.metric != "bleu":
            return signature
        file = self.options.reference
        return signature.with_parts({**self.session.search.parts, **({"ref": short_name(file)} if file else {})})

    def _check_lines(self, corpora: Mapping[str, Corpus]) -> None:
        """Raise ValueError unless the reference and the texts have as many lines as the data."""
        from fairseq_headgates.data.corpus_losses import occurrences

        if self.reference is not None:
            lines, sentences = len(self.reference), corpora[self.session.fairseq.gen_subset].lines
            if lines != sentences:
                raise ValueError(
                    f"--reference has {lines:,} lines, the subset {sentences:,} sentences: {GIVE_REFERENCE}"
                )
        for subset, (lines, _) in self.words.items():
            eos_tokens = occurrences(corpora[subset], corpora[subset].eos)
            if lines != eos_tokens:
                raise ValueError(f"--words {subset} has {lines:,} lines, the subset {eos_tokens:,}: {GIVE_TEXT}")

    def _loss(self, model: nn.Module, corpus: Corpus, title: str) -> Loss:
        from fairseq_headgates.data.corpus_losses import occurrences, sentence_losses
        from fairseq_headgates.data.objectives import NextToken
        from fairseq_headgates.data.results import Loss

        sentences, counts = sentence_losses(model, corpus, self.session.progress(title))
        others: dict[str, Any] = {}
        if isinstance(corpus.objective, NextToken):
            unknown = occurrences(corpus, corpus.task.target_dictionary.unk())
            _, words = self.words.get(corpus.subset, (0, None))
            others = {"tokens": sum(counts), "unknown": unknown, "words": words}
        return Loss.of(sentences, counts, corpus.objective.unit.split()[-1], **others)


def as_text(found: Sequence[Evaluation], changes: Sequence[Mapping[str, Any]]) -> str:
    """Return what `headgates evaluate` prints: evaluations, differences of the others from the first, signatures."""
    text = [evaluation_table({each.checkpoint: each.as_json() for each in found})]
    signatures = {name: score.signature for each in found for name, score in each.scores.items()}
    tests = {name: each.signature for of in changes for name, each in of.items()}
    if changes:
        names = [f"{each.checkpoint} - {found[0].checkpoint}" for each in found[1:]]
        text.append(difference_table(dict(zip(names, changes, strict=True))))
    lines = [f"{name}: {signature}" for name, signature in signatures.items()]
    lines += [f"p of {name}: {signature}" for name, signature in tests.items()]
    return "\n\n".join([*text, "\n".join([*lines, *(each.signature for each in found)])])
