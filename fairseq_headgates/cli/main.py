"""The `headgates` command: find the subcommand, run it, report errors in one line."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fairseq_headgates import __version__, register
from fairseq_headgates.cli.examples import EXAMPLES
from fairseq_headgates.cli.output import prepare_streams
from fairseq_headgates.cli.parser import ArgumentParser, missing_input
from fairseq_headgates.compat import unsupported
from fairseq_headgates.messages import one_line

# Subcommands by name, with their help. The module cli/NAME.py is imported only if it is chosen. It imports fairseq and
# torch, which takes seconds, and `report` only in the functions that work with them: help and wrong options take a
# tenth of a second. What models, criterions and tasks register with fairseq is there whenever `run` is called.
COMMANDS = {
    "path": "print the folder for --user-dir",
    "options": "print the options that this plugin adds to fairseq-train",
    "show": "show the gates of a checkpoint",
    "prune": "remove heads from the weights of a checkpoint",
    "compress": "remove heads and feed-forward neurons so that a model has a given size or speed",
    "convert": "prune a checkpoint and write it as a CTranslate2 model",
    "evaluate": "measure loss, BLEU or accuracy, and speed of checkpoints, and test their differences",
    "score": "compute importance scores of all heads",
    "ablate": "measure the loss, BLEU or accuracy with single heads masked",
    "curve": "measure loss, BLEU or accuracy while the least important heads are removed step by step",
    "correlate": "compute the correlation of score files",
    "compare": "compare the heads that masks or checkpoints keep",
    "explain": "show how much each token contributes to a prediction",
    "attention": "draw the attention weights of heads for single sentences",
    "functions": "find positional, syntactic, rare-token and alignment heads",
    "report": "write a web page about an experiment",
}
# Those that work without models, and start without torch and fairseq.
WITHOUT_MODELS = ("path", "correlate")
EXIT_CODES = (
    "exit codes: 0 success; 2 bad input or a file that cannot be written, with one line on stderr; 128 + N stopped by "
    "the signal N, 130 by Ctrl-C"
)


def main(argv: Sequence[str] | None = None, started: Callable[[], None] = lambda: None) -> int:
    """Run one subcommand and return its exit code; see `EXIT_CODES`.

    Args:
        argv: the arguments (default: those of the process)
        started: called when fairseq and torch are imported, before the work
    """
    prepare_streams()
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((argument for argument in argv if not argument.startswith("-")), None)
    parser = build_parser([chosen] if chosen in COMMANDS else [])
    args, rest = parser.parse_known_args(argv)
    args.rest = rest
    if rest and not args.takes_fairseq:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    needs_models = args.command not in WITHOUT_MODELS
    if problem := missing_input(args) or (needs_models and unsupported()):
        print(f"headgates {args.command}: error: {one_line(problem)}", file=sys.stderr)
        return 2
    if needs_models:
        register()
    started()
    logger = logging.getLogger("fairseq_headgates")
    level = logger.level
    logger.setLevel(logging.WARNING)  # models log when they are built
    try:
        # Workers of one evaluation wait for each other in compiled code, where Python handles no signal.
        with stopped_by_signals(() if args.takes_fairseq else (signal.SIGTERM, signal.SIGHUP)):
            code = args.run(args)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader, e.g. `head`, has closed the pipe
        sys.stdout = None
        return 0
    except (ValueError, OSError) as error:  # OSError: e.g. the disk is full
        print(f"headgates {args.command}: error: {one_line(str(error))}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = None  # Python would write its buffer again at exit, and fail with another exit code
        return 2
    except KeyboardInterrupt as stop:
        print(f"headgates {args.command}: stopped", file=sys.stderr)
        return 128 + (stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT)  # as shells do
    finally:
        logger.setLevel(level)  # the caller's level, if this runs inside another program


def build_parser(commands: Sequence[str] = tuple(COMMANDS)) -> ArgumentParser:
    """Return the parser, with the options of the named subcommands."""
    parser = ArgumentParser(
        prog="headgates",
        description="Inspect, score and remove the attention heads of fairseq models.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(takes_fairseq=False)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name in commands:
            module = _module_of(name)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
            subparser.examples = EXAMPLES[name]
    return parser


def _module_of(command: str) -> ModuleType:
    return importlib.import_module(f"fairseq_headgates.cli.{command}")


class Stopped(KeyboardInterrupt):
    """A signal that would have ended the process; its number is the argument."""


@contextmanager
def stopped_by_signals(numbers: Sequence[int]) -> Iterator[None]:
    """Within the context, signals raise `Stopped`, so that temporary files are removed."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():  # others cannot handle signals
        numbers = ()
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
