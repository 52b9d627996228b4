"""The options of this plugin's models, and the masks they name."""

from fairseq_headgates.options.arguments import DEFAULTS, add_head_gate_args
from fairseq_headgates.options.head_options import HeadOptions, one_line_errors, parse_inference_dtype
from fairseq_headgates.options.layerdrop import layer_numbers, side_of, weights_of_layers
from fairseq_headgates.options.stored_mask import evaluation_gates, mask_of_checkpoint, read_mask

__all__ = [
    "DEFAULTS",
    "HeadOptions",
    "add_head_gate_args",
    "evaluation_gates",
    "layer_numbers",
    "mask_of_checkpoint",
    "one_line_errors",
    "parse_inference_dtype",
    "read_mask",
    "side_of",
    "weights_of_layers",
]
