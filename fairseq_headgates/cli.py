"""The `headgates` command: parse, call, print."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from fairseq_headgates import __version__, analysis, report
from fairseq_headgates.arguments import ArgumentParser, filled, one_line
from fairseq_headgates.checkpoints import (
    CheckpointHeads,
    build_model,
    load_dictionaries,
    load_model,
    prune_checkpoint,
    read_heads,
    save_checkpoint,
    stock_checkpoint,
)
from fairseq_headgates.convert import check_output, to_ctranslate2
from fairseq_headgates.files import refuse_existing, write_whole
from fairseq_headgates.heads import (
    HeadTable,
    mask_to_json,
    parse_scores,
    parse_types,
)
from fairseq_headgates.pruning import best_heads, kept_heads, open_heads, prune, removal_plan
from fairseq_headgates.stored_heads import read_mask

EXIT_CODES = (
    "exit codes: 0 success; 2 bad input or a file that cannot be written, with one line on stderr; 128 + N stopped by "
    "the signal N, 130 by Ctrl-C"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code, see `EXIT_CODES`."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    takes_fairseq = getattr(args, "takes_fairseq", False)
    if rest and not takes_fairseq:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    logger = logging.getLogger("fairseq_headgates")
    level = logger.level
    logger.setLevel(logging.WARNING)  # not what a model says when training begins
    try:
        # Workers of one evaluation wait for each other in compiled code, where Python handles no signal.
        with stopped_by_signals(() if takes_fairseq else (signal.SIGTERM, signal.SIGHUP)):
            code = args.run(args)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        sys.stdout = None
        return 0
    except (ValueError, OSError) as error:  # OSError: the disk of the output is full, for instance
        print(f"headgates {args.command}: error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"headgates {args.command}: stopped", file=sys.stderr)
        return 128 + (stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT)  # as shells say it
    finally:
        logger.setLevel(level)  # the level is the caller's where this runs inside another program


class Stopped(KeyboardInterrupt):
    """A signal that would have ended the process at once; its number is the argument."""


@contextmanager
def stopped_by_signals(numbers: Sequence[int]) -> Iterator[None]:
    """Within the context, signals raise `Stopped`, so that what is not finished is removed."""

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


def build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="headgates",
        description="Inspect, score and remove the attention heads of fairseq models.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    path = commands.add_parser("path", help="print the folder for --user-dir")
    path.set_defaults(run=run_path)

    show = commands.add_parser("show", help="the gates of a checkpoint, and the heads that stay open")
    _add_checkpoint(show)
    show.add_argument("--json", action="store_true", help="print JSON instead of a table")
    show.add_argument(
        "--out",
        metavar="FILE",
        type=filled,
        help="write the open heads as a mask file for --alive-heads; - prints it instead of the table",
    )
    show.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    show.set_defaults(run=run_show)

    prune = commands.add_parser(
        "prune",
        help="remove heads from the weights of a checkpoint",
        description="Writes the checkpoint without the removed heads: those whose evaluation gate is 0, unless one of "
        "--threshold, --alive and --scores says which. A head whose gate is 0 goes in any case, for it adds nothing.",
    )
    _add_checkpoint(prune)
    prune.add_argument("output", metavar="OUT", type=filled, help="the checkpoint to write")
    _add_choice(prune)
    prune.add_argument(
        "--stock",
        action="store_true",
        help="write a checkpoint of fairseq's own transformer: of the old size, with zeros for the removed heads",
    )
    prune.add_argument("--no-optimizer", action="store_true", help="leave out the state of the optimiser")
    prune.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    prune.add_argument("--json", action="store_true", help="print the plan as JSON")
    prune.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    prune.set_defaults(run=run_prune)

    convert = commands.add_parser(
        "convert",
        help="write the pruned model for another engine",
        description="Takes heads out as `headgates prune` does, and writes the model for CTranslate2.",
    )
    _add_checkpoint(convert)
    convert.add_argument("output", metavar="OUT", type=filled, help="the folder to write")
    convert.add_argument("--to", choices=["ctranslate2"], required=True, help="the engine")
    convert.add_argument(
        "--data", metavar="DIR", type=filled, help="folder of dict.*.txt (default: the folder of CKPT)"
    )
    convert.add_argument("--quantization", metavar="TYPE", help="for instance int8 (default: single precision)")
    _add_choice(convert)
    convert.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    convert.set_defaults(run=run_convert)
    analysis.add_commands(commands)
    return parser


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", type=filled, help="a fairseq checkpoint (.pt)")
    parser.add_argument("--trust", action="store_true", help="load any Python object from CKPT, which may run code")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--threshold", metavar="P", type=float, help="remove heads with P(open) below P")
    choice.add_argument(
        "--alive",
        metavar="MASK",
        type=filled,
        help="keep the heads of this mask: a file, the same JSON inline, or a checkpoint of this plugin",
    )
    choice.add_argument(
        "--scores", metavar="FILE", type=filled, help="keep the heads with the highest scores of FILE; see --keep"
    )
    with_scores = parser.add_argument_group("with --scores")
    with_scores.add_argument("--keep", metavar="N", type=_number_or_share, help="how many heads: 12, or a share: 0.5")
    with_scores.add_argument(
        "--method", metavar="M", type=filled, help="which scores, if FILE has those of several methods"
    )
    with_scores.add_argument("--types", metavar="TYPES", help="prune these attention types only (default: all scored)")
    with_scores.add_argument(
        "--min-per-layer", metavar="K", type=int, help="keep at least the best K heads of each layer"
    )


def _number_or_share(text: str) -> float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of heads (12) nor a share (0.5)") from None


def run_path(args: argparse.Namespace) -> int:
    print(Path(__file__).resolve().parent)
    return 0


def run_show(args: argparse.Namespace) -> int:
    if args.json and args.out == "-":
        raise ValueError("--json and --out - both go to standard output: choose one, or give --out a file")
    state, model = load_model(args.checkpoint, args.trust)
    heads = read_heads(state, args.checkpoint, model)
    alive = heads.gate.map(lambda g: int(g > 0), "alive")
    if args.out == "-":
        print(mask_to_json(alive), end="")
        return 0
    if args.out is not None:
        write_whole(args.out, mask_to_json(alive), args.force)
    if args.json:
        print(json.dumps(show_json(heads)))
        return 0
    print(report.head_table(heads.open_probability, heads.gate))
    total = report.totals(heads.gate)["total"]
    ungated = [kind for kind in heads.gate.types if kind not in heads.gated]
    print(
        f"\nin total {total[0]} of {total[1]} heads open" + (f"; no gates on {', '.join(ungated)}" if ungated else "")
    )
    return 0


def run_prune(args: argparse.Namespace) -> int:
    refuse_standard_output(args.output)
    if not args.dry_run:
        refuse_existing(args.output, args.force)
    state, model = load_model(args.checkpoint, args.trust)
    mask = chosen_heads(args, model)
    pruned = prune(model, mask)
    if args.stock:
        smaller = stock_checkpoint(state, mask, model)
    else:
        smaller = prune_checkpoint(state, mask, not args.no_optimizer, model, print_notice)
    build_model(smaller)  # what is written loads
    if not args.dry_run:
        save_checkpoint(smaller, args.output, args.force)
    plan = removal_plan(model, pruned)
    if args.json:
        print(json.dumps(plan))
        return 0
    print(report.removal_table(kept_heads(model), kept_heads(pruned)))
    print("\n".join(removal_notes(plan)))
    print("nothing written (--dry-run)" if args.dry_run else f"written: {args.output}")
    return 0


def refuse_standard_output(output: str) -> None:
    """Raises ValueError for `-`: what is printed would be in the middle of what is written."""
    if output == "-":
        raise ValueError("OUT is '-', but a model is not written to standard output: give a name (./- for this one)")


def print_notice(message: str) -> None:
    print(f"headgates prune: {one_line(message)}", file=sys.stderr)


def removal_notes(plan: dict) -> list[str]:
    """The plan in words."""
    before, after = plan["parameters"]
    lines = [f"\nparameters: {before:,} -> {after:,} ({after / before - 1:+.1%})"]
    for kind, where in (("dec-self", "target token and hypothesis"), ("dec-enc", "source token and sentence")):
        if kind in plan["heads"]:
            sizes = " -> ".join(f"{size:,}" for size in plan["cache_bytes_per_token"][kind])
            lines.append(f"key/value cache of {kind}: {sizes} bytes for each {where}")
    lines += [
        f"{kind} loses all its heads: its layers become their output bias"
        for kind, (_, left) in plan["heads"].items()
        if not left
    ]
    if plan["removed_with_open_gate"]:
        lines.append(f"open heads among those that go: {plan['removed_with_open_gate']}; the output changes")
    if plan["folded_gates"]:
        lines.append(f"gates between 0 and 1, folded into the output projection: {plan['folded_gates']}")
    return lines


def run_convert(args: argparse.Namespace) -> int:
    refuse_standard_output(args.output)
    check_output(Path(args.output), args.force)
    state, model = load_model(args.checkpoint, args.trust)
    pruned = prune(model, chosen_heads(args, model))
    source, target = load_dictionaries(state, args.data or Path(args.checkpoint).parent)
    to_ctranslate2(pruned, source, target, args.output, args.quantization, args.force)
    print(f"written: {args.output}")
    return 0


def chosen_heads(args: argparse.Namespace, model: nn.Module) -> HeadTable:
    """The mask of the heads to keep, as the options say it. Raises ValueError."""
    only_with_scores = {
        "--keep": args.keep,
        "--method": args.method,
        "--types": args.types,
        "--min-per-layer": args.min_per_layer,
    }
    given = [name for name, value in only_with_scores.items() if value is not None]
    if given and args.scores is None:
        raise ValueError(f"{', '.join(given)} without --scores: give a score file")
    if args.alive is not None:
        return read_mask(args.alive)
    if args.scores is None:
        return open_heads(model, args.threshold)
    if args.keep is None:
        raise ValueError("--scores without --keep: say how many heads stay, --keep 12 or --keep 0.5")
    types = parse_types(args.types)
    if args.types is not None and not types:
        raise ValueError(f"--types {args.types!r} names no attention type: leave it out to prune all that are scored")
    scores = parse_scores(args.scores, args.method)
    return best_heads(scores, args.keep, open_heads(model), types, args.min_per_layer or 0)


def show_json(heads: CheckpointHeads) -> dict:
    """What `headgates show --json` prints: counts are [open, all]."""
    return {
        "signature": heads.gate.signature,
        "parameters": heads.parameters,
        "gated": list(heads.gated),
        "open_probability": dict(heads.open_probability.values),
        "gate": dict(heads.gate.values),
        "heads": {kind: list(count) for kind, count in report.totals(heads.gate).items()},
    }


if __name__ == "__main__":
    sys.exit(main())
