"""Options of the commands that are not dataclasses yet. To be removed with the `__getattr__` that find it."""

import argparse
from collections.abc import Iterator
from typing import Any

from fairseq_headgates.cli.command import _add_option, add_options
from fairseq_headgates.cli.options import (  # noqa: F401
    AS_STORED,
    CHOOSING,
    DATA_EPILOG,
    DATA_USAGE,
    OPEN,
    REPAIR,
    Checkpoint,
    Choice,
    ChosenSentences,
    Data,
    FirstSentences,
    InferenceDtype,
    Output,
    Refit,
    Scores,
    Trust,
    Types,
    inference_dtype,
)
from fairseq_headgates.cli.parser import filled, numbers  # noqa: F401

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

    needs_models = True

    def inputs(self) -> Iterator[tuple[str, Any]]:
        """See `Options`."""
        for name, what in INPUTS.items():
            value = getattr(self, name, None)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, (str, tuple)):
                    yield what, each

    def outputs(self) -> dict[str, str]:
        """See `Options`."""
        names = ("out", "plot", "tsv", "write_alignments")
        return {name.replace("_", "-"): path for name in names if (path := getattr(self, name, None)) is not None}

    def fairseq_arguments(self) -> list[str] | None:
        """See `Options`."""
        return self.rest if self.takes_fairseq else None


def old_options(values: argparse.Namespace, rest: list[str]) -> OldOptions:
    """Return options that are instances of the bases whose options they have."""
    bases = (Trust, FirstSentences, ChosenSentences, Output, Types, InferenceDtype, Refit, Scores, Choice)
    own = {**vars(values), "rest": rest}
    found = [each for each in bases if set(each.__annotations__) <= own.keys()]
    return type("Old", (OldOptions, *reversed(found)), {})(**own)


def add_checkpoint(parser: Any) -> None:
    """Add the checkpoint to read, and --trust."""
    add_options(parser, Checkpoint)


def add_trust(parser: Any) -> None:
    """Add --trust."""
    add_options(parser, Trust)


def add_output(parser: argparse.ArgumentParser, text: str, json: str = "print JSON instead of tables") -> None:
    """Add --out (with the help `text`), --json and --force."""
    parser.add_argument("--out", metavar="FILE", type=filled, help=text)
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def add_data(parser: argparse.ArgumentParser, sentences: bool = True) -> None:
    """Make a subcommand read data with the options of fairseq-generate, and, with `sentences`, add --sentences."""
    parser.usage, parser.epilog, parser.allow_abbrev = DATA_USAGE, DATA_EPILOG, False
    add_options(parser, FirstSentences if sentences else Data)
    parser.set_defaults(takes_fairseq=True)


def add_inference_dtype(parser: Any, text: str) -> None:
    """Add --inference-dtype, with the end `text` of its help."""
    declared: Any = inference_dtype(text)
    declared.name = "inference_dtype"
    _add_option(parser, declared)


def add_refit_options(parser: Any) -> None:
    """Add --refit-sentences and --refit-subset."""
    add_options(parser, Refit)


def add_choice(parser: Any) -> None:
    """Add --threshold, --alive, and --scores with its options."""
    add_options(parser, Choice)


def add_sentences(parser: argparse.ArgumentParser) -> None:
    """Add --lines and --text."""
    for name in ("lines", "text"):
        _add_option(parser, ChosenSentences.__dataclass_fields__[name])
