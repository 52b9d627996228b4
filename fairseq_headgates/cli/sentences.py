"""What the commands that work on single sentences share: the model, the chosen sentences, and the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fairseq_headgates.attention.anatomy import stacks_of
from fairseq_headgates.cli.command import Answer
from fairseq_headgates.cli.options import ChosenSentences
from fairseq_headgates.cli.session import Session
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.data.objectives import Classes
from fairseq_headgates.data.sentences import read_sentences, typed_sentences
from fairseq_headgates.data.text import read_sides
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import Signature


def load(session: Session, options: ChosenSentences) -> tuple[nn.Module, Signature]:
    """Load the only model of --path, and return it with the signature of model and data. Raise ValueError."""
    model, origin = session.model(session.only_path())
    return model, session.origin("" if options.text else session.fairseq.gen_subset).with_parts(origin)


def sentences(session: Session, model: nn.Module, options: ChosenSentences) -> Iterable[tuple[int, Sample]]:
    """Return the chosen sentences with their numbers, one by one, on the device of the model. Raise ValueError."""
    if options.text is None:
        chosen = options.lines or [1]
        session.subsets.add(session.fairseq.gen_subset)
        samples = read_sentences(session.fairseq, session.task, model, chosen)
        return session.progress("sentences")(zip(chosen, samples, strict=True))
    if options.lines is not None:
        raise ValueError("--lines has no effect with --text, whose sentences are all used: leave it out")
    name = " and ".join("standard input" if file == "-" else file for file in options.text)
    rows = map("\t".join, zip(*read_sides(options.text), strict=True))
    lines = {number: row for number, row in enumerate(rows, start=1) if row.strip()}
    if not lines:
        raise ValueError(f"{name} has no sentence: give one sentence per line")
    of_pairs = isinstance(session.objective, Classes) and Path(session.fairseq.data, "input1").is_dir()
    columns = ["SOURCE", "TARGET"] if len(stacks_of(model)) == 2 else ["SENTENCE"] * (1 + of_pairs)
    for number, line in lines.items():
        if (given := line.rstrip().count("\t") + 1) > len(columns):
            most, fields = (f"2 ({', '.join(columns)})", "1,2") if len(columns) == 2 else ("1", "1")
            raise ValueError(
                f"{name} line {number} has {given} tab-separated columns, at most {most} are allowed: select them, for "
                f"example with cut -f {fields}"
            )
    return session.progress("sentences")(_typed(session, model, lines, name))


def _typed(session: Session, model: nn.Module, lines: Mapping[int, str], name: str) -> Iterator[tuple[int, Sample]]:
    """Yield the sentences of a text with the numbers of their lines. Warn of tokens that the dictionaries lack."""
    samples = typed_sentences(session.fairseq, session.task, model, lines.values())
    for number, sample in zip(lines, samples, strict=True):
        sides = (
            (sample["net_input"]["src_tokens"], session.task.source_dictionary),
            (sample.get("target"), session.task.target_dictionary),
        )
        unknown = sum(int(tokens.eq(dictionary.unk()).sum()) for tokens, dictionary in sides if tokens is not None)
        if unknown:
            tokens = "a token" if unknown == 1 else f"{unknown} tokens"
            hint = "give text tokenised and in subwords"
            session.warn_once(f"{name} line {number} has {tokens} not in the dictionary: {hint}")
        yield number, sample


def answer_of(
    options: ChosenSentences, result: Mapping[str, Any], page: Callable[[], str], figure: Callable[[], Any], text: str
) -> Answer:
    """Return an answer that is printed only if it is not written."""
    content, written = to_json(result), options.out or options.plot
    return Answer(text="" if written else text, json=content, files={"out": content + "\n"}, figure=figure, page=page)
