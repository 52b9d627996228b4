"""`headgates attention`: draw the attention weights of heads for single sentences."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairseq_headgates.cli.parser import add_data, add_output, filled
from fairseq_headgates.files import lines_of, read_standard_input, read_text

if TYPE_CHECKING:
    from torch import nn

    from fairseq_headgates.cli.session import Session
    from fairseq_headgates.evaluation import Sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates attention`."""
    add_data(parser, sentences=False)
    parser.description = (
        "Draw attention maps: the attention weights of heads for single sentences, with their tokens. The decoder "
        "reads the reference, or its own translation of a sentence without one."
    )
    parser.add_argument(
        "--heads",
        metavar="H[,H...]",
        default="all",
        help="heads as TYPE:LAYER.HEAD, counted from 0, or with * for all: enc-self:0.3,dec-self:1.*,dec-enc:* "
        "(default: all)",
    )
    parser.add_argument(
        "--lines", metavar="N[,N...]", type=_lines, help="sentences of --gen-subset, counted from 1 (default: 1)"
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=filled,
        help="instead of --gen-subset, sentences of a file, or of standard input (-), one per line: SOURCE, or SOURCE, "
        "tab, TARGET, as tokens of the dictionaries (tokenised, in subwords); for an encoder one sentence, which gets "
        "<s> and </s>",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the maps: .html, or .png, .pdf, .svg (these need matplotlib)"
    )
    add_output(parser, "write the attention weights as JSON", "print the attention weights as JSON")


def _lines(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of line numbers such as 1,5") from None


def run(args: argparse.Namespace) -> int:
    """Run `headgates attention` and return its exit code."""
    from fairseq_headgates import report
    from fairseq_headgates.analysis.attention_maps import attention_maps, parse_heads
    from fairseq_headgates.cli.session import session
    from fairseq_headgates.evaluation import check_has_loss, objective_of
    from fairseq_headgates.surgery import head_counts

    if args.lines is not None and args.text is not None:
        raise ValueError("--lines has no effect with --text, whose sentences are all drawn: leave it out")
    with session(args, pages=True) as work:
        model, origin = work.model(work.only_path())
        check_has_loss(model)
        objective_of(work.task).check_text("headgates attention")
        heads = parse_heads(args.heads, head_counts(model))
        samples = _samples(work, model)
        maps = {number: attention_maps(model, work.task, sample, heads) for number, sample in samples}
        signature = work.origin("" if args.text else work.fairseq.gen_subset).with_parts(origin)
        text = json.dumps(report.attention_json(maps, str(signature)), allow_nan=False)
        work.write(args.out, text + "\n")
        if args.plot and args.plot.endswith(".html"):
            work.write(args.plot, report.attention_page(maps, str(signature)))
        else:
            work.plot(args.plot, lambda: report.attention_figure(maps))
        if args.json or not (args.out or args.plot):
            work.say(text if args.json else report.attention_tables(maps))
    return 0


def _samples(work: Session, model: nn.Module) -> Iterator[tuple[int, Sample]]:
    """Return the sentences to draw with their numbers, one by one, on the device of the model. Raise ValueError."""
    from fairseq_headgates.analysis.attention_maps import read_sentences, typed_sentences
    from fairseq_headgates.surgery import stacks_of

    args = work.args
    if args.text is None:
        numbers = args.lines or [1]
        return zip(numbers, read_sentences(work.fairseq, work.task, model, numbers), strict=True)
    name = "standard input" if args.text == "-" else args.text
    text = read_standard_input() if args.text == "-" else read_text(args.text, "the text", "give a text file")
    lines = {number: line for number, line in enumerate(lines_of(text), start=1) if line.strip()}
    if not lines:
        raise ValueError(f"{name} has no sentence: give one sentence per line")
    columns = len(stacks_of(model))
    for number, line in lines.items():
        if (found := line.rstrip().count("\t") + 1) > columns:
            most, fields = ("2 (SOURCE, TARGET)", "1,2") if columns == 2 else ("1", "1")
            raise ValueError(
                f"{name} line {number} has {found} tab-separated columns, at most {most} are allowed: select them, for "
                f"example with cut -f {fields}"
            )
    return zip(lines, typed_sentences(work.fairseq, work.task, model, lines.values()), strict=True)
