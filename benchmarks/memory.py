#!/usr/bin/env python3
"""Measure the memory of generation, as the peak resident size of a process of fairseq-generate for every model.

    python benchmarks/memory.py FOLDER --size base --remove 0.5 0.75 --batch 32

It needs Linux and runs on a CPU. It makes checkpoints in a folder below FOLDER, with the commands of a user, and uses
those that are already there:

    stock   fairseq's `transformer`, after one update on random text
    full    the same for this plugin
    pruned  the same without the share --remove of the heads of every layer, chosen at random
    bfloat16, int8   `full` and every `pruned` with --inference-dtype bfloat16, or int8

--batch sentences of --length tokens are translated, exactly --length tokens out. A process reads its own peak (VmHWM)
when it exits, because what the system reports for a child can be the peak of the process that started it.
"""

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

from harness import SIZES, begin, finish, make_parser, random_mask
from tqdm import tqdm

from fairseq_headgates.heads import mask_to_json

PLUGIN = Path(__file__).resolve().parent.parent / "fairseq_headgates"
# Without this plugin, torch loads no file that holds a Namespace.
STOCK = "import argparse, torch; torch.serialization.add_safe_globals([argparse.Namespace]); "
PEAK = "import atexit, os, shutil; atexit.register(shutil.copyfile, '/proc/self/status', os.environ['PEAK_FILE']); "
GENERATE = "import fairseq_cli.generate; fairseq_cli.generate.cli_main()"


def main() -> None:
    options = parse()
    begin(options)
    options.folder /= f"{options.size}-{options.vocabulary}-{options.batch}-{options.length}"
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name, checkpoint in tqdm(checkpoints(options).items(), leave=False):
        row = {"file MiB": checkpoint.stat().st_size / 2**20, "peak MiB": peak(options, name, checkpoint)}
        rows[name] = {**row, "/ stock": row["peak MiB"] / rows.get("stock", row)["peak MiB"]}
    finish(options, {"model": rows})


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, size="base", length=25, threads=2)
    add = parser.add_argument
    add("folder", type=Path, help="where data and checkpoints are kept")
    add("--remove", type=float, nargs="+", default=[0.5, 0.75], help="shares of heads to remove")
    add("--batch", type=int, default=32, help="sentences in a batch")
    add("--beam", type=int, default=4, help="hypotheses for a sentence")
    return parser.parse_args()


def checkpoints(options: argparse.Namespace) -> dict[str, Path]:
    """Make what the folder lacks. Return the checkpoint of every model."""
    trained = options.folder / "trained" / "checkpoint_last.pt"
    if not trained.exists():
        make_data(options)
        train(options, trained.parent)
    wanted = {"stock": (0.0, ["--stock"])}
    for share in (0.0, *options.remove):
        name = f"pruned {100 * share:g}%" if share else ""
        wanted[name or "full"] = share, []
        for dtype in ("bfloat16", "int8"):
            wanted[f"{dtype} {name}".rstrip()] = share, ["--inference-dtype", dtype]
    found = {}
    for name, (share, choice) in wanted.items():
        found[name] = options.folder / f"{name.replace(' ', '-').rstrip('%')}.pt"
        if not found[name].exists():
            mask = mask_to_json(random_mask(options.size, share), one_line=True)
            command = ["prune", "--path", trained, "--alive", mask, "--no-optimizer", "--out", found[name]]
            run(options, "-m", "fairseq_headgates", *command, *choice)
    return found


def make_data(options: argparse.Namespace) -> None:
    """Write a text of random words, every word at least once, and its binary form."""
    chance, text = random.Random(1), [f"word{number}" for number in range(options.vocabulary)] * 20
    chance.shuffle(text)
    length = options.length - 1  # and </s>
    lines = [" ".join(text[start : start + length]) for start in range(0, len(text) - length, length)]
    for language in ("src", "trg"):
        (options.folder / f"train.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (options.folder / f"test.{language}").write_text("\n".join(lines[: options.batch]) + "\n", encoding="utf-8")
    splits = [f"--{split}pref={options.folder / split}" for split in ("train", "test")]
    languages = ["--source-lang=src", "--target-lang=trg", "--joined-dictionary"]
    run(options, "-m", "fairseq_cli.preprocess", *languages, *splits, "--destdir", options.folder / "data-bin")


def train(options: argparse.Namespace, folder: Path) -> None:
    """Train fairseq's transformer for one update."""
    sizes = dict(zip(("embed-dim", "ffn-embed-dim", "layers", "attention-heads"), SIZES[options.size], strict=True))
    model = [f"--{side}-{name}={value}" for side in ("encoder", "decoder") for name, value in sizes.items()]
    model += ["--encoder-normalize-before", "--decoder-normalize-before", "--share-all-embeddings"]
    rest = ["--optimizer", "adam", "--lr", "0.0001", "--max-tokens", "500", "--max-update", "1", "--save-dir", folder]
    rest += ["--no-epoch-checkpoints", "--disable-validation", "--cpu", "--distributed-world-size", "1"]
    data = options.folder / "data-bin"
    run(options, "-m", "fairseq_cli.train", data, "--arch", "transformer", *model, *rest)


def peak(options: argparse.Namespace, name: str, checkpoint: Path) -> float:
    """Return the peak of the resident memory of generation in MiB."""
    lengths = ["--min-len", options.length - 1, "--max-len-b", options.length - 1]
    search = ["--path", checkpoint, "--beam", options.beam, "--batch-size", options.batch, *lengths, "--cpu"]
    search += ["--distributed-world-size", 1, "--required-batch-size-multiple", 1]
    plugin = [] if name == "stock" else ["--user-dir", PLUGIN]
    run(options, "-c", PEAK + STOCK + GENERATE, options.folder / "data-bin", *search, *plugin)
    status = (options.folder / "status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024  # of KiB


def run(options: argparse.Namespace, *arguments: object) -> None:
    """Run Python. Exit with the name of its log if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(PLUGIN.parent)}
    environment["PEAK_FILE"] = str(options.folder / "status")
    command, log = [sys.executable, *map(str, arguments)], options.folder / "log"
    with log.open("wb") as output:
        if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False).returncode:
            sys.exit(f"memory.py: {' '.join(command)} failed: see {log}")


if __name__ == "__main__":
    main()
