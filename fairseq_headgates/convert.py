"""A CTranslate2 model from a fairseq transformer whose attention layers have lost heads, each its own number.

CTranslate2 (https://github.com/OpenNMT/CTranslate2, 4.8) keeps one number of heads for all layers of the encoder, and
one for the decoder, self- and cross attention alike. But it can be told the size of a head (`head_dim` of its attention
specification), so that H heads of size D need not add up to the model size E. Each stack is padded with zero heads up
to the attention that has most. A zero head has zeros for its queries, keys, values and columns of the output
projection: it adds exactly 0.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import transformer
from fairseq.modules import transformer_layer
from torch import nn

from fairseq_headgates.models import BeamEncoder
from fairseq_headgates.parts import part_of, remove_dead_parts, replace_folder
from fairseq_headgates.sites import head_sites

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerSpec

# Classes are compared by identity, because a subclass computes something else. (Ours does not.)
STACKS = {getattr(transformer, f"Transformer{side}{base}") for side in ("Encoder", "Decoder") for base in ("", "Base")}
STACKS.add(BeamEncoder)
LAYERS = {
    getattr(transformer_layer, f"Transformer{side}Layer{base}")
    for side in ("Encoder", "Decoder")
    for base in ("", "Base")
}
# fairseq's --activation-fn: the name in `ctranslate2.specs.Activation`
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_accurate": "GELUTanh", "gelu_fast": "GELUTanh", "tanh": "Tanh"}


def to_ctranslate2(
    model: nn.Module,
    source_dictionary: Dictionary,
    target_dictionary: Dictionary,
    output_dir: str | os.PathLike[str],
    quantization: str | None = None,
    force: bool = False,
) -> None:
    """Writes a fairseq encoder-decoder transformer as a CTranslate2 model, a folder, whole or not at all.

    `quantization` is one of CTranslate2's types, e.g. "int8"; None is single precision. `model` stays as it is. An
    existing CTranslate2 model is replaced only with `force`, once the new one is complete. Raises ValueError for a
    model that cannot be expressed (with every reason at once), an unknown type, or an output that cannot be written.

    `Translator.translate_batch` of the result searches like fairseq-generate if it is told so:

    - `--beam B`: `beam_size=B`; fairseq's default is 5, CTranslate2's 2.
    - `--lenpen A`: `length_penalty=A`. Both divide the log-probability by length^A and count </s> in the length.
      0 (and `--unnormalized`) lets CTranslate2 search on until its best hypothesis is finished; fairseq stops at B
      finished ones, as CTranslate2 does with 1e-7.
    - `--max-len-a a --max-len-b b`: `max_decoding_length = min(a S + b, max_target_positions - 1) + 1`, S tokens of the
      longest source in the batch with </s>; by default 201, not 256. A translation that is still unfinished then gets
      an </s> from fairseq, whatever that costs, and none from CTranslate2.
    - `--min-len 1`: `min_decoding_length=1`, the default of both. CTranslate2 renormalises the first step without
      </s>, which adds -log(1 - P(</s>)) to all hypotheses; without a minimum (0) the scores are the same.
    - fairseq never chooses <pad>; a trained model does not either (else `suppress_sequences=[["<blank>"]]`).
    """
    output = Path(output_dir).resolve()
    check_output(output, force)
    reasons = unsupported(model)
    if reasons:
        raise ValueError("CTranslate2 cannot express this model: " + "; ".join(reasons))
    _write_folder(_specification(model, source_dictionary, target_dictionary, quantization), output)


def unsupported(model: nn.Module) -> list[str]:
    """Every reason why CTranslate2 cannot express this model; empty if it can.

    These are the rules of CTranslate2's own converter (converters/fairseq.py) and what its decoder layer lacks. The
    equal numbers of heads and the equal normalisation in encoder and decoder, which the converter asks for, are not
    needed by the format.
    """
    if not isinstance(model, transformer.TransformerModelBase):
        return [f"{type(model).__name__} is not an encoder-decoder transformer"]
    stacks = (model.encoder, model.decoder)
    strange = {type(stack).__name__ for stack in stacks if type(stack) not in STACKS}
    if not strange:
        layers = [layer for stack in stacks for layer in stack.layers.children()]
        strange = {type(layer).__name__ for layer in layers if type(layer) not in LAYERS}
    if strange:  # nothing more can be asked of such a module
        return [f"it has modules of the class {name}" for name in sorted(strange)]
    return [*_unsupported_options(model, layers), *_unsupported_attention(model)]


def _unsupported_options(model: Any, layers: list[Any]) -> Iterator[str]:
    """Asks the modules rather than the options where they tell."""
    encoder, decoder, args = model.encoder, model.decoder, model.args
    activation = getattr(args, "activation_fn", "relu")
    if activation not in ACTIVATIONS:
        yield f"--activation-fn {activation} (there are {', '.join(ACTIVATIONS)})"
    if not (len(encoder.layers) and len(decoder.layers)):
        yield "an encoder or decoder without layers"
    if encoder.embed_positions is None or decoder.embed_positions is None:
        yield "--no-token-positional-embeddings"
    if {type(encoder.embed_tokens), type(decoder.embed_tokens)} != {nn.Embedding}:
        yield "embeddings that are not one table (--adaptive-input)"
    if encoder.quant_noise is not None or getattr(args, "quant_noise_scalar", False):
        yield "--quant-noise-pq or --quant-noise-scalar"
    if decoder.adaptive_softmax is not None:
        yield "--adaptive-softmax-cutoff"
    if decoder.project_in_dim is not None or decoder.project_out_dim is not None:
        yield "--decoder-input-dim or --decoder-output-dim other than --decoder-embed-dim"
    if decoder.cross_self_attention:
        yield "--cross-self-attention"
    if any(layer.encoder_attn is None for layer in decoder.layers.children()):
        yield "--no-cross-attention"
    scales = {"attn_ln": "attn", "c_attn": "heads", "ffn_layernorm": "fc", "w_resid": "resids"}
    for name, option in scales.items():
        if any(getattr(layer, name, None) is not None for layer in layers):
            yield f"--scale-{option}"
    if getattr(args, "lang_tok_replacing_bos_eos", False):
        yield "--lang-tok-replacing-bos-eos"


def _unsupported_attention(model: nn.Module) -> Iterator[str]:
    faults = {
        "gate": "gates on {} (`headgates prune` folds them into the weights)",
        "head_mask": "fixed heads on {} (`headgates prune` takes them out)",
        "bias_k": "an extra key and value on {} (bias_k)",
        "add_zero_attn": "an extra key and value on {} (add_zero_attn)",
        "use_xformers": "xFormers on {} (--encoder-xformers-att-config, --decoder-xformers-att-config)",
    }
    for name, reason in faults.items():
        found = [(site.kind, getattr(site.attention, name, None)) for site in head_sites(model)]
        kinds = dict.fromkeys(kind for kind, value in found if value is not None and value is not False)
        if kinds:
            yield reason.format(", ".join(kinds))


@torch.no_grad()
def _specification(model: Any, source: Dictionary, target: Dictionary, quantization: str | None) -> TransformerSpec:
    """The model in CTranslate2's terms, with its vocabularies."""
    try:
        from ctranslate2 import specs
        from ctranslate2.converters import fairseq
        from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
    except ImportError as error:
        cure = "pip install 'fairseq-headgates[ctranslate2]'"
        raise ValueError(f"CTranslate2 cannot be loaded ({error}): {cure}") from None
    if quantization not in (None, *ACCEPTED_MODEL_TYPES):
        raise ValueError(f"unknown quantization {quantization!r}: choose from {', '.join(ACCEPTED_MODEL_TYPES)}")
    # A copy: heads are added to it, and CTranslate2 quantises in place. In training mode, LayerDrop hides layers.
    model = copy.deepcopy(model).cpu().float().eval()
    # `return_attention` is the mean over the last layer's own heads, which come first; in fairseq, too.
    aligned = max(1, model.decoder.layers[-1].encoder_attn.num_heads)
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(**_pad_heads(model.encoder), **_common(model, model.encoder, specs)),
        specs.TransformerDecoderSpec(
            **_pad_heads(model.decoder), **_common(model, model.decoder, specs), alignment_heads=aligned
        ),
    )
    fairseq.set_transformer_encoder(spec.encoder, model.encoder)
    fairseq.set_transformer_decoder(spec.decoder, model.decoder)
    spec.register_source_vocabulary(_vocabulary(source))
    spec.register_target_vocabulary(_vocabulary(target))
    # fairseq ends every source with </s> and starts every target with it.
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = spec.config.eos_token
    spec.validate()
    # In int16, the zeros of a layer without heads get the scale 1024 / 0 and are read back as something / inf = 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        spec.optimize(quantization=quantization)
    return spec


