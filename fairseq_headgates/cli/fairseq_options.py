"""Parse and check the options of fairseq-generate that the commands take, before anything is computed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import fields

from fairseq import options, utils
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.configs import GenerationConfig
from omegaconf import MISSING

from fairseq_headgates.cli.options import DATA_USAGE
from fairseq_headgates.cli.parser import ArgumentParser
from fairseq_headgates.messages import described, fail

# What changes results, besides the options of the task. The other options of fairseq-generate concern speed, logs and
# training.
MEASURING = (
    "fp16 seed required_batch_size_multiple required_seq_len_multiple skip_invalid_size_inputs_valid_test".split()
)
SEARCHING = (*(field.name for field in fields(GenerationConfig)), "post_process", "bpe", "tokenizer")
# What would change results or write files, but is not implemented here. Parallel and sharded checkpoints are several
# files, for which fairseq adds suffixes to --path.
UNUSED = (
    *("model_overrides", "lm_path", "constraints", "diverse_beam_groups", "replace_unk", "score_reference"),
    *("num_shards", "shard_id"),
    *("checkpoint_suffix", "checkpoint_shard_count", "model_parallel_size", "pipeline_model_parallel", "bf16", "amp"),
    *("results_path", "sacrebleu_char_level"),
)
# The tasks that other parts of a signature tell apart.
USUAL_TASKS = "translation language_modeling language_modeling_segments masked_lm sentence_prediction".split()


def fairseq_options(
    command: str, rest: Sequence[str], subset: str | None = None, text: bool = False
) -> argparse.Namespace:
    """Parse the options of fairseq-generate in `rest`; DATA is optional with `text`. Raise ValueError for wrong values.

    Ends with one line and exit code 2, as argparse does, for options that do not exist.
    """
    program = f"headgates {command}"
    early = ArgumentParser(prog=program, add_help=False, allow_abbrev=False)
    for option in ("--user-dir", "--task", "--criterion"):
        early.add_argument(option)
    given = early.parse_known_args(rest)[0]
    _import_user_dir(given.user_dir)
    parser = options.get_generation_parser()
    parser.prog, parser.usage = program, DATA_USAGE
    lacks_path = not any(word.startswith("--path") for word in rest)
    parser.error = lambda message: fail(  # without the usage
        program, message + "; the checkpoint is --path CKPT" * (lacks_path and message.startswith("unrecognized"))
    )
    parser.set_defaults(required_batch_size_multiple=1)  # fairseq drops what does not fill the last batch
    if subset:
        parser.set_defaults(gen_subset=subset)
    if given.task in CRITERION_REGISTRY:  # the options of classifiers are those of the criterion of this name
        if given.criterion not in (None, given.task):
            raise ValueError(f"--criterion is {given.criterion}: leave it out, --task {given.task} has its own")
        parser.set_defaults(criterion=given.task)
    args = options.parse_args_and_arch(parser, list(rest), modify_parser=_without_required if text else None)
    if args.path is None:
        raise ValueError("no checkpoint is given: add --path CKPT")
    if command == "prune" and args.gen_subset != parser.get_default("gen_subset"):
        raise ValueError(f"--gen-subset is {args.gen_subset}, which prune --refit does not read: use --refit-subset")
    _refuse_unused(args, parser)
    _check_numbers(args)
    return args


def changed_options(args: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options that are not fairseq's defaults and change results: those of the data, and of the search."""
    parser = options.get_generation_parser()
    parser.set_defaults(required_batch_size_multiple=1)
    common = {action.dest for action in parser._actions}
    words = ["-", "--task", args.task, "--criterion", args.criterion]
    defaults = vars(options.parse_args_and_arch(parser, words, modify_parser=_without_required))
    changed = {
        name: str(value).replace("|", "/")  # which separates the parts of a signature
        for name, value in vars(args).items()
        if value != defaults.get(name) and not (name not in defaults and value is False)
    }
    of_task = {name for name in defaults if name not in common and name != "data"}
    data = {name: value for name, value in changed.items() if name in MEASURING or name in of_task}
    search = {name: value for name, value in changed.items() if name in SEARCHING or name not in defaults}
    return {**({} if args.task in USUAL_TASKS else {"task": args.task}), **data}, search


def _without_required(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        action.required = False
        action.default = None if action.default == MISSING else action.default


def _import_user_dir(folder: str | None) -> None:
    """Import the package of --user-dir first, so that what goes wrong there is reported as such."""
    if folder == "":
        raise ValueError("--user-dir is empty: give the folder of a package, or leave it out")
    try:
        utils.import_user_module(argparse.Namespace(user_dir=folder))
    except (Exception, SystemExit) as error:  # the package is anyone's code
        reason = "no such folder" if isinstance(error, FileNotFoundError) else described(error)
        raise ValueError(
            f"cannot import --user-dir {folder} ({reason}): give the folder of a package, or leave it out"
        ) from None


def _refuse_unused(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse options that would have no effect, unless they have their default value."""
    names = [name for name in UNUSED if getattr(args, name, None) not in (None, parser.get_default(name))]
    given = [f"--{name.replace('_', '-')}" for name in names]
    given += [f"--scoring {args.scoring}"] if args.scoring not in ("bleu", "sacrebleu") else []
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used here: leave it out")


def _check_numbers(args: argparse.Namespace) -> None:
    """Refuse numbers with which fairseq ends in a traceback or a signal, or ranks the translations by chance."""
    for name in ("required_batch_size_multiple", "beam"):
        if (value := getattr(args, name)) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}: it must be at least 1")
    for name, value in vars(args).items():
        if value != value or (name in ("lenpen", "max_len_a") and math.isinf(value)):
            raise ValueError(f"--{name.replace('_', '-')} is {value}: it must be a finite number")
