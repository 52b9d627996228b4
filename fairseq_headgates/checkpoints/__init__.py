"""fairseq's checkpoint files: loaded safely, read for their heads, pruned, written whole."""

from fairseq_headgates.checkpoints.building import (
    CheckpointHeads,
    architecture,
    build_model,
    load_dictionaries,
    load_model,
    read_heads,
)
from fairseq_headgates.checkpoints.loading import load_checkpoint, model_args, save_checkpoint, updates_of
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint

__all__ = [
    "CheckpointHeads",
    "architecture",
    "build_model",
    "load_checkpoint",
    "load_dictionaries",
    "load_model",
    "model_args",
    "prune_checkpoint",
    "read_heads",
    "save_checkpoint",
    "stock_checkpoint",
    "updates_of",
]
