"""What a file from a stranger may hold: objects that may be loaded, options that may be acted on."""

from fairseq_headgates.safety.objects import allow_stored_objects
from fairseq_headgates.safety.options import check_evaluated, model_options
from fairseq_headgates.safety.reading import is_checkpoint_file, load_file

__all__ = ["allow_stored_objects", "check_evaluated", "is_checkpoint_file", "load_file", "model_options"]