def _common(model: Any, stack: Any, specs: ModuleType) -> dict[str, Any]:
    """What encoder and decoder are both told."""
    return {
        "num_layers": len(stack.layers),
        "pre_norm": stack.layers[0].normalize_before,
        "no_final_norm": stack.layer_norm is None,
        "activation": specs.Activation[ACTIVATIONS[getattr(model.args, "activation_fn", "relu")]],
        "layernorm_embedding": stack.layernorm_embedding is not None,
    }


def _pad_heads(stack: nn.Module) -> dict[str, int]:
    """Adds zero heads to every attention of an encoder or decoder until all have as many, at least 1, in place.

    q, k, v [H D, E] get rows of zeros, the output projection [E, H D] columns. Returns H and D.
    """
    attentions = [site.attention for site in head_sites(stack)]
    heads, size = max(1, *(attention.num_heads for attention in attentions)), attentions[0].head_dim
    for attention in attentions:
        for name, inputs in (("q_proj", attention.embed_dim), ("k_proj", attention.kdim), ("v_proj", attention.vdim)):
            setattr(attention, name, _zero_padded(getattr(attention, name), inputs, heads * size))
        attention.out_proj = _zero_padded(attention.out_proj, heads * size, attention.embed_dim)
    return {"num_heads": heads, "head_dim": size}


