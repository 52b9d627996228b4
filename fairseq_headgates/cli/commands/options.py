"""`headgates options`: print the options that this plugin adds to fairseq-train."""

import argparse
from typing import Any

from fairseq_headgates import load_extensions
from fairseq_headgates.cli.command import Answer, Options, command


@command("options", "headgates options", "headgates options | grep -A 3 -e --gate-lr-scale")
class AddedOptions(Options):
    """Print the options that this plugin adds to fairseq-train.

    Print the options that --arch transformer_head_gates and --criterion label_smoothed_cross_entropy_l0 add to
    fairseq-train. All other architectures (*_head_gates) and criterions (*_l0) of this plugin add the same options.
    fairseq-train --help lists only those of fairseq.
    """

    def run(self, session: Any) -> Answer:
        """Format the options as argparse does."""
        sections = []
        for title, actions in added_options().items():
            formatter = argparse.HelpFormatter("fairseq-train")
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
            sections.append(formatter.format_help())
        return Answer(text="\n".join(sections))


def added_options() -> dict[str, list[argparse.Action]]:
    """Return the options that this plugin adds to those of fairseq, by what has them."""
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import MODEL_REGISTRY

    loss = "label_smoothed_cross_entropy"
    pairs = {
        "options of the model (--arch transformer_head_gates)": (
            MODEL_REGISTRY["transformer_head_gates"],
            MODEL_REGISTRY["transformer"],
        ),
        f"options of the criterion (--criterion {loss}_l0)": (
            CRITERION_REGISTRY[f"{loss}_l0"],
            CRITERION_REGISTRY[loss],
        ),
    }
    for plugin in load_extensions("plugin"):
        pairs |= plugin.OPTIONS
    return {title: _added(ours, stock) for title, (ours, stock) in pairs.items()}


def _added(ours: type, stock: type) -> list[argparse.Action]:
    parsers = [argparse.ArgumentParser(add_help=False, conflict_handler="resolve") for _ in range(2)]
    for cls, parser in zip((ours, stock), parsers, strict=True):
        cls.add_args(parser)  # type: ignore[attr-defined]
    known = {name for action in parsers[1]._actions for name in action.option_strings}
    actions = (action for action in parsers[0]._actions if action.option_strings)
    return [action for action in actions if not known & set(action.option_strings)]
