"""The `headgates` command: find the subcommand, run it, report errors in one line."""

from __future__ import annotations

import argparse
import io
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from inspect import getdoc
from logging.handlers import MemoryHandler
from pkgutil import iter_modules
from typing import Any

from fairseq_headgates import __version__, load_extensions, register
from fairseq_headgates.cli import commands
from fairseq_headgates.cli.command import COMMANDS, Options, add_options
from fairseq_headgates.cli.options import Data
from fairseq_headgates.cli.output import check_outputs, deliver, prepare_streams
from fairseq_headgates.cli.parser import ArgumentParser
from fairseq_headgates.compat import unsupported
from fairseq_headgates.files import writing
from fairseq_headgates.messages import described, one_line

# The commands that the help lists first
FIRST = ("compress", "evaluate", "prune", "score", "curve", "explain", "convert")

EXIT_CODES = (
    "exit codes: 0 success; 2 bad input or a file that cannot be written, with one\n"
    "line on stderr; 128 + N stopped by the signal N, 130 by Ctrl-C"
)


def main(argv: Sequence[str] | None = None, started: Callable[[], None] = lambda: None) -> int:
    """Run one subcommand and return its exit code; see `EXIT_CODES`.

    Args:
        argv: the arguments (default: those of the process)
        started: called once the arguments are valid and the imports are done
    """
    prepare_streams()
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((argument for argument in argv if not argument.startswith("-")), "")
    parser = build_parser([chosen])
    if not argv:
        parser.print_help()
        return 0
    values, rest = parser.parse_known_args(argv)
    options = COMMANDS[values.command](**vars(values), rest=rest)
    if words := options.unrecognized():
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    try:
        options.check_paths()
        if options.needs_models:
            if problem := unsupported():
                raise ValueError(problem)
            register()
        started()
        # Workers of one evaluation wait for each other in compiled code, where Python handles no signal.
        workers = options.fairseq_arguments() is not None
        signals = () if workers else (signal.SIGTERM, signal.SIGHUP)
        with messages_printed(options.command, at_once=workers), stopped_by_signals(signals):
            check_outputs(options)
            options.check()
            next_command = run(options)
            sys.stdout.flush()
        if next_command:
            print(f"next: {one_line(next_command)}", file=sys.stderr)
        return 0
    except BrokenPipeError:  # the reader, e.g. `head`, has closed the pipe
        sys.stdout = None
        return 0
    except Exception as error:
        if options.debug:
            raise
        foreseen = isinstance(error, (ValueError, OSError)) and str(error)
        reason = str(error) if foreseen else f"{described(error)} (--debug shows the traceback)"
        print(f"headgates {options.command}: error: {one_line(reason)}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = None  # Python would write its buffer again at exit, and fail with another exit code
        return 2
    except KeyboardInterrupt as stop:
        print(f"headgates {options.command}: stopped", file=sys.stderr)
        return 128 + (stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT)  # as shells do


def call(command: str, *words: object, **options: Any) -> Any:
    """Run a subcommand, and return the object that it prints with --json. Errors are raised, not reported.

    The value of an option is True for a switch, a list for several values, None for the default.
    """
    argv = [command, *map(str, words), "--json", "--debug"]
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        if value is not None and value is not False:
            argv += [f"--{name.replace('_', '-')}", *(str(each) for each in values if each is not True)]
    with redirect_stdout(io.StringIO()) as printed:
        main(argv)
    return json.loads(printed.getvalue())


def run(options: Options) -> str:
    """Run a command, print and write what it found, and return the command that comes next ("" for none)."""
    if not isinstance(options, Data):
        answer = options.run(None)
        deliver(options, answer)
        return answer.next_command
    from fairseq_headgates.cli.session import open_session

    with open_session(options, options.needs_target()) as session:
        answer = options.run(session)
        if session.writes:
            deliver(options, answer)
        session.discard_journals()
        return answer.next_command if session.writes else ""


def find_commands() -> dict[str, type[Options]]:
    """Return all commands in the order of the help: those of `cli/commands`, and `command.py` of each extension."""
    for each in iter_modules(commands.__path__):
        import_module(f"{commands.__name__}.{each.name}")
    load_extensions("command")
    return {name: COMMANDS[name] for name in dict.fromkeys([*FIRST, *sorted(COMMANDS)]) if name in COMMANDS}


def build_parser(chosen: Sequence[str] | None = None) -> ArgumentParser:
    """Return the parser, with the options of the chosen subcommands (default: all)."""
    parser = ArgumentParser(
        prog="headgates",
        usage="%(prog)s COMMAND [options]",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog=parser.prog, help=argparse.SUPPRESS
    )
    lines = ["Inspect, score and remove the attention heads of fairseq models.", "", "commands:"]
    for name, options in find_commands().items():
        summary, _, description = (getdoc(options) or "").partition("\n\n")
        if name not in FIRST and "also:" not in lines:
            lines += ["", "also:"]
        lines.append(f"  {name:12}{summary[:1].lower()}{summary[1:].rstrip('.')}")
        subparser = subparsers.add_parser(
            name,
            description=description.replace("\n", " ") or summary,
            usage=options.usage,
            epilog=options.epilog,
            allow_abbrev=not options.usage,
        )
        if chosen is None or name in chosen:
            add_options(subparser, options)
            subparser.examples = options.examples
    parser.description = "\n".join(lines)
    return parser


@contextmanager
def messages_printed(command: str, at_once: bool) -> Iterator[None]:
    """Within the context, warnings of this package and the names of the files that it writes are printed on stderr.

    Those of a command of seconds (not `at_once`) are printed at its end, not before the one line of an error.
    """
    logger, files = logging.getLogger("fairseq_headgates"), logging.getLogger(writing.__name__)
    level, of_files, propagate = logger.level, files.level, logger.propagate  # those of the program that calls this
    printed = logging.StreamHandler(sys.stderr)
    prefixes = {logging.WARNING: f"headgates {command}: warning: "}
    printed.format = lambda record: prefixes.get(record.levelno, "") + one_line(record.getMessage())  # type: ignore[method-assign]
    handler = printed if at_once else MemoryHandler(1000, logging.CRITICAL, printed, flushOnClose=False)
    logger.setLevel(logging.WARNING)  # models log when they are built
    files.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
        handler.flush()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        files.setLevel(of_files)
        logger.propagate = propagate


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
