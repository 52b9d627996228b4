#!/usr/bin/env python3
"""Print the table of language_model.sh: model, heads kept, parameters, perplexities, tokens per second.

    language_model_results.py RUN_DIR [RUN_DIR ...] [--seed N] [--bpe N] [--speed 0|1] [--paper shim] [--tsv FILE]
        [--plot FILE]

Each folder holds what lib/language_models.sh writes: heads.json, valid.json, test.json and speed.json. Folders in
several parent folders (OUT_DIR/seed1, OUT_DIR/seed2, ...) are models of several seeds: the table has means and ranges.
--paper shim adds the heads that Shim et al. 2021 keep with the same lambda. The TSV has a row for each model and seed
with all numbers. The plot shows the perplexity per word of the test set over the heads kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, exit_code
from evaluated import REPEAT, read_json
from fairseq_headgates.files import write_whole
from fairseq_headgates.report import Panel, score_panel, text_table
from plots import draw
from seeds import mean_heads, with_range

# Heads that Shim et al. 2021 keep on WikiText-103, of 128, by lambda; the model without gates has all of them.
SHIM, SHIM_HEADS = {0.01: 106, 0.015: 87, 0.02: 59}, 128
PREFIX = "lambda"
# Perplexities by column of the table: subset and key.
PERPLEXITIES = {
    "valid": ("valid", "perplexity"),
    "test": ("test", "perplexity"),
    "valid/word": ("valid", "perplexity_per_word"),
    "test/word": ("test", "perplexity_per_word"),
}
SPEED = "tokens_per_second"


@dataclass(frozen=True)
class Model:
    """The results in one folder.

    Attributes:
        name: name of the folder
        seed: random seed of training
        heads: number of heads kept, and of all heads
        parameters: number of parameters
        subsets: {"valid" or "test": what perplexity.py prints}
        speed: tokens per second; None if it was not measured
    """

    name: str
    seed: str
    heads: tuple[int, int]
    parameters: int
    subsets: dict[str, dict[str, float]]
    speed: float | None

    @classmethod
    def read(cls, folder: Path, seed: str, speed: bool) -> Model:
        """Read the files of a folder. Raise ValueError, in one line, if one is missing or has other content."""
        try:
            shown = read_json(folder / "heads.json")
            kept, total = map(int, shown["heads"]["total"])
            subsets = {name: read_json(folder / f"{name}.json") for name in ("valid", "test")}
            for subset, key in PERPLEXITIES.values():
                float(subsets[subset][key])
            for name in ("loss", "tokens", "unknown", "words"):
                [float(found[name]) for found in subsets.values()]
            rate = float(read_json(folder / "speed.json")[SPEED]) if speed else None
            return cls(folder.name, seed, (kept, total), int(shown["parameters"]), subsets, rate)
        except (ValueError, TypeError, KeyError, AttributeError, OSError):
            raise ValueError(
                f"{folder} has no heads.json, valid.json, test.json or speed.json of a finished model: {REPEAT}"
            ) from None

    def perplexity(self, column: str) -> float:
        subset, key = PERPLEXITIES[column]
        return self.subsets[subset][key]

    def published(self) -> str:
        """Return the heads that the paper keeps, "-" for a lambda that it does not use."""
        if not self.name.startswith(PREFIX):
            return f"{SHIM_HEADS}/{SHIM_HEADS}"
        kept = SHIM.get(float(self.name.removeprefix(PREFIX)))
        return f"{kept}/{SHIM_HEADS}" if kept else "-"


def read(folders: Sequence[Path], seed: str, speed: bool) -> dict[str, list[Model]]:
    """Return the models by name, each of all seeds."""
    found: dict[str, list[Model]] = {}
    several = len({folder.resolve().parent for folder in folders}) > 1
    for folder in folders:
        own = folder.resolve().parent.name.removeprefix("seed") if several else seed
        found.setdefault(folder.name, []).append(Model.read(folder, own, speed))
    return found


def table(models: dict[str, list[Model]], paper: str) -> str:
    """Return the table, with means and ranges for several seeds."""
    first = next(iter(models.values()))
    columns = [*PERPLEXITIES, *(["tokens/s"] if first[0].speed is not None else [])]
    header = ["model", "heads", *(["paper"] if paper == "shim" else []), "params", *columns]
    rows = []
    for name, of_seeds in models.items():
        published = [of_seeds[0].published()] if paper == "shim" else []
        parameters = f"{mean(model.parameters for model in of_seeds) / 1e6:.2f}M"
        values = {column: [model.perplexity(column) for model in of_seeds] for column in PERPLEXITIES}
        cells = [over_seeds(values[column], ".2f") for column in PERPLEXITIES]
        if "tokens/s" in columns:
            cells.append(over_seeds([model.speed or 0.0 for model in of_seeds], ",.0f"))
        rows.append([name, heads(of_seeds), *published, parameters, *cells])
    return text_table(header, rows)


def over_seeds(values: Sequence[float], form: str) -> str:
    return with_range(values, form) if len(values) > 1 else f"{values[0]:{form}}"


def heads(of_seeds: Sequence[Model]) -> str:
    """Return the mean number of heads kept, with the range where the seeds differ."""
    kept = [model.heads[0] for model in of_seeds]
    spread = f" ({min(kept)}..{max(kept)})" if len(set(kept)) > 1 else ""
    return mean_heads(kept, of_seeds[0].heads[1]) + spread


def legend(model: Model, bpe: int, paper: str) -> str:
    """Return what the columns mean, and the size of the text."""
    tokens = f"token (BPE, {bpe:,} merges)" if bpe else "token (a word)"
    lines = [
        f"valid, test: perplexity per {tokens}; valid/word, test/word: per word of the text",
        "The end of a line counts as a token and as a word.",
    ]
    for name, found in model.subsets.items():
        share = 100 * found["unknown"] / found["tokens"]
        lines.append(f"{name} set: {found['tokens']:,} tokens, {found['words']:,} words, {share:.2f}% unknown tokens")
    if model.speed is not None:
        lines.append("tokens/s: evaluation of the test set, one model at a time")
    if paper == "shim":
        lines.append("paper: heads kept in Shim et al. 2021")
    return "\n".join(lines)


def tsv(models: dict[str, list[Model]], paper: str) -> str:
    """Return a row for each model and seed, with all numbers."""
    keys = ("loss", "perplexity", "perplexity_per_word", "tokens", "unknown", "words")
    header = ["model", "seed", "heads", "of", "parameters", *(f"{s} {key}" for s in ("valid", "test") for key in keys)]
    lines = ["\t".join([*header, "tokens per second", *(["paper heads"] if paper == "shim" else [])])]
    for model in (model for of_seeds in models.values() for model in of_seeds):
        cells = [model.name, model.seed, *model.heads, model.parameters]
        cells += [model.subsets[subset][key] for subset in ("valid", "test") for key in keys]
        cells += ["-" if model.speed is None else model.speed, *([model.published()] if paper == "shim" else [])]
        lines.append("\t".join(map(str, cells)))
    return "\n".join([*lines, ""])


def plot(models: dict[str, list[Model]]) -> Panel:
    """Return the plot of perplexity over heads kept; models without gates are horizontal lines."""
    column = "test/word"
    values = {name: [model.perplexity(column) for model in of_seeds] for name, of_seeds in models.items()}
    gated = [
        (mean(model.heads[0] for model in of_seeds), values.pop(name))
        for name, of_seeds in models.items()
        if name.startswith(PREFIX)
    ]
    return score_panel("perplexity per word (test)", {"gates": sorted(gated)} if gated else {}, values)


def work(args: argparse.Namespace) -> None:
    models = read(args.folders, args.seed, args.speed == "1")
    print(table(models, args.paper))
    print(legend(next(iter(models.values()))[0], args.bpe, args.paper))
    if args.tsv:
        write_whole(args.tsv, tsv(models, args.paper), force=True)
    if args.plot:
        draw(args.plot, [plot(models)])


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--seed", default="-", metavar="N", help="the seed of the folders, for the TSV")
    parser.add_argument("--bpe", type=int, default=0, metavar="N", help="BPE merges of the text; 0: tokens are words")
    parser.add_argument("--speed", choices=["0", "1"], default="1", help="1: with speed.json")
    parser.add_argument("--paper", choices=["shim", "none"], default="none")
    parser.add_argument("--tsv", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    return exit_code("language_model_results.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
