"""fairseq-headgates: learn which attention heads of a fairseq transformer can be removed, and remove them.

Importing the package registers its architectures and criterions with fairseq (this is what ``--user-dir`` does), and
lets `torch.load` read the objects in fairseq's checkpoints. The `headgates` command imports only what a subcommand
needs, because fairseq and torch take seconds to import.
"""

import sys

__version__ = "0.1.0"

if "headgates_start" not in sys.modules:  # the entry point of the command
    from fairseq_headgates.compat import unsupported

    if problem := unsupported():
        raise ImportError(problem)

    from fairseq_headgates import criterions, models, tasks  # noqa: F401  (registers what they contain)
    from fairseq_headgates.analysis import ablation, agreement, functions, importance, relevance
    from fairseq_headgates.analysis.refit import refit
    from fairseq_headgates.analysis.relevance import explain
    from fairseq_headgates.gates import HardConcrete, HeadGates
    from fairseq_headgates.heads import HeadId, HeadTable, parse_mask
    from fairseq_headgates.modules import HeadAttention
    from fairseq_headgates.safety import allow_stored_objects
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

    allow_stored_objects()

__all__ = [
    "HardConcrete",
    "HeadAttention",
    "HeadGates",
    "HeadId",
    "HeadTable",
    "ablation",
    "agreement",
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
