"""Plain text as data: a folder like that of fairseq-preprocess, with the dictionaries of a checkpoint."""

from __future__ import annotations

import logging
import shutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils
from fairseq.data import Dictionary, indexed_dataset

from fairseq_headgates.data.task import LANGUAGES, complete_languages
from fairseq_headgates.files import check_dictionary, lines_of, read_standard_input, read_text
from fairseq_headgates.safety.checkpoint import load_checkpoint, stored_options

logger = logging.getLogger(__name__)

FITTED = 0.9  # share of a text that is fitted, where the rest is measured
NOTICEABLE = 0.05  # share of unknown tokens


def read_sides(files: Sequence[str]) -> list[list[str]]:
    """Return the lines of each file, "-" for standard input. Raise ValueError unless they are as many."""
    texts = (
        read_standard_input() if file == "-" else read_text(file, "the text", "give a text file") for file in files
    )
    sides = [lines_of(text) for text in texts]
    if len({*map(len, sides)}) > 1:
        raise ValueError(f"the numbers of lines differ: {', '.join(str(len(side)) for side in sides)} in --text")
    return sides


def copy_dictionaries(args: Namespace, files: Sequence[str], folder: Path, trust: bool) -> dict[str, Path]:
    """Copy the dictionaries of DATA, or else those beside the checkpoint, to an empty folder, which becomes DATA.

    Return them by language, source first, by "" for a task without languages. The options of fairseq-generate, `args`,
    get the languages that are missing: the endings of the files if dictionaries have them, or those of the training.
    Raise ValueError for languages or dictionaries that are not found.
    """
    if hasattr(args, "num_classes"):
        raise ValueError("text alone has no labels, which classifiers need: binarise both, and give DATA alone")
    checkpoint = utils.split_paths(args.path)[0]
    place = Path(utils.split_paths(args.data)[0]) if args.data else Path(checkpoint).parent
    args.data, languages = str(place), [""]
    if hasattr(args, "target_lang"):
        complete_languages(args)
        if not (args.source_lang and args.target_lang):
            endings: Sequence[Any] = [Path(file).suffix[1:] for file in files]
            if len(endings) != 2 or not all((place / f"dict.{ending}.txt").exists() for ending in endings):
                options = stored_options(load_checkpoint(checkpoint, trust), "task")
                endings = [options.get(name) for name in LANGUAGES]
            args.source_lang, args.target_lang = endings
        languages = [args.source_lang, args.target_lang]
    if not all(isinstance(language, str) for language in languages):
        raise ValueError(f"the files do not end in languages of the dictionaries in {place}: add -s SRC -t TGT")
    for path in place.glob("dict.*txt"):
        shutil.copy(path, folder)
    found = {language: folder / (f"dict.{language}.txt" if language else "dict.txt") for language in languages}
    for path in found.values():
        if not path.exists() and not (folder / "dict.txt").exists():
            raise ValueError(f"there is no {path.name} in {place}: give the folder of the dictionaries as DATA")
        if not path.exists():
            shutil.copy(folder / "dict.txt", path)  # one for all languages
    args.data = str(folder)
    return found


def binarise(files: Sequence[str], dictionaries: Mapping[str, Path], subset: str, fit: str | None = None) -> None:
    """Binarise text beside its dictionaries, as fairseq-preprocess does.

    Args:
        files: one for each of the dictionaries, or the source alone; ValueError is raised for more
        dictionaries: those that `copy_dictionaries` returned
        subset: what the text is called
        fit: what its first part, `FITTED`, is called instead
    """
    if len(files) > len(dictionaries):
        raise ValueError(f"--text names {len(files)} files, this --task reads {len(dictionaries)}: leave out others")
    for file, lines, (language, path) in zip(files, read_sides(files), dictionaries.items(), strict=False):
        dictionary = Dictionary.load(str(path))
        check_dictionary(dictionary)
        sentences = [dictionary.encode_line(line, add_if_not_exist=False) for line in lines]
        unknown = sum(int(each.eq(dictionary.unk()).sum()) for each in sentences)
        if unknown > NOTICEABLE * sum(map(len, sentences)):
            logger.warning(f"{file} has {unknown:,} tokens not in {path.name}: give text tokenised and in subwords")
        first = int(FITTED * len(lines)) if fit not in (None, subset) else 0
        for name, part in ((subset, sentences[first:]), *([(fit, sentences[:first])] if first else [])):
            prefix = path.parent / (f"{name}.{'-'.join(dictionaries)}.{language}" if language else f"{name}")
            builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", vocab_size=len(dictionary))
            for sentence in part:
                builder.add_item(sentence)
            builder.finalize(f"{prefix}.idx")
