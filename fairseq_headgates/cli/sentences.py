"""The sentences that the options of a command choose."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from fairseq_headgates.analysis.sentences import read_sentences, typed_sentences
from fairseq_headgates.attention.features import stacks_of
from fairseq_headgates.cli.output import warn
from fairseq_headgates.cli.session import Session
from fairseq_headgates.evaluation.losses import Sample
from fairseq_headgates.evaluation.objectives import Classes
from fairseq_headgates.files import lines_of, read_standard_input, read_text


def sentences(work: Session, model: nn.Module) -> Iterator[tuple[int, Sample]]:
    """Return the chosen sentences with their numbers, one by one, on the device of the model. Raise ValueError."""
    args = work.args
    if args.lines is not None and args.text is not None:
        raise ValueError("--lines has no effect with --text, whose sentences are all used: leave it out")
    if args.text is None:
        chosen = args.lines or [1]
        return zip(chosen, read_sentences(work.fairseq, work.task, model, chosen), strict=True)
    name = "standard input" if args.text == "-" else args.text
    text = read_standard_input() if args.text == "-" else read_text(args.text, "the text", "give a text file")
    lines = {number: line for number, line in enumerate(lines_of(text), start=1) if line.strip()}
    if not lines:
        raise ValueError(f"{name} has no sentence: give one sentence per line")
    of_pairs = isinstance(work.objective, Classes) and Path(work.fairseq.data, "input1").is_dir()
    columns = ["SOURCE", "TARGET"] if len(stacks_of(model)) == 2 else ["SENTENCE"] * (1 + of_pairs)
    for number, line in lines.items():
        if (found := line.rstrip().count("\t") + 1) > len(columns):
            most, fields = (f"2 ({', '.join(columns)})", "1,2") if len(columns) == 2 else ("1", "1")
            raise ValueError(
                f"{name} line {number} has {found} tab-separated columns, at most {most} are allowed: select them, for "
                f"example with cut -f {fields}"
            )
    typed = typed_sentences(work.fairseq, work.task, model, lines.values())
    return (
        (number, _known(work, sample, f"{name} line {number}")) for number, sample in zip(lines, typed, strict=True)
    )


def _known(work: Session, sample: Sample, where: str) -> Sample:
    """Return a sample. Warn of tokens in it that the dictionaries do not have."""
    sides = (
        (sample["net_input"]["src_tokens"], work.task.source_dictionary),
        (sample.get("target"), work.task.target_dictionary),
    )
    unknown = sum(int(tokens.eq(dictionary.unk()).sum()) for tokens, dictionary in sides if tokens is not None)
    if unknown and work.writes:
        tokens = "a token" if unknown == 1 else f"{unknown} tokens"
        warn(work.args.command, f"{where} has {tokens} not in the dictionary: give text tokenised and in subwords")
    return sample


def __getattr__(name: str) -> Any:
    """Find what the commands use that are not dataclasses yet."""
    if not name.startswith("add_") and name not in ("AS_STORED", "CHOOSING", "OPEN", "numbers"):
        raise AttributeError(name)
    from fairseq_headgates.cli import old

    return getattr(old, name)
