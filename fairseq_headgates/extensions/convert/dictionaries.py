"""The dictionaries of a checkpoint, which CTranslate2 needs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import LangTokStyle, augment_dictionary
from torch import Tensor

from fairseq_headgates.data.binarised import language_pair
from fairseq_headgates.files import check_dictionary, read_text
from fairseq_headgates.messages import quoted
from fairseq_headgates.safety.checkpoint import as_mapping, model_args

LANGUAGE = re.compile(r"[\w@.-]+")
SOURCES_OF_DATA = ("<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>")  # of NLLB's --add-data-source-prefix-tags


def load_dictionaries(state: Mapping[str, Any], folder: str | os.PathLike[str]) -> tuple[Dictionary, Dictionary]:
    """Load the source and the target dictionary of a model from `folder`: dict.LANGUAGE.txt, or dict.txt.

    The checkpoint may name the languages, but not the folder. The one dictionary of a language model is returned twice.
    Languages and <mask>, which fairseq's multilingual and denoising tasks add, are added.

    Raises:
        ValueError: if a dictionary is missing, cannot be read or has another size than the model
    """
    stored = (state.get("cfg") or {}).get("task") or model_args(state)
    task = as_mapping(stored)
    weights = state["model"]
    if "encoder.embed_tokens.weight" not in weights:
        only = _load_dictionary(Path(folder) / "dict.txt", weights, "decoder", task)
        return only, only
    source, target = (Path(folder) / f"dict.{language}.txt" for language in _languages(task, folder))
    if Path(folder, "dict.txt").is_file() and not (source.is_file() and target.is_file()):
        source = target = Path(folder, "dict.txt")  # of BART, mBART, M2M-100: one for all languages
    return _load_dictionary(source, weights, "encoder", task), _load_dictionary(target, weights, "decoder", task)


def _languages(task: Mapping[str, Any], folder: str | os.PathLike[str]) -> list[str]:
    """Return a source and a target language of a checkpoint; with dict.txt, they may be unknown. Raise ValueError."""
    languages: list[Any] = [task.get("source_lang"), task.get("target_lang")]
    if None in languages:
        pairs: list[list[Any]] = [pair.split("-") for pair in _listed(task.get("lang_pairs"))]
        languages = pairs[0] if pairs else list(language_pair(str(folder), *languages) or ())
    if not languages and Path(folder, "dict.txt").is_file():
        return ["source", "target"]
    if len(languages) != 2 or not all(isinstance(each, str) and LANGUAGE.fullmatch(each) for each in languages):
        raise ValueError(
            f"cannot infer the languages from {folder}: give DATA, the folder of the binarised data{_hint(task)}"
        )
    return languages


def _listed(stored: Any) -> list[str]:
    """Return the texts of an option of fairseq: a list, or text with commas."""
    found = stored.split(",") if isinstance(stored, str) else stored
    return [each for each in found if isinstance(each, str)] if isinstance(found, (list, tuple)) else []


def _hint(task: Mapping[str, Any]) -> str:
    return f" (the checkpoint was trained on {quoted(task['data'])})" if task.get("data") else ""


def _listed_languages(task: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the languages of a multilingual task in the order of their symbols. Raise ValueError."""
    if languages := _listed(task.get("langs")):
        return languages
    if not isinstance(named := task.get("lang_dict"), str):
        return sorted({language for pair in _listed(task.get("lang_pairs")) for language in pair.split("-")})
    path = str(folder / Path(named).name)
    return read_text(path, "the languages (--lang-dict)", f"copy the file of the training to {folder}").split()


def _complete(dictionary: Dictionary, expected: int, task: Mapping[str, Any], folder: Path) -> None:
    """Add the symbols that the task of a checkpoint adds to dictionaries: languages, <mask>. Raise ValueError."""
    name = task.get("task", task.get("_name"))
    if name == "translation_from_pretrained_bart":
        raise ValueError(
            f"models of --task {name} end sentences with a language in place of </s>, which CTranslate2 does not add: "
            "fine-tune mBART with --task translation_multi_simple_epoch"
        )
    if len(dictionary) == expected:  # that of --fixed-dictionary has them
        return
    if name == "translation_multi_simple_epoch":
        style, specs = str(task.get("lang_tok_style")), _listed(task.get("langtoks_specs")) or ["main"]
        extra = task.get("extra_data") if isinstance(task.get("extra_data"), dict) else None
        if style in {known.value for known in LangTokStyle}:
            augment_dictionary(dictionary, _listed_languages(task, folder), style, specs, extra)
        for symbol in SOURCES_OF_DATA if task.get("add_data_source_prefix_tags") else ():
            dictionary.add_symbol(symbol)
    elif name in ("denoising", "multilingual_denoising"):
        languages = _listed(task.get("langs")) if task.get("add_lang_token") else []
        augment_dictionary(dictionary, languages, LangTokStyle.mbart.value)


def _load_dictionary(path: Path, weights: Mapping[str, Tensor], side: str, task: Mapping[str, Any]) -> Dictionary:
    if not path.is_file():
        raise ValueError(f"there is no dictionary {path}: give DATA, the folder of dict.*.txt{_hint(task)}")
    try:
        dictionary = Dictionary.load(str(path))
        check_dictionary(dictionary)
    except Exception as error:  # fairseq raises no other
        raise ValueError(f"cannot read the dictionary {path}: {str(error).splitlines()[0]}") from None
    expected = len(weights[f"{side}.embed_tokens.weight"])
    _complete(dictionary, expected, task, path.parent)
    if len(dictionary) != expected:
        raise ValueError(
            f"{path} has {len(dictionary)} symbols, the checkpoint {expected}: give DATA, the folder of "
            "its own dictionaries"
        )
    return dictionary
