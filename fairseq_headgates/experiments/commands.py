"""The fairseq-train command that the options in a checkpoint stand for."""

from __future__ import annotations

import argparse
import io
import shlex
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_headgates.messages import shown
from fairseq_headgates.safety import architecture, model_args

# Options without influence on the model: where files lie, what is printed, on which devices.
WITHOUT_INFLUENCE = {
    "user_dir",
    "save_dir",
    "tensorboard_logdir",
    "no_progress_bar",
    "log_format",
    "log_interval",
    "log_file",
    "keep_interval_updates",
    "keep_last_epochs",
    "no_epoch_checkpoints",
    "save_interval",
    "save_interval_updates",
    "no_save_optimizer_state",
    "num_workers",
    "cpu",
    "device_id",
}
LONGEST = 20_000  # characters of a value; the inline mask of a large model has a few thousand
PLUGIN = '--user-dir "$(headgates path)"'


def training_command(state: Mapping[str, Any]) -> str:
    """Return the command line of fairseq-train with the options stored in a checkpoint.

    Options with default values, and options without influence on the model, are left out. With --user-dir of any
    plugin, that of this plugin is named. The text is empty if the checkpoint has an architecture, task or other part
    that this fairseq does not know, or a task that needs more arguments.
    """
    stored = {name: value for name, value in _stored(state).items() if _is_plain(value)}
    parts = _parts(stored)
    if parts is None:
        return ""
    parser = options.get_training_parser(default_task=None)
    # No word of the checkpoint but names that fairseq has registered: its parser imports what --user-dir names.
    try:
        with redirect_stderr(io.StringIO()):
            defaults = vars(options.parse_args_and_arch(parser, input_args=["DATA", *parts]))
    except SystemExit:  # a task that needs other arguments
        return ""
    words = [str(stored["data"]) if _is_path(stored.get("data")) else "DATA", *parts]
    for action in parser._actions:
        if action.dest in stored and action.option_strings and _matters(action.dest, parts):
            words += _option(action, stored[action.dest], defaults.get(action.dest))
    program = "fairseq-train" + (f" {PLUGIN}" if stored.get("user_dir") else "")
    return f"{program} {shlex.join(words)}"


def _stored(state: Mapping[str, Any]) -> dict[str, Any]:
    args = model_args(state)
    return {**_of_groups(state.get("cfg")), **vars(args), "arch": architecture(args)}


def _is_plain(value: Any) -> bool:
    """Return whether a value is text, a number or a list of these, as options are."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (str, int, float)) for item in value)
    return value is None or isinstance(value, (str, int, float))


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not value.startswith("-") and len(value) < LONGEST


def _of_groups(cfg: Any) -> dict[str, Any]:
    """Return the options of all groups of a configuration in one dict."""
    found: dict[str, Any] = {}
    for group in cfg.values() if isinstance(cfg, Mapping) else ():
        if isinstance(group, Mapping):
            found.update({key: value for key, value in group.items() if key != "_name"})
    for name in ("task", "criterion", "optimizer", "lr_scheduler"):
        group = cfg.get(name) if isinstance(cfg, Mapping) else None
        if isinstance(group, Mapping) and isinstance(group.get("_name"), str):
            found[name] = group["_name"]
    return found


def _parts(stored: Mapping[str, Any]) -> list[str] | None:
    """Return the options that decide which other options there are; None if this fairseq does not know one of them."""
    known = {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY}
    known |= {name: REGISTRIES[name]["registry"] for name in ("criterion", "optimizer", "lr_scheduler")}
    words = []
    for name, names in known.items():
        if isinstance(stored.get(name), str):
            if stored[name] not in names:
                return None
            words += ["--" + name.replace("_", "-"), stored[name]]
    return words


def _matters(name: str, parts: list[str]) -> bool:
    return (
        name not in WITHOUT_INFLUENCE
        and (name == "distributed_world_size" or not name.startswith(("distributed_", "ddp_")))
        and "--" + name.replace("_", "-") not in parts
    )


def _option(action: argparse.Action, value: Any, default: Any) -> list[str]:
    """Return the words of one option, none for its default value."""
    if value == default or value is None or _text(value) == _text(default):
        return []
    name, text = max(action.option_strings, key=len), _text(value)
    if action.nargs == 0:
        return [name] if value == action.const else []
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def _text(value: Any) -> str:
    """Return the value of an option as it is given on the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) if len(value) != 1 else str(value[0])
    return value if isinstance(value, str) and len(value) < LONGEST else shown(value)
