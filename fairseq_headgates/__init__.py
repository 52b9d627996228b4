"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed, and remove them.

Importing the package calls `register` (this is what ``--user-dir`` does) and imports the public API. The `headgates`
command, and recipes, import `headgates_start` first: the package then imports nothing, because fairseq and torch take
seconds to import, and the command calls `register` for every subcommand that works with models.
"""

import sys

__version__ = "0.1.0"


def register() -> None:
    """Register architectures, criterions and tasks with fairseq, and let `torch.load` read fairseq's checkpoints."""
    from fairseq_headgates import compression
    from fairseq_headgates.safety.objects import allow_stored_objects

    allow_stored_objects()


if "headgates_start" not in sys.modules:  # the entry point of the command
    from fairseq_headgates.compat import unsupported

    if problem := unsupported():
        raise ImportError(problem)

    register()

    from fairseq_headgates.analysis import ablation, agreement, importance
    from fairseq_headgates.analysis.relevance.explaining import explain
    from fairseq_headgates.compression.model import compress
    from fairseq_headgates.compression.repair import refit
    from fairseq_headgates.gates import HardConcrete, HeadGates
    from fairseq_headgates.heads import HeadId, HeadTable, parse_mask
    from fairseq_headgates.modules.head_attention import HeadAttention
    from fairseq_headgates.surgery.cuts import prune, remove_heads
    from fairseq_headgates.surgery.freezing import freeze
    from fairseq_headgates.surgery.gating import fix_heads, insert_gates, masked
    from fairseq_headgates.surgery.hooks import observe
    from fairseq_headgates.surgery.sites import (
        gate_values,
        head_sites,
        l0_penalty,
        open_probabilities,
        use_head_attention,
    )

__all__ = [
    "HardConcrete",
    "HeadAttention",
    "HeadGates",
    "HeadId",
    "HeadTable",
    "ablation",
    "agreement",
    "compress",
    "explain",
    "fix_heads",
    "freeze",
    "functions",
    "gate_values",
    "head_sites",
    "importance",
    "insert_gates",
    "l0_penalty",
    "masked",
    "observe",
    "open_probabilities",
    "parse_mask",
    "prune",
    "refit",
    "relevance",
    "remove_heads",
    "use_head_attention",
]
