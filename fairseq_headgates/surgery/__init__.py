"""Change the heads of a model: find and replace attention, gate, mask, observe, remove; freeze parameters."""

from fairseq_headgates.surgery.choice import best_heads, check_scored
from fairseq_headgates.surgery.cuts import (
    head_positions,
    kept_mask,
    open_mask,
    prune,
    removal_plan,
    remove_heads,
)
from fairseq_headgates.surgery.features import is_language_model, stack_modules, stacks_of
from fairseq_headgates.surgery.freezing import freeze
from fairseq_headgates.surgery.gating import fix_heads, insert_gates, masked
from fairseq_headgates.surgery.hooks import Observed, hooked, observe, replaced_forward
from fairseq_headgates.surgery.sites import (
    HeadSite,
    evaluating,
    gate_method,
    gate_values,
    gated_sites,
    head_counts,
    head_factors,
    head_sites,
    l0_penalty,
    open_probabilities,
    site_table,
    to_table,
    use_head_attention,
)

__all__ = [
    "HeadSite",
    "Observed",
    "best_heads",
    "check_scored",
    "evaluating",
    "fix_heads",
    "freeze",
    "gate_method",
    "gate_values",
    "gated_sites",
    "head_counts",
    "head_factors",
    "head_positions",
    "head_sites",
    "hooked",
    "insert_gates",
    "is_language_model",
    "kept_mask",
    "l0_penalty",
    "masked",
    "observe",
    "open_mask",
    "open_probabilities",
    "prune",
    "removal_plan",
    "remove_heads",
    "replaced_forward",
    "site_table",
    "stack_modules",
    "stacks_of",
    "to_table",
    "use_head_attention",
]
