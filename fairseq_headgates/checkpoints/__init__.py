"""Load, build, prune and write checkpoints. The public functions are imported here."""

from fairseq_headgates.checkpoints.pruned import checkpoint_of, prune_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.safety.checkpoint import load_checkpoint

__all__ = ["build_model", "checkpoint_of", "load_checkpoint", "prune_checkpoint", "save_checkpoint"]
