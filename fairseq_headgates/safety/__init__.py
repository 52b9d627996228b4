"""Allow-list of the objects and options in a checkpoint file, which may come from a stranger."""

from fairseq_headgates.safety.objects import allow_stored_objects
from fairseq_headgates.safety.options import check_evaluated, model_options
from fairseq_headgates.safety.reading import is_checkpoint_file, load_file

__all__ = ["allow_stored_objects", "check_evaluated", "is_checkpoint_file", "load_file", "model_options"]
