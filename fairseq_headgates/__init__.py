"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed.

Importing the package registers its architectures and criterions with fairseq, which is what `--user-dir` does.
"""

import argparse
import importlib.util

if importlib.util.find_spec("fairseq") is None:
    raise ImportError("fairseq is missing: pip install 'fairseq-headgates[fairseq]', or fairseq 0.12.2 or later")

import numpy
import torch

__version__ = "0.1.0"

# fairseq loads checkpoints with torch.load, which since torch 2.6 takes nothing but tensors and what is named here:
# the options of the model, and the counters that --eval-bleu leaves in the training state.
if hasattr(torch.serialization, "add_safe_globals"):
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            numpy.ndarray,
            numpy.dtype,
            type(numpy.dtype("int64")),
            numpy.zeros(0).__reduce__()[0],  # numpy's array constructor, whose module moved between versions
        ]
    )

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
