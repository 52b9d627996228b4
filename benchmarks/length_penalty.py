#!/usr/bin/env python3
"""Compute BLEU of the models of a recipe at several length penalties.

    python benchmarks/length_penalty.py OUT_DIR RUN_DIR... [--penalties 0.6 1.0] [--lowercase]

OUT_DIR is the folder of recipes/translation.sh, RUN_DIR folders of models in it. Models of the same name, of several
seeds, share a row with their means. Last comes BLEU at the length penalty that has the best BLEU on the validation set,
for each model.

Each model translates the test set and the validation set once: the hypotheses that fairseq's beam search finds do not
depend on the length penalty, which only ranks them, by log P / length^penalty. They are kept in RUN_DIR.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import mean

from sacrebleu.metrics import BLEU
from tqdm import tqdm

import fairseq_headgates
from fairseq_headgates.evaluation.results import read_evaluations
from fairseq_headgates.files import write_whole

GRID = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
COMPLETE = "Generate {} with beam={}:"  # the last line of fairseq-generate
USED = 1.0  # the length penalty of the scores in its output


def main() -> None:
    options = parse()
    rows: dict[str, list[list[float]]] = defaultdict(list)
    language, references = references_of(options.out)
    for folder in tqdm(options.runs, unit="model", leave=False):
        found = {split: hypotheses(folder, split, language, options) for split in references}
        rows[folder.name].append(bleu_of(found, references, options))
    names = [f"{penalty:g}" for penalty in options.penalties] + ["tuned", "at"]
    print(f"{'model':32}" + "".join(f"{name:>8}" for name in names))
    for name, values in rows.items():
        print(f"{name:32}" + "".join(f"{mean(column):8.2f}" for column in zip(*values, strict=True)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--penalties", type=float, nargs="+", default=[0.6, 1.0], help="default: 0.6 1.0")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=4000)
    parser.add_argument("--lowercase", action="store_true", help="case-insensitive BLEU")
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


def references_of(out: Path) -> tuple[str, dict[str, list[str]]]:
    """Return the target language, and the references of the validation set and of the test set."""
    found = list(out.glob("text/reference.*"))
    if len(found) != 1:
        raise SystemExit(f"{out} has no text/reference.LANGUAGE: give the OUT_DIR of recipes/translation.sh")
    language = found[0].suffix[1:]
    valid = (out / "text" / f"valid.tok.{language}").read_text(encoding="utf-8")
    return language, {"valid": detokenised(valid, language), "test": lines(found[0].read_bytes().decode())}


def bleu_of(found: dict[str, list], references: dict[str, list[str]], options: argparse.Namespace) -> list[float]:
    """Return BLEU on the test set at each penalty and at the tuned one, and the tuned penalty."""
    metric = BLEU(lowercase=options.lowercase)

    def bleu(split: str, penalty: float) -> float:
        return metric.corpus_score(ranked(found[split], penalty), [references[split]]).score

    tuned = max(GRID, key=lambda penalty: bleu("valid", penalty))
    return [bleu("test", penalty) for penalty in (*options.penalties, tuned)] + [tuned]


def hypotheses(folder: Path, split: str, language: str, options: argparse.Namespace) -> list[list[tuple]]:
    """Return the hypotheses of each sentence: (log P, length with </s>, detokenised text)."""
    log = folder / f"nbest.{split}.log"
    complete = COMPLETE.format(split, options.beam)
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    if complete not in text:  # there is no log, or one of another beam size
        text = generate(folder, split, options)
        if complete not in text:
            raise SystemExit(f"fairseq-generate with {folder} is incomplete")
        write_whole(log, text, force=True)
    scores = re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", text, re.MULTILINE)
    lengths = [len(line.split()) for line in re.findall(r"^P-\d+\t(.*)$", text, re.MULTILINE)]
    texts = detokenised("\n".join(words for _, _, words in scores) + "\n", language)
    found: dict[int, list[tuple]] = defaultdict(list)
    for (number, score, _), length, line in zip(scores, lengths, texts, strict=True):
        found[int(number)].append((float(score) * length**USED, length, line))
    return [found[number] for number in sorted(found)]


def generate(folder: Path, split: str, options: argparse.Namespace) -> str:
    """Return the output of fairseq-generate with all hypotheses of the beam, for the checkpoint of the recipe."""
    [evaluation] = read_evaluations(str(folder / "evaluation.json"))
    command = ["fairseq-generate", options.out / "data-bin", "--user-dir", Path(fairseq_headgates.__file__).parent]
    command += ["--path", folder / Path(evaluation.checkpoint).name, "--gen-subset", split, "--remove-bpe"]
    command += ["--lenpen", USED, "--beam", options.beam, "--nbest", options.beam, "--max-tokens", options.max_tokens]
    command += ["--required-batch-size-multiple", 1, *["--cpu"] * options.cpu]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def ranked(sentences: list[list[tuple]], penalty: float) -> list[str]:
    """Return the best hypothesis of each sentence; of equally good ones the first, as fairseq does."""
    return [max(found, key=lambda hypothesis: hypothesis[0] / hypothesis[1] ** penalty)[2] for found in sentences]


def detokenised(text: str, language: str) -> list[str]:
    command = ["sacremoses", "-q", "-l", language, "detokenize"]
    return lines(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)


def lines(text: str) -> list[str]:
    """Return the lines of a text as sacrebleu counts them: they end at \\n alone, not at other Unicode line ends."""
    return text.removesuffix("\n").split("\n")


if __name__ == "__main__":
    main()
