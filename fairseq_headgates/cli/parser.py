"""The argument parser of the command, whose errors are one line, and options that subcommands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from fairseq_headgates.analysis.options import GRADIENT_UNITS, HEAD_RULES, NORMS
from fairseq_headgates.heads import TYPES, parse_types
from fairseq_headgates.messages import fail, shown

DATA_USAGE = "%(prog)s DATA --path CKPT [options] [options of fairseq-generate]"
OPEN = (
    "A head is open if its evaluation gate, the constant that replaces the random gate after training, is above 0, and "
    "otherwise closed."
)
AS_STORED = "(default: that of the checkpoint)"
CHOOSING = "valid"  # the subset that heads are chosen on by default: results are measured on the test set
DATA_EPILOG = (
    "DATA is a folder written by fairseq-preprocess, for classifiers the one that holds input0 and label; --path CKPT "
    "(required) is a fairseq checkpoint (for evaluate, curve and functions, also several, separated by colons). The "
    "options of fairseq-generate set data, batches, workers and beam search: --gen-subset (default: test; of score and "
    f"compress: {CHOOSING}), --max-tokens (4000), --cpu, --fp16, --beam, --lenpen, --post-process, --tokenizer, "
    "--scoring sacrebleu, ... (fairseq-generate --help)."
)

# Options that name files to read, by their names in the parsed arguments, and what the files are.
INPUTS = {
    "checkpoint": "the checkpoint",
    "alive": "the mask",
    "masks": "the mask",
    "scores": "the score file",
    "files": "the score file",
    "inputs": "the input",
    "text": "the text",
    "reference": "the reference",
    "conllu": "the trees",
    "target_conllu": "the trees",
    "alignment": "the word alignments",
    "alignment_heads": "the functions",
    "data": "the dictionaries in",
    "refit": "the data in",
}


class OldOptions(argparse.Namespace):
    """Of commands that are not dataclasses yet."""

    def files_to_read(self) -> Iterator[tuple[str, Any]]:
        """See `Options`."""
        for name, what in INPUTS.items():
            value = getattr(self, name, None)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, (str, tuple)):
                    yield what, each

    def fairseq_arguments(self) -> list[str] | None:
        """See `Options`."""
        return self.rest if self.takes_fairseq else None


NO_FILE = re.compile(r"-$|\s*\{|[a-z-]+:\S")  # standard input, JSON, heads such as dec-enc:1.3


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser with examples, whose errors are one line on stderr, without the usage; exit code 2.

    Attributes:
        examples: commands that the help ends with
    """

    examples: tuple[str, ...] = ()

    def format_help(self) -> str:
        """Return the help."""
        examples = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{examples}" if examples else "")

    def error(self, message: str) -> NoReturn:
        """Print an error in one line and exit with code 2."""
        fail(self.prog, f"{message} (see {self.prog} --help)")


class Once(argparse.Action):
    """An option that cannot be given twice with different values; argparse would take the last."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the option. Report an error for a second, different value."""
        before = getattr(namespace, self.dest, None)
        if before not in (None, values):
            parser.error(f"argument {option_string}: given twice, as {before!r} and {values!r}: give it once")
        setattr(namespace, self.dest, values)


def missing_input(args: Any) -> str:
    """Return an error message if a file that the arguments name does not exist, else an empty text."""
    for what, path in _inputs(args):
        try:
            os.stat(path)
        except OSError as error:
            return f"cannot read {what} {shown(path)} ({error.strerror}): check the path"
    return ""


def _inputs(args: Any) -> Iterator[tuple[str, str]]:
    """Yield what the files are that the arguments name, and their paths."""
    for what, value in args.files_to_read():
        path = value[1] if isinstance(value, tuple) else value  # --text SUBSET=FILE
        if path and not NO_FILE.match(path):
            yield what, path
    words = args.fairseq_arguments() or []
    if words and not words[0].startswith("-"):
        yield from (("the data in", path) for path in _split(words[0]))
    for option, value in zip(words, [*words[1:], ""], strict=False):
        if option == "--path" or option.startswith("--path="):
            yield from (("the checkpoint", path) for path in _split(option.partition("=")[2] or value))


def _split(paths: str) -> list[str]:
    """Return the paths of an argument of fairseq, none for an address or an empty text."""
    return [] if "://" in paths else [path for path in paths.split(os.pathsep) if path]


