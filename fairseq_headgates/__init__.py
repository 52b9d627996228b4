"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed.

Importing the package registers its architectures and criterions with fairseq, which is what `--user-dir` does.
"""

import importlib.util

if importlib.util.find_spec("fairseq") is None:
    raise ImportError("fairseq is missing: pip install 'fairseq-headgates[fairseq]', or fairseq 0.12.2 or later")

from fairseq_headgates import criterions, models  # noqa: F401  (registers architectures and criterions)
from fairseq_headgates.attention import HeadAttention
from fairseq_headgates.freezing import freeze
from fairseq_headgates.gates import HardConcrete, HeadGates
from fairseq_headgates.heads import HeadTable, parse_mask
from fairseq_headgates.pruning import prune, remove_heads
from fairseq_headgates.safety import allow_stored_objects
from fairseq_headgates.sites import (
    fix_heads,
    gate_values,
    head_sites,
    insert_gates,
    l0_penalty,
    masked,
    observe,
    open_probabilities,
    use_head_attention,
)

__version__ = "0.1.0"

allow_stored_objects()

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
    "observe",
    "open_probabilities",
    "parse_mask",
    "prune",
    "remove_heads",
    "use_head_attention",
]
