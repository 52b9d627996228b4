"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed, and remove them.

Importing the package calls `register` (this is what ``--user-dir`` does) and imports the public API. The `headgates`
command, and recipes, import `headgates_start` first: the package then imports nothing, because fairseq and torch take
seconds to import, and the command calls `register` for every subcommand that works with models.
"""

import sys

__version__ = "0.1.0"


def register() -> None:
    """Register architectures, criterions and tasks with fairseq, and let `torch.load` read fairseq's checkpoints."""
    from fairseq_headgates import compression, criterions, models, tasks  # noqa: F401  (registers what they contain)
    from fairseq_headgates.safety import allow_stored_objects

    allow_stored_objects()


if "headgates_start" not in sys.modules:  # the entry point of the command
    from fairseq_headgates.compat import unsupported

    if problem := unsupported():
        raise ImportError(problem)

    register()

    from fairseq_headgates.analysis import ablation, agreement, functions, importance, relevance
    from fairseq_headgates.analysis.relevance import explain
    from fairseq_headgates.compression.model import compress
    from fairseq_headgates.compression.repair import refit
    from fairseq_headgates.gates import HardConcrete, HeadGates
    from fairseq_headgates.heads import HeadId, HeadTable, parse_mask
    from fairseq_headgates.modules import HeadAttention
    from fairseq_headgates.surgery import (
        fix_heads,
        freeze,
        gate_values,
        head_sites,
        insert_gates,
        l0_penalty,
        masked,
        observe,
        open_probabilities,
        prune,
        remove_heads,
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