def _zero_padded(linear: nn.Linear | None, inputs: int, outputs: int) -> nn.Linear:
    """`linear`, or nothing, with zeros behind it up to a weight [outputs, inputs] and a bias [outputs]."""
    padded = nn.utils.skip_init(nn.Linear, inputs, outputs)
    for parameter in padded.parameters():
        parameter.zero_()
    if linear is not None:
        padded.weight[: linear.weight.size(0), : linear.weight.size(1)] = linear.weight
        if linear.bias is not None:
            padded.bias[: len(linear.bias)] = linear.bias
    return padded


def _vocabulary(dictionary: Dictionary) -> list[str]:
    """The symbols in the order of their numbers; CTranslate2 has its own name for padding."""
    return ["<blank>" if number == dictionary.pad() else symbol for number, symbol in enumerate(dictionary.symbols)]


def check_output(output: Path, force: bool) -> None:
    """Raises ValueError unless a model may be written there: `force` deletes models, nothing else."""
    remove_dead_parts(output)  # one of them may be the old model, of a process that was killed while it replaced it
    if output.exists() and not force:
        raise ValueError(f"{output} exists: choose another name, or pass --force to overwrite it")
    if output.exists() and not (output / "model.bin").is_file():
        raise ValueError(f"{output} exists and is no CTranslate2 model: choose another name, --force keeps it")


def _write_folder(spec: TransformerSpec, output: Path) -> None:
    """Saves to a folder beside `output` and renames it; an old `output` is moved aside before and deleted after."""
    try:
        with part_of(output, folder=True) as part:
            spec.save(str(part))
            replace_folder(part, output)
    except OSError as error:
        raise ValueError(f"cannot write {output} ({error.strerror or error}): choose another place") from None
