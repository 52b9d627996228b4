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
from fairseq_headgates.safety.checkpoint import as_mapping, load_checkpoint

logger = logging.getLogger(__name__)

NOTICEABLE = 0.05  # share of unknown tokens


def read_lines(file: str) -> list[str]:
    """Return the lines of a text, "-" for standard input."""
    return lines_of(read_standard_input() if file == "-" else read_text(file, "the text", "give a text file"))


def copy_dictionaries(args: Namespace, files: Sequence[str], folder: Path, trust: bool) -> dict[str, Path]:
    """Copy the dictionaries of DATA, or those beside the checkpoint, to a folder, which becomes DATA.

    Args:
        args: the options of fairseq-generate, which get the folder and the languages that are missing
        files: those of the text
        folder: an empty folder
        trust: whether the checkpoint may run code

    Returns:
        The dictionaries by language, source first; one of no language where a task has none

    Raises:
        ValueError: if languages or dictionaries are missing
    """
    if hasattr(args, "num_classes"):
        raise ValueError("text alone has no labels, which classifiers need: binarise both, and give DATA alone")
    checkpoint = utils.split_paths(args.path)[0]
    place = Path(utils.split_paths(args.data)[0]) if args.data else Path(checkpoint).parent
    args.data, languages = str(place), [""]
    if hasattr(args, "target_lang"):
        complete_languages(args)
        if not (args.source_lang and args.target_lang):
            _name_languages(args, [Path(file).suffix[1:] for file in files], place, checkpoint, trust)
        languages = [args.source_lang, args.target_lang]
    for path in place.glob("dict.*txt"):
        shutil.copy(path, folder)
    found = {language: folder / (f"dict.{language}.txt" if language else "dict.txt") for language in languages}
    for path in found.values():
        if not path.exists() and (joined := folder / "dict.txt").exists():
            shutil.copy(joined, path)
        elif not path.exists():
            raise ValueError(f"there is no {path.name} in {place}: give the folder of the dictionaries as DATA")
    args.data = str(folder)
    return found


def _name_languages(args: Namespace, suffixes: Sequence[str], place: Path, checkpoint: str, trust: bool) -> None:
    """Set the languages: those by which files are called if there are such dictionaries, or those of the training."""
    stored: Any = suffixes
    if len(suffixes) != 2 or not all((place / f"dict.{suffix}.txt").exists() for suffix in suffixes):
        state = load_checkpoint(checkpoint, trust)
        options = as_mapping(state.get("args")) or as_mapping(as_mapping(state.get("cfg")).get("task"))
        stored = [options.get(name) for name in LANGUAGES]
    if not all(isinstance(language, str) for language in stored):
        raise ValueError("the languages of the text are not known: add -s SRC -t TGT")
    args.source_lang, args.target_lang = stored


def binarise(files: Sequence[str], dictionaries: Mapping[str, Path], parts: Mapping[str, tuple[float, float]]) -> None:
    """Binarise text beside its dictionaries, as fairseq-preprocess does.

    Args:
        files: a file for each dictionary; one alone is the source
        dictionaries: those that `copy_dictionaries` returned
        parts: where each subset begins and ends in the text, as shares of it

    Raises:
        ValueError: for more files than dictionaries
    """
    if len(files) > len(dictionaries):
        raise ValueError(f"--text names {len(files)} files, this --task reads {len(dictionaries)}: leave out others")
    for file, (language, path) in zip(files, dictionaries.items(), strict=False):
        dictionary, lines = Dictionary.load(str(path)), read_lines(file)
        check_dictionary(dictionary)
        sentences = [dictionary.encode_line(line, add_if_not_exist=False) for line in lines]
        unknown = sum(int(each.eq(dictionary.unk()).sum()) for each in sentences)
        if unknown > NOTICEABLE * sum(map(len, sentences)):
            logger.warning(f"{file} has {unknown:,} tokens not in {path.name}: give text tokenised and in subwords")
        for subset, (start, end) in parts.items():
            name = f"{subset}.{'-'.join(dictionaries)}.{language}" if language else subset
            builder = indexed_dataset.make_builder(f"{path.parent / name}.bin", "mmap", vocab_size=len(dictionary))
            for sentence in sentences[int(start * len(lines)) : int(end * len(lines))]:
                builder.add_item(sentence)
            builder.finalize(f"{path.parent / name}.idx")
