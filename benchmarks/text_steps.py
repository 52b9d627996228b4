#!/usr/bin/env python3
"""Measure time and peak memory of the text steps of the recipes on artificial text of full size.

    python benchmarks/text_steps.py FOLDER [--pairs 6000000] [--corpus 26000000] [--encoded 500000] [--steps STEP ...]

The text is written to a folder for its size in FOLDER (about 20 GB at the default sizes) and kept for the next call.
Without --steps all steps are measured; each makes the input that it needs. The default sizes are those of
OpenSubtitles; for WMT use --pairs 2500000 without `select`. Words are random strings whose frequencies follow Zipf's
law, 20 on a line (8 in subtitles). The steps run with the options of `recipes/wmt_en_ru.sh` and
`recipes/opensubtitles_en_ru.sh`; STEP is one of:

- select: select --pairs pairs from an archive of --corpus subtitles by their overlap
- tokenise, encode (BPE): --encoded lines of English, on all cores, in blocks of 20,000 lines
- clean, preprocess: --pairs pairs
- learn (BPE): --pairs lines

The peak is that of the resident memory of all processes of a step together, sampled every 20 ms. Memory that several
processes share counts for each of them, so it is an upper bound.
"""

import argparse
import gzip
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
from bench_models import machine
from tqdm import tqdm

from fairseq_headgates.files import part_of, replacing

LIB = Path(__file__).resolve().parents[1] / "recipes" / "lib"
LANGUAGES = {"en": "abcdefghijklmnoprstuvwy", "ru": "абвгдежзиклмнопрстуфхцчшыья"}
WORDS, UNITS = 1_000_000, 32_000  # different ones in the text, and in the text in BPE
FILM = 1000  # subtitles of a film
BLOCK = 100_000  # lines made at a time


