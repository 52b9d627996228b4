#!/usr/bin/env python3
"""Measure the memory of generation, as the peak resident size of a separate process for every model.

    python benchmarks/memory.py FOLDER --size base --vocabulary 8000 --remove 0.5 0.75 --batch 32 --json memory.json

It needs Linux. It makes checkpoints in FOLDER with the commands of a user, and uses those that FOLDER already has:

    training   fairseq's `transformer` after one update on random text, with its optimiser state
    stock      the same without optimiser state
    full       the same for this plugin, without gates
    pruned     the same without the share --remove of the heads of every layer, chosen at random
    int8       `full` and every `pruned` with --inference-dtype int8

Then it measures on a CPU, with --threads threads:

    import     a process that imports fairseq, and this plugin except for stock: what every process needs
    load       a process that loads the checkpoint with fairseq's function, as its commands do
    generate   fairseq-generate: --batch sentences of --length tokens, beam --beam, exactly --length tokens out

A process reads its own peak (VmHWM) when it exits, because what the system reports for a child can be the peak of the
process that started it. Figures are MiB. `load / file` is what `load` adds to `import`, divided by the size of the
file. `/ stock` is `generate` divided by that of stock; `without import` the same after subtracting `import`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import torch
from bench_models import SIZES, machine, random_mask
from tqdm import tqdm

from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import mask_to_json
from fairseq_headgates.messages import fail
from fairseq_headgates.report.tables import text_table

PLUGIN = Path(__file__).resolve().parent.parent / "fairseq_headgates"
# What fairseq's commands import; and without this plugin, torch loads no file that holds a Namespace.
STOCK = "import argparse, torch; torch.serialization.add_safe_globals([argparse.Namespace]); "
OURS = "import fairseq_headgates; "
PEAK = "import atexit, os, shutil; atexit.register(shutil.copyfile, '/proc/self/status', os.environ['PEAK_FILE']); "
INT8 = ["--inference-dtype", "int8"]
STAGES = {
    "import": "import fairseq_cli.generate",
    "load": "import fairseq_cli.generate, sys; "
    "fairseq_cli.generate.checkpoint_utils.load_model_ensemble_and_task([sys.argv[1]], {'data': sys.argv[2]})",
    "generate": "import fairseq_cli.generate; fairseq_cli.generate.cli_main()",
}


def main() -> None:
    options = parse()
    claim(options)
    models = checkpoints(options)
    rows = {}
    with tqdm(total=len(models) * len(STAGES), leave=False) as bar:
        for name, checkpoint in models.items():
            rows[name] = {"file": checkpoint.stat().st_size / 2**20}
            for stage in STAGES:
                bar.set_description(f"{name} {stage}")
                rows[name][stage] = peak(command(options, name, stage, checkpoint), options)
                bar.update()
    signature = {"machine": machine("cpu"), "torch": torch.__version__, "threads": options.threads}
    print(f"{signature['machine']}, torch {torch.__version__}, {options.size}, vocabulary {options.vocabulary:,}")
    print(table(rows))
    if options.json:
        shown = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        write_whole(
            options.json, json.dumps({**signature, "options": shown, "models": rows}, indent=1) + "\n", force=True
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", type=Path, help="where data and checkpoints are kept")
    add("--size", choices=SIZES, default="base", help="(default: %(default)s)")
    add("--vocabulary", type=int, default=8000, help="joint vocabulary (default: %(default)s)")
    add("--remove", type=float, nargs="+", default=[0.5, 0.75], help="shares of heads to remove (default: 0.5 0.75)")
    add("--batch", type=int, default=32, help="sentences in a batch (default: %(default)s)")
    add("--beam", type=int, default=4, help="hypotheses for a sentence (default: %(default)s)")
    add("--length", type=int, default=25, help="tokens of a sentence, source and target (default: %(default)s)")
    add("--threads", type=int, default=2, help="threads of a process (default: %(default)s)")
    add("--json", metavar="FILE", help="also write all figures to FILE")
    return parser.parse_args()


def claim(options: argparse.Namespace) -> None:
    """Make the folder for these sizes. Exit with one line and code 2 if it holds checkpoints of others."""
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: getattr(options, name) for name in ("size", "vocabulary", "batch", "length")}
    noted = options.folder / "sizes.json"
    held = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else sizes
    for name, value in held.items():
        if value != sizes[name]:
            fail("memory.py", f"{options.folder} holds checkpoints of --{name} {value}: name another folder")
    noted.write_text(json.dumps(sizes), encoding="utf-8")


def checkpoints(options: argparse.Namespace) -> dict[str, Path]:
    """Make what the folder lacks. Return the checkpoint of every model."""
    trained = options.folder / "trained" / "checkpoint_last.pt"
    if not trained.exists():
        make_data(options)
        train(options, trained.parent)
    found = {"training": trained}
    shares = [0.0, *options.remove]
    wanted = {("stock", 0.0): ["--stock"]}
    wanted |= {(f"pruned {100 * share:g}%" if share else "full", share): [] for share in shares}
    wanted |= {(f"int8 pruned {100 * share:g}%" if share else "int8", share): INT8 for share in shares}
    for (name, share), choice in wanted.items():
        found[name] = options.folder / f"{name.replace(' ', '-').rstrip('%')}.pt"
        if not found[name].exists():
            mask = mask_to_json(random_mask(options.size, share), one_line=True)
            prune = ["prune", trained, found[name], "--alive", mask, "--no-optimizer", *choice]
            run([sys.executable, "-m", "fairseq_headgates", *prune], options)
    return found


def make_data(options: argparse.Namespace) -> None:
    """Write a text of random words, every word at least once, and its binary form."""
    chance, words = random.Random(1), [f"word{number}" for number in range(options.vocabulary)]
    text = (words + chance.choices(words, k=20 * len(words)))[: 20 * len(words)]
    chance.shuffle(text)
    length = options.length - 1  # and </s>
    lines = [" ".join(text[start : start + length]) for start in range(0, len(text) - length, length)]
    for language in ("src", "trg"):
        (options.folder / f"train.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (options.folder / f"test.{language}").write_text("\n".join(lines[: options.batch]) + "\n", encoding="utf-8")
    splits = ["--trainpref", options.folder / "train", "--validpref", options.folder / "test"]
    splits += ["--testpref", options.folder / "test"]
    languages = ["--source-lang", "src", "--target-lang", "trg", "--joined-dictionary"]
    run([*fairseq("preprocess"), *languages, *splits, "--destdir", options.folder / "data-bin"], options)


def fairseq(command: str) -> list[str]:
    return [sys.executable, "-m", f"fairseq_cli.{command}"]


def train(options: argparse.Namespace, folder: Path) -> None:
    """Train fairseq's transformer for one update."""
    width, ffn, layers, heads = SIZES[options.size]
    sizes = {"embed-dim": width, "ffn-embed-dim": ffn, "layers": layers, "attention-heads": heads}
    model = [f"--{side}-{name}={value}" for side in ("encoder", "decoder") for name, value in sizes.items()]
    model += ["--encoder-normalize-before", "--decoder-normalize-before", "--share-all-embeddings"]
    rest = ["--optimizer", "adam", "--lr", "0.0001", "--max-tokens", "500", "--max-update", "1", "--save-dir", folder]
    rest += ["--no-epoch-checkpoints", "--disable-validation", "--cpu", "--distributed-world-size", "1"]
    run([*fairseq("train"), options.folder / "data-bin", "--arch", "transformer", *model, *rest], options)


