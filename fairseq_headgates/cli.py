"""The `headgates` command: parse, call, print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_headgates import __version__, report
from fairseq_headgates.heads import HeadTable, mask_to_json, write_whole
from fairseq_headgates.models import read_heads


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; 0 on success, 2 with one line on bad input."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except ValueError as error:
        print(f"headgates {args.command}: error: {error}", file=sys.stderr)
        return 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headgates", description="Attention heads of fairseq models: see, choose, take out."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    path = commands.add_parser("path", help="print the folder for --user-dir")
    path.set_defaults(run=run_path)

    show = commands.add_parser("show", help="the gates of a checkpoint, and the heads that stay open")
    show.add_argument("checkpoint", metavar="CKPT", help="a fairseq checkpoint (.pt)")
    show.add_argument("--json", action="store_true", help="print JSON instead of a table")
    show.add_argument("--out", metavar="FILE", help="write the open heads as a mask file for --alive-heads")
    show.add_argument("--force", action="store_true", help="overwrite FILE if it exists")
    show.set_defaults(run=run_show)
    return parser


def run_path(args: argparse.Namespace) -> int:
    print(Path(__file__).resolve().parent)
    return 0


def run_show(args: argparse.Namespace) -> int:
    heads = read_heads(args.checkpoint)
    counts = report.totals(heads.gate)
    alive = heads.gate.map(lambda g: int(g > 0), "alive")
    if args.out:
        write_whole(args.out, mask_to_json(alive), args.force)
    if args.json:
        print(json.dumps(show_json(heads.open_probability, heads.gate, heads.gated, counts)))
        return 0
    print(report.head_table(heads.open_probability, heads.gate))
    ungated = [kind for kind in heads.gate.types if kind not in heads.gated]
    print(
        f"\nin total {counts['total'][0]} of {counts['total'][1]} heads open"
        + (f"; no gates on {', '.join(ungated)}" if ungated else "")
    )
    return 0


def show_json(opened: HeadTable, gate: HeadTable, gated: Sequence[str], counts: dict[str, tuple[int, int]]) -> dict:
    """What `headgates show --json` prints: counts are [open, all]."""
    return {
        "signature": gate.signature,
        "gated": list(gated),
        "open_probability": dict(opened.values),
        "gate": dict(gate.values),
        "heads": {kind: list(count) for kind, count in counts.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
