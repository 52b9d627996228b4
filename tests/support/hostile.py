"""Small checkpoints to be spoiled."""

import argparse
import copy
import inspect
import zipfile
from functools import cache

import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu

from support.models import make_args, make_gated, make_stock

# Before torch 2.6, and on fairseq's main branch, fairseq's own commands load any object; see SECURITY.md.
TORCH_2_6 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
CAREFUL = TORCH_2_6 and "weights_only=False" not in inspect.getsource(load_checkpoint_to_cpu)
NEEDS_CAREFUL_FAIRSEQ = pytest.mark.skipif(not CAREFUL, reason="the commands of this fairseq load any object")


def small_state(form="args", **options):
    """A checkpoint of a small model whose options are a Namespace (`args`, or in `cfg`) or a dictionary (`dict`)."""
    own = {"arch": "transformer_head_gates", "gate_heads": "enc-self"} if form == "gated" else {"arch": "transformer"}
    args = argparse.Namespace(**{**vars(make_args()), "task": "translation", **own, **options})
    state = {
        "args": None,
        "cfg": None,
        "model": copy.copy(_weights(form == "gated")),
        "optimizer_history": [
            {"criterion_name": "X", "optimizer_name": "Y", "lr_scheduler_state": {}, "num_updates": 3}
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }
    if form == "args":
        state["args"] = args
    elif form == "cfg":
        state["cfg"] = {"model": args, "task": {"_name": "translation"}}
    else:
        state["cfg"] = {"model": {**vars(args), "_name": args.arch}, "task": {"_name": "translation"}}
    return state


@cache
def _weights(gated):
    return (make_gated(gate_heads="enc-self") if gated else make_stock()).state_dict()


def save(state, path):
    torch.save(state, path)
    return path


def touch(trace):
    """Python text that leaves `trace` behind."""
    return f"__import__('pathlib').Path({str(trace)!r}).touch() or [10]"


def raw_pickle(path, *instructions):
    """A checkpoint whose pickle is made of these instructions."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + b"".join(instructions) + b".")
        archive.writestr("x/version", "3\n")
        archive.writestr("x/byteorder", "little")
    return path
