"""Load, build, prune, convert and write checkpoints."""

from fairseq_headgates.checkpoints.building import (
    CheckpointHeads,
    build_model,
    load_dictionaries,
    load_model,
    read_heads,
)
from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint, stock_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.safety import load_checkpoint

__all__ = [
    "CheckpointHeads",
    "build_model",
    "check_loads",
    "load_checkpoint",
    "load_dictionaries",
    "load_model",
    "prune_checkpoint",
    "read_heads",
    "save_checkpoint",
    "stock_checkpoint",
]