def command(options: argparse.Namespace, name: str, stage: str, checkpoint: Path) -> list:
    """Return a command whose memory is measured."""
    data, ours = options.folder / "data-bin", name not in ("training", "stock")
    arguments = [checkpoint, data]
    if stage == "generate":
        lengths = ["--min-len", options.length - 1, "--max-len-b", options.length - 1]
        search = ["--beam", options.beam, "--batch-size", options.batch, *lengths, "--distributed-world-size", 1]
        search += ["--required-batch-size-multiple", 1]  # fairseq-fixed drops the last incomplete batch
        arguments = [data, "--path", checkpoint, "--cpu", *search, *(["--user-dir", PLUGIN] if ours else [])]
    return [sys.executable, "-c", PEAK + (OURS if ours else STOCK) + STAGES[stage], *arguments]


def peak(arguments: list, options: argparse.Namespace) -> float:
    """Run a command that starts with `PEAK`. Return the peak of its resident memory in MiB."""
    run(arguments, options)
    line = next(line for line in (options.folder / "status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024  # of KiB


def run(arguments: list, options: argparse.Namespace) -> None:
    """Run a command. Exit with the name of its log if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(PLUGIN.parent)}
    environment["PEAK_FILE"] = str(options.folder / "status")
    log = options.folder / "log"
    with log.open("wb") as output:
        arguments = list(map(str, arguments))
        finished = subprocess.run(arguments, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False)
    if finished.returncode:
        sys.exit(f"memory.py: {' '.join(arguments)} failed: see {log}")


def table(rows: dict[str, dict[str, float]]) -> str:
    """Return all figures, with those of loading and generation relative to the file and to stock."""
    stock, lines = rows["stock"], []
    for name, row in rows.items():
        added = {stage: row[stage] - row["import"] for stage in STAGES}
        relative = added["load"] / row["file"], row["generate"] / stock["generate"]
        cells = [row["file"], *(row[stage] for stage in STAGES)]
        beyond = added["generate"] / (stock["generate"] - stock["import"])
        lines.append([name, *(f"{cell:,.0f}" for cell in cells), *(f"{ratio:.2f}" for ratio in (*relative, beyond))])
    return text_table(["model", "file", *STAGES, "load / file", "/ stock", "without import"], lines)


if __name__ == "__main__":
    main()
