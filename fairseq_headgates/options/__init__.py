"""The options of this plugin's models, and the masks they name."""

from fairseq_headgates.options.declared import DEFAULTS, HeadOptions, add_head_gate_args, option_value
from fairseq_headgates.options.layerdrop import layer_numbers, side_of, weights_of_layers
from fairseq_headgates.options.reading import one_line_errors, read_options
from fairseq_headgates.options.stored import flat_options, model_options, transformer_options
from fairseq_headgates.options.stored_mask import evaluation_gates, mask_of_checkpoint, read_mask
from fairseq_headgates.options.values import parse_ffn_dims, parse_inference_dtype, parse_inference_mode

__all__ = [
    "DEFAULTS",
    "HeadOptions",
    "add_head_gate_args",
    "evaluation_gates",
    "flat_options",
    "layer_numbers",
    "mask_of_checkpoint",
    "model_options",
    "one_line_errors",
    "option_value",
    "parse_ffn_dims",
    "parse_inference_dtype",
    "parse_inference_mode",
    "read_mask",
    "read_options",
    "side_of",
    "transformer_options",
    "weights_of_layers",
]
