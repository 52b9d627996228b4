"""`headgates options`: print the options that this plugin adds to fairseq-train."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command, which has no options of its own."""
    parser.description = (
        "Print the options that --arch transformer_head_gates and --criterion label_smoothed_cross_entropy_l0 add to "
        "fairseq-train; the other architectures (*_head_gates) and criterions (*_l0) of this plugin add the same. "
        "(fairseq-train --help lists only fairseq's.)"
    )


def run(args: argparse.Namespace) -> int:
    """Run `headgates options` and return its exit code."""
    groups = {
        "options of the model (--arch transformer_head_gates)": model_options(),
        "options of the criterion (--criterion label_smoothed_cross_entropy_l0)": criterion_options(),
        "further options of --arch transformer_lm_all_attention": all_attention_options(),
        "further options of --task language_modeling_segments": task_options(),
    }
    for title, actions in groups.items():
        formatter = argparse.HelpFormatter("fairseq-train")
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
        print(formatter.format_help())
    return 0


def model_options() -> list[argparse.Action]:
    """Return the options of `--arch transformer_head_gates` that fairseq's `transformer` does not have."""
    from fairseq.models import MODEL_REGISTRY

    return _added(MODEL_REGISTRY["transformer_head_gates"], MODEL_REGISTRY["transformer"])


def criterion_options() -> list[argparse.Action]:
    """Return the options of `--criterion label_smoothed_cross_entropy_l0` that fairseq's criterion does not have."""
    from fairseq.criterions import CRITERION_REGISTRY

    name = "label_smoothed_cross_entropy"
    return _added(CRITERION_REGISTRY[f"{name}_l0"], CRITERION_REGISTRY[name])


def all_attention_options() -> list[argparse.Action]:
    """Return the options that only `--arch transformer_lm_all_attention` has."""
    from fairseq.models import MODEL_REGISTRY

    return _added(MODEL_REGISTRY["transformer_lm_all_attention"], MODEL_REGISTRY["transformer_lm_head_gates"])


def task_options() -> list[argparse.Action]:
    """Return the options of `--task language_modeling_segments` that fairseq's `language_modeling` does not have."""
    from fairseq.tasks import TASK_REGISTRY

    return _added(TASK_REGISTRY["language_modeling_segments"], TASK_REGISTRY["language_modeling"])


def _added(ours: type, stock: type) -> list[argparse.Action]:
    parsers = [argparse.ArgumentParser(add_help=False, conflict_handler="resolve") for _ in range(2)]
    for cls, parser in zip((ours, stock), parsers, strict=True):
        cls.add_args(parser)  # type: ignore[attr-defined]
    known = {name for action in parsers[1]._actions for name in action.option_strings}
    actions = (action for action in parsers[0]._actions if action.option_strings)
    return [action for action in actions if not known & set(action.option_strings)]
