"""Run a command on blocks of the lines of a text, on all cores, and print its output in the order of the text.

    python3 recipes/lib text.in_blocks FILE COMMAND [--lines 20000] [--processes N]

FILE may be compressed with gzip. COMMAND is a shell command that reads lines and prints one line for each, for example
'sacremoses -q -l en tokenize'. A process of it for each block runs on each core; only the blocks in work are in memory,
whatever the size of the text.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from commands import ArgumentParser, Refused, whole
from corpora.archives import BROKEN_ARCHIVE


def blocks(file: Path, size: int) -> Iterator[list[bytes]]:
    r"""Yield the lines of a text, `size` at a time, without a byte order mark. All end in \n, the last one too."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as text:
            mark = BOM_UTF8
            while block := list(islice(text, size)):
                block[0] = block[0].removeprefix(mark)
                mark = b""
                yield [line.removesuffix(b"\n").removesuffix(b"\r") + b"\n" for line in block]
    except BROKEN_ARCHIVE as error:
        raise Refused(f"{file} cannot be read ({error})") from None


def output_of(command: str, block: list[bytes], first: int) -> bytes:
    """Return what the command prints for a block of lines, whose first one has this number in the text."""
    shell = ["bash", "-c", f"set -euo pipefail; {command}"]
    done = subprocess.run(shell, input=b"".join(block), capture_output=True, check=False)
    where = f"'{command}' in lines {first:,} to {first + len(block) - 1:,}"
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Refused(f"{where} failed: {said[-1] if said else f'exit code {done.returncode}'}")
    printed = done.stdout.count(b"\n")
    if printed != len(block):
        raise Refused(
            f"{where} printed {printed:,} lines: a line contains the end of a line, for example a carriage return, "
            "or the command joins lines"
        )
    return done.stdout


def run(file: Path, command: str, size: int, processes: int) -> None:
    """Write the output for all blocks to stdout."""
    waiting: deque[tuple[int, Future[bytes]]] = deque()
    bar = tqdm(desc=file.name, unit=" lines", unit_scale=True, disable=None, delay=2, leave=False)
    with bar, ThreadPoolExecutor(processes) as pool:
        try:
            first = 1
            for block in blocks(file, size):
                waiting.append((len(block), pool.submit(output_of, command, block, first)))
                first += len(block)
                if len(waiting) > processes:
                    write(*waiting.popleft(), bar)
            while waiting:
                write(*waiting.popleft(), bar)
        finally:
            for _, future in waiting:
                future.cancel()
    sys.stdout.flush()


def write(number: int, future: Future[bytes], bar: tqdm) -> None:
    sys.stdout.buffer.write(future.result())
    bar.update(number)


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("command", metavar="COMMAND")
    parser.add_argument("--lines", type=whole(), default=20_000, help="lines of a block")
    parser.add_argument(
        "--processes",
        type=whole(),
        default=len(os.sched_getaffinity(0)),
        help="blocks in work at the same time (default: one for each core)",
    )
    args = parser.parse_args(argv)
    run(args.file, args.command, args.lines, args.processes)
