"""Load untrusted checkpoints: an allow-list of objects, checks of options, the form of a checkpoint."""

from fairseq_headgates.safety.checkpoint import architecture, load_checkpoint, model_args, updates_of
from fairseq_headgates.safety.objects import allow_stored_objects
from fairseq_headgates.safety.options import (
    EVALUATED,
    NUMBERS,
    check_evaluated,
    is_literal,
    is_plain,
)
from fairseq_headgates.safety.reading import is_checkpoint_file, load_file

__all__ = [
    "EVALUATED",
    "NUMBERS",
    "allow_stored_objects",
    "architecture",
    "check_evaluated",
    "is_checkpoint_file",
    "is_literal",
    "is_plain",
    "load_checkpoint",
    "load_file",
    "model_args",
    "updates_of",
]
