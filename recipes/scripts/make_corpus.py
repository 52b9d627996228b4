#!/usr/bin/env python3
"""Make a small artificial English-Russian parallel corpus with gold English dependency trees.

    python recipes/scripts/make_corpus.py OUT_DIR [--train 30000] [--valid 500] [--test 500] [--seed 1] [--force]

writes OUT_DIR/{train,valid,test}.{en,ru,en.conllu}. Every sentence is drawn as an abstract clause of frequent words,
which becomes an English dependency tree and a Russian string (grammar.py). The Russian side is a
function of the English one: its word forms depend on the subject (verb agreement), on the verb (case) and on the noun
(adjective agreement), so a model must find these words in the source. A small model learns this in a minute.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from grammar import Sampler, Word, english, russian

LENGTHS = range(4, 17)  # English tokens, the final mark included
DEFAULT_SIZES = {"train": 30000, "valid": 500, "test": 500}
FILE_NAMES = [f"{split}.{suffix}" for split in DEFAULT_SIZES for suffix in ("en", "ru", "en.conllu")]


def to_conllu(words: list[Word], sent_id: str) -> str:
    """Return a CoNLL-U block: 10 columns, with an empty line at the end."""
    lines = [f"# sent_id = {sent_id}", "# text = " + " ".join(word.form for word in words)]
    for i, word in enumerate(words, start=1):
        head = words.index(word.head) + 1 if word.head else 0
        lines.append(f"{i}\t{word.form}\t{word.lemma}\t{word.upos}\t_\t_\t{head}\t{word.relation}\t_\t_")
    return "\n".join(lines) + "\n\n"


def make_corpus(sizes: dict[str, int], seed: int) -> dict[str, str]:
    """Return file names and contents. The train split is drawn last, so its size does not change the other two."""
    sampler = Sampler(random.Random(seed))
    seen: set[str] = set()
    files: dict[str, str] = {}
    for split in ("test", "valid", "train"):
        sides: dict[str, list[str]] = {"en": [], "ru": [], "en.conllu": []}
        while len(sides["en"]) < sizes[split]:
            clause = sampler.clause()
            words = english(clause)
            text = " ".join(word.form for word in words)
            if len(words) in LENGTHS and text not in seen:
                seen.add(text)
                sides["en"].append(text + "\n")
                sides["ru"].append(russian(clause) + "\n")
                sides["en.conllu"].append(to_conllu(words, f"{split}-{len(sides['en'])}"))
        files |= {f"{split}.{suffix}": "".join(lines) for suffix, lines in sides.items()}
    return files


def write_files(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "make_corpus.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="directory to write, made if missing")
    for split, size in DEFAULT_SIZES.items():
        note = f"sentence pairs in {split} (default {size})"
        parser.add_argument(f"--{split}", type=int, default=size, metavar="N", help=note)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default 1)")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    args = parser.parse_args(argv)
    sizes = {split: getattr(args, split) for split in DEFAULT_SIZES}
    if low := [f"--{split} {size}" for split, size in sizes.items() if size < 1]:
        parser.error(f"{', '.join(low)}: must be 1 or more")
    present = [name for name in FILE_NAMES if (args.out_dir / name).exists()]
    if present and not args.force:
        parser.error(f"{args.out_dir} has {', '.join(present)}: add --force to overwrite, or name another directory")
    try:
        write_files(args.out_dir, make_corpus(sizes, args.seed))
    except OSError as problem:
        parser.error(f"cannot write OUT_DIR {args.out_dir} ({problem}): name a directory that can be written")
    print(f"wrote {args.out_dir}: " + ", ".join(f"{size} {split}" for split, size in sizes.items()) + " pairs")


if __name__ == "__main__":
    main()
