"""Options that several commands share (no torch). A command inherits them, and may redeclare one to change its help."""

from __future__ import annotations

from operator import methodcaller
from typing import ClassVar

from fairseq_headgates.cli.command import Group, Options, option
from fairseq_headgates.cli.parser import counted, filled, number_or_fraction, numbers
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores.options import GRADIENT_UNITS, HEAD_RULES, NORMS

DATA_USAGE = "%(prog)s DATA --path CKPT [options] [options of fairseq-generate]"
TEXT_USAGE = DATA_USAGE.replace("DATA", "(DATA | --text FILE...)")
OPEN = (
    "A head is open if its evaluation gate is above 0, otherwise closed. The evaluation gate is the constant that "
    "replaces the random gate after training."
)
CHOOSING = "valid"  # the subset that heads are chosen on by default: results are measured on the test set
DATA_EPILOG = (
    "DATA is a folder written by fairseq-preprocess (classifiers: the folder that has input0 and label). --path CKPT "
    "is a fairseq checkpoint and required; evaluate, curve and functions take several, A:B. The options of "
    "fairseq-generate set data, batches, workers and beam search: --gen-subset (default: test; score, compress, trim: "
    f"{CHOOSING}), --max-tokens (default: 4000), --cpu, --fp16, --beam, --lenpen, --post-process, --tokenizer, "
    "--scoring sacrebleu, ... (fairseq-generate --help)."
)


class LoadsCheckpoint(Options):
    """--trust and --arch, of commands that load checkpoints, and what only some of these commands declare.

    Attributes:
        subset: the default of --gen-subset, None for that of fairseq
        shows_tokens: whether the command prints tokens of the dictionaries
    """

    subset: ClassVar[str | None] = None
    shows_tokens: ClassVar[bool] = False

    sentences: int | None = None
    out: str | None = None
    text: list[str] | None = None
    fit_subset: str | None = None

    trust: bool = option(
        default=False,
        help="load CKPT with unrestricted unpickling (torch.load with weights_only=False), which can run arbitrary "
        "code: only for files that you trust",
    )
    arch: str | None = option(
        metavar="ARCH",
        type=filled,
        help="read CKPT as this architecture of fairseq, such as transformer or roberta (default: the one that is "
        "stored; if fairseq does not know it, it is inferred from the names of the weights)",
    )

    def precision(self) -> str | None:
        """Return the data type of linear layers in inference; only commands with --inference-dtype choose it."""
        return "float32"


class Checkpoint(LoadsCheckpoint):
    """The checkpoint to read."""

    path: str = option(
        metavar="CKPT", type=filled, required=True, reads="the checkpoint", help="a fairseq checkpoint (.pt)"
    )


class Output(Options):
    """Where the result goes."""

    out: str | None = option(metavar="FILE", writes=True, help="write the result as JSON")
    json: bool = option(default=False, help="print JSON instead of tables")
    force: bool = option(default=False, help="overwrite files that exist")


def types(text: str, within: Group | None = None) -> str | None:
    """Declare --types, with the beginning `text` of its help; see `parser.chosen_types`."""
    return option(metavar="T[,T...]", within=within, help=f"{text}; choices: {', '.join(TYPES)}, all")


class Data(LoadsCheckpoint):
    """Commands that read data with the options of fairseq-generate."""

    usage = DATA_USAGE
    epilog = DATA_EPILOG

    def needs_target(self) -> bool:
        """Return whether the data must have targets."""
        return True

    def fairseq_arguments(self) -> list[str] | None:
        """Return all words that are not options of the command."""
        return self.rest


class FirstSentences(Data):
    """--sentences, of commands that can use a part of the data."""

    sentences: int | None = option(
        metavar="N", type=int, help="use only the first N sentences of each subset (default: all)"
    )


class Text(FirstSentences):
    """--text, of commands that read text in place of binarised data; see `data.text`."""

    usage = TEXT_USAGE

    text: list[str] | None = option(
        metavar="FILE",
        nargs="+",
        reads="the text",
        help="use text in place of the data, encoded like the training data: source and target, or for a language "
        "model one text (-: standard input). DATA then gives only the dictionaries; without DATA, they are the "
        "dict.*.txt beside the checkpoint. Languages: those of -s and -t, those by which the files end, or those "
        "of the training. Not for classifiers",
    )


class ChosenSentences(Data):
    """--lines and --text, of commands that work on single sentences; see `sentences.sentences`."""

    usage = TEXT_USAGE
    shows_tokens = True

    lines: list[int] | None = option(
        metavar="N[,N...]",
        type=numbers("a list of line numbers such as 1,5"),
        help="numbers of sentences of --gen-subset, counted from 1 (default: 1)",
    )
    plot: str | None
    text: list[str] | None = option(
        metavar="FILE",
        nargs="+",
        reads="the text",
        help="read sentences from a file (-: from standard input) instead of --gen-subset, one per line: SOURCE, or "
        "SOURCE, tab, TARGET, or each in a file of its own, encoded like the training data. Classifiers: one sentence, "
        "with DATA/input1 two and a tab between them; <s>, </s> and --separator-token are added. DATA then gives only "
        "the dictionaries; without DATA, they are the dict.*.txt beside the checkpoint",
    )