def vocabulary(alphabet: str, size: int) -> np.ndarray:
    """Return different random strings of 1 to 10 letters, the shorter ones first, and punctuation."""
    random = np.random.default_rng(1)
    lengths = np.minimum(1 + np.log(1 + np.arange(2 * size)).astype(int) // 2 + random.integers(0, 4, 2 * size), 10)
    letters = random.choice(list(alphabet), (2 * size, 10))
    strings = ["".join(row[:length]) for row, length in zip(letters, lengths, strict=True)]
    return np.array([",", ".", "?", *dict.fromkeys(strings)][:size], dtype=object)


def sentences(language: str, number: int, length: int, types: int = WORDS) -> Iterator[list[str]]:
    """Yield blocks of lines of `length` words each; the frequency of word r is about proportional to 1 / r."""
    known, random = vocabulary(LANGUAGES[language], types), np.random.default_rng(2)
    for start in tqdm(range(0, number, BLOCK), desc=f"making {language}", unit=" blocks", disable=None):
        # The inverse of the distribution function of 1 / r.
        ranks = np.exp(random.random((min(BLOCK, number - start), length)) * np.log(len(known))).astype(int) - 1
        yield [" ".join(row) for row in known[ranks]]


def write_text(file: Path, number: int, types: int = WORDS) -> None:
    """Write a side of a parallel text; one line of a hundred repeats an earlier one."""
    if file.exists():
        return
    with replacing(file) as part, part.open("w", encoding="utf-8") as text:
        for lines in sentences(file.suffix[1:], number, 20, types):
            lines[10::100] = lines[0:-10:100]
            text.write("\n".join(lines) + "\n")


def write_subtitles(folder: Path, number: int) -> None:
    """Write the Moses archive and the alignment of `number` subtitles, laid out as those of OPUS."""
    archive, alignment = folder / "moses.zip", folder / "alignment.xml.gz"
    if alignment.exists():
        return
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as members:
        for language in LANGUAGES:
            with members.open(f"OpenSubtitles.en-ru.{language}", "w", force_zip64=True) as member:
                for lines in sentences(language, number, 8):
                    member.write(("\n".join(lines) + "\n").encode())
        with members.open("OpenSubtitles.en-ru.ids", "w", force_zip64=True) as member:
            for n in range(number):
                member.write("\t".join([*documents(n), str(n % FILM), str(n % FILM)]).encode() + b"\n")
    with part_of(alignment) as part:
        with gzip.open(part, "wt", encoding="utf-8", compresslevel=1) as text:
            text.write('<?xml version="1.0" encoding="utf-8"?>\n<cesAlign version="1.0">\n')
            for n in range(number):
                if n % FILM == 0:
                    source, target = documents(n)
                    text.write(f'<linkGrp targType="s" fromDoc="{source}" toDoc="{target}">\n')
                overlap = 0.95 if n % 10 < 4 else 0.8
                text.write(f'<link id="SL{n}" xtargets="{n % FILM};{n % FILM}" overlap="{overlap}" />\n')
                if n % FILM == FILM - 1 or n == number - 1:
                    text.write("</linkGrp>\n")
            text.write("</cesAlign>\n")
        part.replace(alignment)


def documents(n: int) -> tuple[str, str]:
    """Return the documents of subtitle `n` in both languages."""
    return f"en/2001/{n // FILM}/1.xml.gz", f"ru/2001/{n // FILM}/2.xml.gz"


def measure(command: str, folder: Path, output: Path) -> tuple[float, float]:
    """Run a shell command, its output to a file. Return seconds and the peak of the resident memory in MB."""
    start, peak = time.monotonic(), 0
    shell = ["bash", "-c", f"set -euo pipefail; {command}"]
    with output.open("wb") as file, output.with_suffix(".log").open("wb") as errors:
        process = psutil.Popen(shell, stdout=file, stderr=errors, cwd=folder)
        while process.poll() is None:
            peak = max(peak, resident(process))
            time.sleep(0.02)
    if process.returncode:
        sys.exit(
            f"text_steps.py: {command} failed with exit code {process.returncode}: see {output.with_suffix('.log')}"
        )
    return time.monotonic() - start, peak / 1e6


def resident(process: psutil.Process) -> int:
    """Return the bytes of resident memory of a process and its descendants."""
    size = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            size += one.memory_info().rss
    except psutil.NoSuchProcess:  # one of them has just ended
        pass
    return size


def write_head(source: Path, target: Path, number: int) -> None:
    """Write the first lines of a text."""
    with source.open("rb") as lines, target.open("wb") as file:
        file.writelines(islice(lines, number))


class Inputs:
    """The input of each step."""

    def __init__(self, options: argparse.Namespace):
        self.folder, self.options = options.folder, options

    def text(self) -> None:
        """train, valid and test, tokenised."""
        for language in LANGUAGES:
            train = self.folder / f"train.{language}"
            write_text(train, self.options.pairs)
            for split in ("valid", "test"):
                write_head(train, self.folder / f"{split}.{language}", 2000)

    def bpe(self) -> None:
        """The same number of lines in BPE, and valid and test."""
        self.text()
        for language in LANGUAGES:
            write_text(self.folder / f"bpe.{language}", self.options.pairs, UNITS)

    def lines(self) -> None:
        """The lines to encode."""
        self.text()
        write_head(self.folder / "train.en", self.folder / "encoded.en", self.options.encoded)

    def codes(self) -> None:
        """The lines to encode, and BPE codes."""
        self.lines()
        if not (self.folder / "codes").exists():
            write_head(self.folder / "train.en", self.folder / "few", 20_000)
            learn = ["subword-nmt", "learn-bpe", "-s", "32000", "--input", "few", "--output", "codes"]
            subprocess.run(learn, cwd=self.folder, check=True, stderr=subprocess.DEVNULL)

    def subtitles(self) -> None:
        """An archive of subtitles and their alignment."""
        write_subtitles(self.folder, self.options.corpus)


def steps(options: argparse.Namespace) -> dict[str, tuple[Callable[[], None], str, int]]:
    """Return for each step what makes its input, its command, and its number of lines."""
    inputs, pairs, encoded = Inputs(options), options.pairs, options.encoded
    programs = shlex.join([sys.executable, str(LIB)])
    blocks = f"{programs} text.in_blocks encoded.en"
    tokenise = shlex.quote(f"sacremoses -q -l en normalize tokenize | {programs} text.lines lowercase")
    select = f"{programs} corpora.subtitles moses.zip alignment.xml.gz selected en ru --pairs {pairs}"
    clean = f"{programs} text.clean train clean en ru --max-length 200 --max-ratio 9 --unique --without valid test"
    preprocess = (
        "rm -rf bin; fairseq-preprocess -s en -t ru --trainpref bpe --validpref valid --testpref test "
        '--destdir bin --workers "$(nproc)"'
    )
    return {
        "select": (inputs.subtitles, select, options.corpus),
        "tokenise": (inputs.lines, f"{blocks} {tokenise}", encoded),
        "clean": (inputs.text, clean, pairs),
        "learn": (inputs.text, "subword-nmt learn-bpe -s 32000 --input train.en", pairs),
        "encode": (inputs.codes, f"{blocks} 'subword-nmt apply-bpe -c codes'", encoded),
        "preprocess": (inputs.bpe, preprocess, pairs),
    }


def main() -> None:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    known = steps(options)
    unknown = [name for name in options.steps or () if name not in known]
    if unknown:
        sys.exit(f"text_steps.py: unknown step {unknown[0]!r}: choose from {', '.join(known)}")
    print(machine("cpu"))
    print(f"{'step':12}{'lines':>12}{'minutes':>9}{'lines/s':>10}{'peak MB':>9}")
    for name in options.steps or known:
        make, command, lines = known[name]
        make()
        seconds, peak = measure(command, options.folder, options.folder / f"{name}.out")
        print(f"{name:12}{lines:>12,}{seconds / 60:>9.1f}{lines / seconds:>10,.0f}{peak:>9,.0f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=6_000_000, help="pairs of the parallel text (default: 6000000)")
    parser.add_argument("--corpus", type=int, default=26_000_000, help="subtitles to select from (default: 26000000)")
    parser.add_argument("--encoded", type=int, default=500_000, help="lines to tokenise and encode (default: 500000)")
    parser.add_argument("--steps", nargs="+", metavar="STEP", help="steps to measure (default: all)")
    options = parser.parse_args()
    options.folder = options.folder.resolve() / f"pairs{options.pairs}-corpus{options.corpus}"
    options.encoded = min(options.encoded, options.pairs)
    if not shutil.which("subword-nmt"):
        sys.exit("text_steps.py: subword-nmt is not on the PATH: activate the environment of the recipes")
    return options


if __name__ == "__main__":
    main()