def filled(text: str) -> str:
    """Parse the name of a file, which is not empty (`--out "$OUT"` without $OUT)."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty: give a name")
    return text


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint to read, and --trust."""
    parser.add_argument("checkpoint", metavar="CKPT", type=filled, help="a fairseq checkpoint (.pt)")
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add --trust."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="load CKPT with unrestricted unpickling (torch.load with weights_only=False), which can run arbitrary "
        "code: only for files that you trust",
    )


def add_output(parser: argparse.ArgumentParser, text: str, json: str = "print JSON instead of tables") -> None:
    """Add --out (with the help `text`), --json and --force."""
    parser.add_argument("--out", metavar="FILE", type=filled, help=text)
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def add_types(parser: Any, text: str) -> None:
    """Add --types, attention types separated by commas; see `chosen_types`."""
    parser.add_argument("--types", metavar="T[,T...]", help=f"{text}; choices: {', '.join(TYPES)}, all")


def chosen_types(text: str | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Parse the value of --types; without a value, or for "all", return `default`. Raise ValueError."""
    if text in (None, "all"):
        return default
    types = parse_types(text)
    if not types:
        raise ValueError(f"--types {text!r} names no attention type: choose from {', '.join(TYPES)}, or all")
    return types


def add_data(parser: argparse.ArgumentParser, sentences: bool = True) -> None:
    """Make a subcommand read data with the options of fairseq-generate, and, with `sentences`, add --sentences."""
    parser.usage, parser.epilog, parser.allow_abbrev = DATA_USAGE, DATA_EPILOG, False
    if sentences:
        parser.add_argument(
            "--sentences", metavar="N", type=int, help="use only the first N sentences of each subset (default: all)"
        )
    add_trust(parser)
    parser.set_defaults(takes_fairseq=True)


def add_metric(parser: argparse.ArgumentParser, default: str, tests: str = "") -> None:
    """Add --metric; see `evaluation.metrics`. `tests` says which significance tests the command makes."""
    parser.add_argument(
        "--metric",
        choices=("nll", "ppl", "bleu", "accuracy"),
        help="nll: loss in bits per target or masked token, or per sentence of a classifier; ppl: also perplexity, 2 "
        "to the power of the loss; bleu: also BLEU by sacreBLEU, on detokenised text with --remove-bpe --tokenizer "
        "moses; accuracy: also the percentage of sentences that are classified correctly."
        f"{tests} (default: {default})",
    )


def add_inference_dtype(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --inference-dtype, with the end `text` of its help."""
    parser.add_argument(
        "--inference-dtype",
        metavar="DTYPE",
        help="data type of linear layers in inference on a CPU: float32, or int8 (weights and activations quantised to "
        f"8 bits: faster, less accurate) {text}",
    )


def counted(text: str, rule: str = "a number from 1 on") -> int:
    """Parse a number that is at least 1; the error says that the text is not `rule`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
    return int(text)


def add_refit_options(parser: Any) -> None:
    """Add --refit-sentences and --refit-subset."""
    parser.add_argument(
        "--refit-sentences",
        metavar="N",
        type=counted,
        default=2000,
        help="with --refit: use only the first N sentences of --refit-subset (default: %(default)s)",
    )
    parser.add_argument(
        "--refit-subset",
        metavar="S",
        type=filled,
        default="train",
        help="with --refit: the subset to refit on (default: %(default)s)",
    )


def numbers(what: str) -> Callable[[str], list[int]]:
    """Return a function that parses numbers separated by commas; `what` names them in its error."""

    def parse(text: str) -> list[int]:
        try:
            return [int(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {what} such as 1,5") from None

    return parse


def add_score_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of importance scores; see `analysis.options.ScoreOptions`."""
    rules = "; ".join(f"{name}: {text}" for name, text in HEAD_RULES.items())
    parser.add_argument(
        "--gradient-unit",
        choices=GRADIENT_UNITS,
        default="sentence",
        help="with method gradient: take absolute values per sentence (Michel et al. 2019, the paper) or per token "
        "(their code) (default: %(default)s)",
    )
    parser.add_argument(
        "--normalize",
        choices=NORMS,
        default="layer",
        help="with method gradient: divide the scores of each layer by their l2 norm, or not (default: %(default)s)",
    )
    parser.add_argument(
        "--rule",
        choices=HEAD_RULES,
        default="story-of-heads",
        help=f"with method relevance: how relevance is propagated. {rules} (default: %(default)s)",
    )


def number_or_fraction(text: str, rule: str = "a number of heads (12) nor a fraction (0.5)") -> float:
    """Parse a number (12, an int) or a fraction (0.5, a float); the error says that the text is neither `rule`."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {rule}") from None
