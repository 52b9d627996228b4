"""Runs `headgates` and fairseq's commands in this process, which has imported everything.

fairseq composes the configuration of a command with hydra, which takes 0.2 s and half of the time of a command on the
toy model. In this process what depends on the choice of the components alone is composed once, and every override is
parsed once.
"""

import contextlib
import copy
import importlib
import io
import logging
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import fairseq
import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass import utils
from fairseq.logging import metrics
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigLoadError
from omegaconf import OmegaConf, open_dict

from fairseq_headgates.cli.main import main
from support.commands import USER_DIR, Finished

PROGRAMS = {f"fairseq-{name}": name for name in ("train", "generate", "validate", "interactive")}
PROGRAMS["fairseq-eval-lm"] = "eval_lm"
compose = utils.compose


def can_run(program: str, arguments: tuple) -> bool:
    """Whether a command needs no process of its own: it imports the plugin, and leaves no open files behind."""
    words = [str(word) for word in arguments]
    return program in PROGRAMS and str(USER_DIR) in words and "--tensorboard-logdir" not in words


@contextlib.contextmanager
def as_command(program: str, arguments: tuple, stdin: str) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Yields the output and the errors of what runs within, in an empty folder, with this command line and input."""
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
            mock.patch.object(sys, "argv", [program, *map(str, arguments)]),
        ):
            os.chdir(folder)  # contextlib.chdir is not in Python 3.10
            yield out, err
    finally:
        os.chdir(before)


def run_here(*arguments: object, stdin: str = "") -> Finished:
    """Runs a `headgates` command in an empty folder."""
    with as_command("headgates", arguments, stdin) as (out, err):
        try:
            code = main(sys.argv[1:])
        except SystemExit as error:  # argparse's
            code = error.code
    return Finished(code or 0, out.getvalue(), err.getvalue())


def run_fairseq_here(program: str, *arguments: object, stdin: str = "") -> Finished:
    """Runs one of PROGRAMS in an empty folder; what it leaves in fairseq's modules and in random numbers is undone.

    Data are loaded in this process: when loaders of another process are deleted, torch waits for it for five seconds.
    """
    if "--num-workers" not in map(str, arguments):
        arguments = (*arguments, "--num-workers", "0")
    module = importlib.import_module(f"fairseq_cli.{PROGRAMS[program]}")
    code = 0
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    with (
        as_command(program, arguments, stdin) as (out, err),
        mock.patch.object(logging.root, "handlers", [handler]),
        warnings.catch_warnings(),
        as_before(),
    ):
        handler.setStream(out)
        warnings.simplefilter("ignore")
        logging.root.setLevel(logging.INFO)
        forget_runs()
        try:
            module.cli_main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except Exception:  # as the interpreter ends a process
            traceback.print_exc()
            code = 1
        finally:
            forget_runs()
    return Finished(code, out.getvalue(), err.getvalue())


def forget_runs() -> None:
    """What fairseq remembers in its modules: statistics, the best loss, when to stop."""
    metrics.reset()
    vars(checkpoint_utils.save_checkpoint).clear()
    vars(importlib.import_module("fairseq_cli.train").should_stop_early).clear()


@contextlib.contextmanager
def as_before():
    """Leaves the generators of random numbers, the number of threads and the level of logs as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    threads, level = torch.get_num_threads(), logging.root.level
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_num_threads(threads)
        logging.root.setLevel(level)


def never_compose_twice() -> None:
    """Lets fairseq call `compose_quickly` from now on, without hydra's `initialize`, which looks for its caller."""
    utils.compose, utils.initialize = compose_quickly, lambda config_path: contextlib.nullcontext()


def compose_quickly(config_name, overrides, strict):
    """hydra's `compose`: first the groups, such as `task=translation`, and then the values, such as `task.data=x`.

    Values that are there already, which are most of them, are not set again.
    """
    groups = tuple(override for override in overrides if not is_value(override))
    known, plain = _composed(config_name, groups)
    values = [_parsed(override) for override in overrides if is_value(override)]
    composed = copy.deepcopy(known)
    changed = [each for each in values if not _has(plain, each.key_or_group.split("."), each.value())]
    ConfigLoaderImpl._apply_overrides_to_config(changed, composed)
    return composed


def is_value(override: str) -> bool:
    return "." in override.partition("=")[0]


@cache
def _composed(config_name, groups):
    """A configuration with groups, and the same as a dictionary."""
    store = ConfigStore.instance()
    try:
        nodes = {group: store.load(f"{group}/{name}.yaml").node for group, name in (g.split("=") for g in groups)}
    except ConfigLoadError:  # a name that is not registered: hydra says so
        nodes = None
    if nodes:
        composed = copy.deepcopy(_composed(config_name, ())[0])
        with open_dict(composed):
            composed.update(nodes)
    else:
        with initialize_config_dir(str(Path(fairseq.__file__).parent / "config")):
            composed = compose(config_name, overrides=list(groups), strict=False)
    return composed, OmegaConf.to_container(composed)


def _has(plain, names, value):
    for name in names:
        if not isinstance(plain, dict) or name not in plain:
            return False
        plain = plain[name]
    return type(plain) is type(value) and plain == value


@cache
def _parsed(override):
    return OverridesParser.create().parse_override(override)
