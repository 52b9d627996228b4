"""Download the corpora of a recipe, check them and unpack them.

    python3 recipes/lib corpora.get list   COLLECTION                                 print files and addresses
    python3 recipes/lib corpora.get fetch  COLLECTION DOWNLOADS [--data-dir PLACE]    put files, checked, into DOWNLOADS
    python3 recipes/lib corpora.get unpack COLLECTION DOWNLOADS TEXT_DIR              write CORPUS.SRC and CORPUS.TGT

COLLECTION is `wmt-en-ru[:DEV,TEST]` (sets as sacrebleu names them, default wmt13,wmt14), `opensubtitles-en-ru`,
`iwslt14-de-en`, `wikitext-103`, which is written to {train,valid,test}.txt, or `mnli` (unpacked by corpora.mnli).
PLACE is a folder that has (some of) the files, or the address of a mirror, laid out `<host>/<path>` as the addresses
are; in a folder the files may also have their bare names. An interrupted download resumes. The SHA-256 of each
file is recorded in DOWNLOADS/SHA256SUMS; PLACE/SHA256SUMS is checked if it exists.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from tqdm import tqdm

from commands import ArgumentParser, Refused
from corpora.archives import one_line
from corpora.collection import Corpus, collection, languages, sources
from corpora.fetching import fetch
from fairseq_headgates.files import replacing, write_whole


def print_list(name: str) -> None:
    for source in sources(collection(name)):
        for address in source.addresses:
            print(f"{source.name}\t{address}")


def unpack(name: str, folder: Path, texts: Path) -> None:
    """Write CORPUS.SRC and CORPUS.TGT of every corpus. Print the number of pairs of each, or of lines."""
    corpora, pair = collection(name), languages(name)
    unit = "pairs" if len(pair) == 2 else "lines"
    texts.mkdir(parents=True, exist_ok=True)
    for corpus in corpora:
        path = folder / corpus.source.name
        if not path.exists():
            raise Refused(f"{path} is missing: run `python3 recipes/lib corpora.get fetch {name} {folder}` first")
        count = texts / f"{corpus.name}.count"  # written last, when both sides are complete
        if not count.exists():
            number, replaced = write_pairs(
                path, corpus, [texts / f"{corpus.name}.{language}" for language in pair], pair
            )
            note = f", {replaced:,} characters U+FFFD for bytes that are not UTF-8" if replaced else ""
            write_whole(count, f"{corpus.name}: {number:,} {unit}{note}\n", force=True)
        print(count.read_text(encoding="utf-8"), end="")


def write_pairs(path: Path, corpus: Corpus, outputs: list[Path], pair: tuple[str, ...]) -> tuple[int, int]:
    """Write the sides of a corpus. Return the number of pairs and of characters U+FFFD."""
    sides = [iter(corpus.read(path, language)) for language in pair]
    counts, replaced = [0] * len(sides), 0
    with ExitStack() as stack:
        names = [stack.enter_context(replacing(output, force=True)) for output in outputs]
        files = [stack.enter_context(name.open("w", encoding="utf-8", newline="\n")) for name in names]
        for texts in tqdm(zip_longest(*sides), desc=corpus.name, unit=" lines", unit_scale=True, disable=None):
            for i, text in enumerate(texts):
                if text is not None:
                    counts[i] += 1
                    replaced += text.count("\ufffd")
                    files[i].write(one_line(text) + "\n")
        if counts[0] != counts[-1]:
            numbers = " and ".join(f"{n:,} lines in {language}" for n, language in zip(counts, pair, strict=True))
            raise Refused(f"{path}: {corpus.name} has {numbers}: the two sides must be aligned, download it again")
    return counts[0], replaced


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("command", choices=["list", "fetch", "unpack"])
    parser.add_argument("collection")
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--data-dir", metavar="PLACE")
    args = parser.parse_args(argv)
    wants = {"list": 0, "fetch": 1, "unpack": 2}[args.command]
    if len(args.folders) != wants:
        parser.error(f"{args.command} takes {wants} folders after the collection, got {len(args.folders)}")
    if args.command == "fetch":
        fetch(sources(collection(args.collection)), args.folders[0], args.data_dir)
    elif args.command == "unpack":
        unpack(args.collection, *args.folders)
    else:
        print_list(args.collection)