class Precision(LoadsCheckpoint):
    """--inference-dtype, of commands that translate or classify, or write a checkpoint that does."""

    inference_dtype: str | None = option(
        metavar="DTYPE",
        help="data type of linear layers in inference on a CPU: float32; bfloat16 (for CPUs with AMX or "
        "AVX512_BF16: faster); int8 (weights and activations quantised to 8 bits: faster, less accurate). Default: "
        "that of the checkpoint. A checkpoint that is written stores this option; its weights stay in float32",
    )

    def stored_options(self) -> dict[str, str]:
        """Return the options that a checkpoint stores, if they are given."""
        return {} if self.inference_dtype is None else {"inference_dtype": self.inference_dtype}

    def precision(self) -> str | None:
        """Return the data type of linear layers in inference, None for that of the checkpoint."""
        return self.inference_dtype


def metric(default: str, tests: str = "") -> str | None:
    """Declare --metric; see `data.metrics`. `tests` says which significance tests the command makes."""
    return option(
        choices=("nll", "ppl", "bleu", "accuracy"),
        help="nll: loss in bits per target or masked token (classifiers: per sentence). ppl: loss and perplexity, 2 to "
        "the power of the loss. bleu: loss and sacreBLEU, of detokenised text with --remove-bpe --tokenizer moses. "
        f"accuracy: loss and the percentage of sentences that are classified correctly.{tests} (default: {default})",
    )


REPAIR = methodcaller("add_argument_group", "repair, without training")


class Refit(Options):
    """--refit-sentences and --refit-subset, of commands with --refit."""

    refit_sentences: int = option(
        metavar="N",
        type=counted,
        default=2000,
        within=REPAIR,
        help="with --refit: use only the first N sentences of --refit-subset (default: %(default)s)",
    )
    refit_subset: str = option(
        metavar="S",
        type=filled,
        default="train",
        within=REPAIR,
        help="with --refit: the subset to refit on (default: %(default)s)",
    )


class Scores(Options):
    """The options of importance scores; see `scores.options.ScoreOptions`."""

    gradient_unit: str = option(
        choices=GRADIENT_UNITS,
        default="sentence",
        help="with method gradient: take absolute values per sentence (Michel et al. 2019, the paper) or per token "
        "(their code) (default: %(default)s)",
    )
    normalize: str = option(
        choices=NORMS,
        default="layer",
        help="with method gradient: divide the scores of each layer by their l2 norm, or not (default: %(default)s)",
    )
    rule: str = option(
        choices=HEAD_RULES,
        default="story-of-heads",
        help="with method relevance: how relevance is propagated. "
        f"{'; '.join(f'{name}: {text}' for name, text in HEAD_RULES.items())} (default: %(default)s)",
    )


CHOICE = methodcaller("add_mutually_exclusive_group")
WITH_SCORES = methodcaller("add_argument_group", "with --scores")


class Choice(Options):
    """The heads to keep; see `choice.chosen_heads`."""

    threshold: float | None = option(
        metavar="T",
        type=float,
        within=CHOICE,
        help="also remove heads whose P(open), the probability that the gate of training is not 0, is below T, from 0 "
        "to 1 (default: remove only heads whose evaluation gate is 0)",
    )
    alive: str | None = option(
        metavar="MASK",
        type=filled,
        reads="the mask",
        within=CHOICE,
        help="keep only the heads of this mask: a file, the same JSON inline, or a checkpoint of this plugin",
    )
    scores: str | None = option(
        metavar="FILE",
        type=filled,
        reads="the score file",
        within=CHOICE,
        help="keep the heads with the highest scores of FILE; see --keep",
    )
    keep: float | None = option(
        metavar="N",
        type=number_or_fraction,
        within=WITH_SCORES,
        help="how many of the open heads of --types to keep (required with --scores): a number (12) or a fraction "
        "(0.5). 1 is one head, 1.0 is all; fractions are rounded half up",
    )
    method: str | None = option(
        metavar="M",
        type=filled,
        within=WITH_SCORES,
        help="method whose scores to use; required if FILE has scores of several methods",
    )
    types: str | None = types("prune only these attention types (default: all that have scores)", WITH_SCORES)
    min_per_layer: int | None = option(
        metavar="K",
        type=int,
        within=WITH_SCORES,
        help="keep at least the K highest-scored heads of each attention layer (default: 0)",
    )
