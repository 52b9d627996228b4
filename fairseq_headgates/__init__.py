"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed.

Importing the package registers its architectures and criterions with fairseq, which is what `--user-dir` does.
"""

import argparse
import collections
import importlib.util
import typing

if importlib.util.find_spec("fairseq") is None:
    raise ImportError("fairseq is missing: pip install 'fairseq-headgates[fairseq]', or fairseq 0.12.2 or later")

import fairseq.distributed.utils
import numpy
import omegaconf
import torch

from fairseq_headgates import criterions, models  # noqa: F401  (registration)
from fairseq_headgates.attention import (
    HeadAttention,
    fix_heads,
    gate_values,
    head_sites,
    insert_gates,
    l0_penalty,
    masked,
    open_probabilities,
    use_head_attention,
)
from fairseq_headgates.freezing import freeze
from fairseq_headgates.gates import HardConcrete, HeadGates
from fairseq_headgates.heads import HeadTable, parse_mask

__version__ = "0.1.0"

# fairseq loads checkpoints with torch.load, which since torch 2.6 takes nothing but tensors and what is named here.
SAFE_GLOBALS = [
    argparse.Namespace,  # the options of a model
    # the counters that --eval-bleu leaves in the training state
    numpy.ndarray,
    numpy.dtype,
    type(numpy.dtype("int64")),
    numpy.zeros(0).__reduce__()[0],  # numpy's array constructor, whose module moved between versions
    # the options again, as the first worker sends a checkpoint to the others
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    omegaconf.nodes.AnyNode,
    fairseq.distributed.utils._TensorPlaceholder,
    collections.defaultdict,
    typing.Any,
    list,
    dict,
    int,
]
if hasattr(torch.serialization, "add_safe_globals"):
    torch.serialization.add_safe_globals(SAFE_GLOBALS)

__all__ = [
    "HardConcrete",
    "HeadAttention",
    "HeadGates",
    "HeadTable",
    "fix_heads",
    "freeze",
    "gate_values",
    "head_sites",
    "insert_gates",
    "l0_penalty",
    "masked",
    "open_probabilities",
    "parse_mask",
    "use_head_attention",
]
