"""fairseq's tasks from the options of fairseq-generate."""

from __future__ import annotations

import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from fairseq import tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_DATACLASS_REGISTRY

from fairseq_headgates.data.binarised import language_pair
from fairseq_headgates.data.objectives import check_supported, options_of
from fairseq_headgates.files import check_dictionary
from fairseq_headgates.messages import first_line, logging_only

LANGUAGES = ("source_lang", "target_lang")


def to_config(args: Namespace) -> Any:
    """Return the options as fairseq's commands pass them on."""
    with logging_only(logging.CRITICAL, "fairseq"):  # which logs what it raises
        return convert_namespace_to_omegaconf(args)


def setup_task(args: Namespace) -> Any:
    """Return fairseq's task with its dictionaries. Raise ValueError if the data cannot be read.

    Afterwards `args` holds the languages that fairseq infers, which --tokenizer moses needs.
    """
    check_supported(args.task)
    complete_languages(args)
    # Composing all options with hydra, as fairseq does, takes a fifth of a second: only if the task refers to others.
    fields = TASK_DATACLASS_REGISTRY[args.task].from_namespace(args) if args.task in TASK_DATACLASS_REGISTRY else args
    refers = any(str(value).startswith("${") for value in vars(fields).values())
    config = to_config(args).task if refers else args
    if (getattr(args, "num_classes", 1) or 0) < 1:
        raise ValueError("the number of classes is not given: add --num-classes N")
    try:
        task = tasks.setup_task(config)
        for dictionary in (task.source_dictionary, task.target_dictionary):
            check_dictionary(dictionary)
    except Exception as error:  # fairseq raises no other for a missing folder, dictionary or language
        hint = "give a folder of fairseq-preprocess"
        if args.task == "translation" and Path(utils.split_paths(args.data)[0], "dict.txt").is_file():
            hint = "for data without a target side, add --task language_modeling or masked_lm"
        elif args.task == "translation" and Path(utils.split_paths(args.data)[0], "input0").is_dir():
            hint = "for classified sentences, add --task sentence_prediction"
        elif args.task == "sentence_prediction":
            hint = "give a folder with the folders input0 and label of fairseq-preprocess"
        elif hasattr(args, "lang_pairs"):
            hint = "check --lang-pairs, --langs, -s and -t, or give a folder of fairseq-preprocess"
        raise ValueError(f"cannot read the data in {args.data} ({first_line(error)}): {hint}") from None
    for option in LANGUAGES:
        language, found = getattr(args, option, None), getattr(options_of(task), option, None)
        if language and found != language:
            raise ValueError(
                f"--{option.replace('_', '-')} is {language}, but the data in {args.data} have {found}: pass both "
                f"--source-lang and --target-lang"
            )
    return task


def complete_languages(args: Namespace) -> None:
    """Set the languages of translation where the options leave them out. Raise ValueError where fairseq takes none."""
    source, target = (getattr(args, name, None) for name in LANGUAGES)
    if not hasattr(args, "target_lang") or (source and target):
        return
    if not hasattr(args, "lang_pairs"):
        if found := language_pair(utils.split_paths(args.data)[0], source, target):
            args.source_lang, args.target_lang = found
        return
    pairs = args.lang_pairs.split(",") if isinstance(args.lang_pairs, str) else args.lang_pairs
    if not pairs:
        raise ValueError(f"--task {args.task} needs languages: add --lang-pairs as in training, and -s SRC -t TGT")
    if source or target or len(pairs) > 1:
        some = ", ".join(pairs[:10]) + ", ..." * (len(pairs) > 10)
        raise ValueError(f"the languages of the data are not given: add -s SRC -t TGT, a pair of {some}")
    args.source_lang, args.target_lang = pairs[0].split("-")
