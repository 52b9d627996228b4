"""Measure checkpoints, and test the differences between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fairseq_headgates.attention.sites import gate_values, to_table
from fairseq_headgates.cli.commands.evaluate import EvaluateOptions
from fairseq_headgates.cli.session import Loaded, Session, session
from fairseq_headgates.cli.signature import short_name
from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.evaluation.corpus_losses import occurrences, sentence_losses
from fairseq_headgates.evaluation.metrics import METRICS
from fairseq_headgates.evaluation.objectives import NextToken
from fairseq_headgates.evaluation.results import (
    Evaluation,
    Loss,
    Speed,
    pairwise,
)
from fairseq_headgates.evaluation.speed import run_once, speeds
from fairseq_headgates.evaluation.workers import device_of
from fairseq_headgates.files import lines_of, read_text
from fairseq_headgates.report.evaluations import difference_table, evaluation_table
from fairseq_headgates.report.tables import open_counts

Work = Session[EvaluateOptions]
GIVE_TEXT = "give the text that was binarised, with blanks between words"
GIVE_REFERENCE = "give a line for each sentence of --gen-subset"


def run(options: EvaluateOptions) -> None:
    """Run `headgates evaluate`."""
    with session(options) as work:
        inputs = _Inputs.read(work)
        found, systems = [], []
        for path in work.progress("evaluate")(work.paths):
            evaluation, system = _evaluate(work, path, inputs)
            found.append(evaluation)
            systems.append(system)
        if options.speed:
            found = _with_speeds(work, found, systems, options.speed)
        pairs = pairwise(found)  # before files are written, because it can fail
        objects = [evaluation.as_json() for evaluation in found]
        content = json.dumps(objects[0] if len(objects) == 1 else objects)
        work.write(options.out, content + "\n")
        work.say(content if options.json else as_text(found, pairs))


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
    def read(cls, work: Work) -> _Inputs:
        """Check the options and read the files. Raise ValueError."""
        options, metric = work.options, work.objective.metric(None)
        losses = list(dict.fromkeys((options.loss_subset or work.fairseq.gen_subset).split(",")))
        if "" in losses:
            raise ValueError(f"--loss-subset is {options.loss_subset!r}: give names with commas between them")
        for name, value in (("--reference", options.reference), ("--hypotheses", options.hypotheses)):
            if value and metric != "bleu":
                raise ValueError(f"{name} is for translation, which this --task is not: leave it out")
        if options.hypotheses and len(work.paths) > 1:
            raise ValueError(f"--hypotheses is for one checkpoint, --path names {len(work.paths)}: leave one of both")
        if options.speed and work.fairseq.distributed_world_size > 1:
            raise ValueError("--speed is measured by one worker: leave it out, or start one")
        if options.text and not hasattr(work.task, "eval_lm_dataloader"):
            raise ValueError("--text is for language models: leave it out")
        file = options.reference
        reference = lines_of(read_text(file, "the reference", GIVE_REFERENCE)) if file else None
        return cls(metric, losses, reference, _words(options.text, losses))


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


def _evaluate(work: Work, path: str, inputs: _Inputs) -> tuple[Evaluation, Callable[[], int] | None]:
    """Evaluate a checkpoint. Return also what is timed with --speed."""
    subset = work.fairseq.gen_subset
    model, origin = work.model(path, work.options.inference_mode)
    needed = [subset] if inputs.metric in METRICS or work.options.speed else []
    corpora = {name: work.corpus(model, name) for name in dict.fromkeys([*needed, *inputs.losses])}
    signature = _signature(work, corpora, inputs.metric == "bleu", origin)
    gate = to_table(gate_values(model), "gate")
    metric = work.metric(inputs.metric, Loaded(model, corpora[subset], signature)) if needed else None
    _check(inputs, corpora, subset)
    prepared = metric.prepared(model) if metric else model
    predictions: Any = metric.predict(prepared) if metric else None
    if metric and inputs.reference is not None:
        metric.use([inputs.reference[number] for number in corpora[subset].numbers()])
    if work.options.hypotheses:
        lines = dict(zip(corpora[subset].numbers(), predictions or (), strict=True))
        work.write(work.options.hypotheses, "".join(lines.get(i, "") + "\n" for i in range(corpora[subset].lines)))
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
    system = partial(run_once, prepared, corpora[subset], metric) if work.options.speed else None
    return evaluation, system


def _signature(work: Work, corpora: Mapping[str, Corpus], translates: bool, origin: Mapping[str, Any]) -> Any:
    """Return the signature of an evaluation, with all subsets and their numbers of sentences."""
    sentences = ",".join(str(corpus.sentences) for corpus in corpora.values())
    found = work.origin(",".join(corpora)).with_parts({"sents": sentences, **origin})
    reference = {"ref": short_name(work.options.reference)} if work.options.reference else {}
    return found.with_parts({**work.search.parts, **reference} if translates else {})


def _check(inputs: _Inputs, corpora: Mapping[str, Corpus], predicted: str) -> None:
    """Raise ValueError unless the reference and the texts have as many lines as the data."""
    if inputs.reference is not None:
        lines, sentences = len(inputs.reference), corpora[predicted].lines
        if lines != sentences:
            raise ValueError(f"--reference has {lines:,} lines, the subset {sentences:,} sentences: {GIVE_REFERENCE}")
    for subset, (lines, _) in inputs.words.items():
        eos_tokens = occurrences(corpora[subset], corpora[subset].eos)
        if lines != eos_tokens:
            raise ValueError(f"--text {subset} has {lines:,} lines, the subset {eos_tokens:,}: {GIVE_TEXT}")


def _loss(model: Any, corpus: Corpus, text: tuple[int, int] | None) -> Loss:
    sentences, counts = sentence_losses(model, corpus)
    others: dict[str, Any] = {}
    if isinstance(corpus.objective, NextToken):
        unknown = occurrences(corpus, corpus.task.target_dictionary.unk())
        others = {"tokens": sum(counts), "unknown": unknown, "words": text and text[1]}
    return Loss.of(sentences, counts, corpus.objective.unit.split()[-1], **others)


def _with_speeds(work: Work, found: Sequence[Evaluation], systems: Sequence[Any], rounds: int) -> list[Evaluation]:
    unit = {"bleu": "words", "accuracy": "sentences"}.get(work.objective.metric(None), "tokens")
    measured = speeds(systems, device_of(work.fairseq), rounds)
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
