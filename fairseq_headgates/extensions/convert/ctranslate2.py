"""Convert a fairseq transformer with removed heads to CTranslate2.

CTranslate2 (https://github.com/OpenNMT/CTranslate2, 4.8) has one number of heads for all layers of the encoder, and one
for all self- and cross attention of the decoder. The size of a head is independent of the model size (`head_dim` of its
attention specification). Each stack is padded with zero heads up to its largest attention. A zero head has zeros as
queries, keys, values and columns of the output projection: it adds exactly 0. A feed-forward block may have any number
of neurons but 0: one without neurons gets a zero neuron.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_headgates.attention.anatomy import attention_modules, stacks_of
from fairseq_headgates.attention.cuts import head_positions
from fairseq_headgates.attention.features import model_features
from fairseq_headgates.files.writing import log_written, part_of, replace_folder
from fairseq_headgates.heads import HeadId
from fairseq_headgates.messages import first_line, quoted

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec

# fairseq's --activation-fn: the name in `ctranslate2.specs.Activation`
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_accurate": "GELUTanh", "gelu_fast": "GELUTanh", "tanh": "Tanh"}
ACTIVATIONS["swish"] = "SWISH"


def to_ctranslate2(
    model: nn.Module,
    source_dictionary: Dictionary,
    target_dictionary: Dictionary,
    output_dir: str | os.PathLike[str],
    quantization: str | None = None,
    force: bool = False,
    alignment_heads: Sequence[HeadId] = (),
) -> None:
    """Write a fairseq transformer, encoder-decoder or language model, as a CTranslate2 model, atomically.

    CTranslate2 loads what is written and translates a word with it before the output has its name.

    Args:
        model: a model without gates and fixed heads, e.g. a result of `prune`; it is not changed
        source_dictionary: the source dictionary of the model; for a language model its only one
        target_dictionary: the target dictionary of the model
        output_dir: the folder to write
        quantization: one of CTranslate2's types, e.g. "int8"; None is single precision
        force: replace an existing CTranslate2 model, once the new one is complete
        alignment_heads: cross-attention heads of one layer whose mean attention weights `return_attention` gives
            (default: all of the last layer)

    Raises:
        ValueError: with every reason, if CTranslate2 does not support the model; for an unknown `quantization`; for
            alignment heads that the model does not have; if the output cannot be written; or if CTranslate2
            cannot run the converted model

    `Translator.translate_batch` of the result searches like fairseq-generate with these options:

    - `--beam B`: `beam_size=B`; fairseq's default is 5, CTranslate2's 2.
    - `--lenpen A`: `length_penalty=A`. Both divide the log-probability by length^A and count </s> in the length.
      With 0 (and `--unnormalized`) CTranslate2 continues until its best hypothesis is finished; fairseq stops at B
      finished ones, as CTranslate2 does with 1e-7.
    - `--max-len-a a --max-len-b b`: `max_decoding_length = min(a S + b, max_target_positions - 1) + 1`, S tokens of the
      longest source in the batch with </s>; by default 201, not 256. A translation that is still unfinished then gets
      an </s> from fairseq, whatever that costs, and none from CTranslate2.
    - `--min-len 1`: `min_decoding_length=1`, the default of both. CTranslate2 renormalises the first step without
      </s>, which adds -log(1 - P(</s>)) to all hypotheses; without a minimum (0) the scores are the same.
    - fairseq never generates <pad>: `suppress_sequences=[["<blank>"]]`. A trained model does not either.

    A language model becomes a `Generator`; its texts begin with </s>, or with <s> if it was trained with
    --add-bos-token.
    """
    output = Path(output_dir).resolve()
    check_output(output, force)
    check_model(model)
    check_alignment_heads(model, alignment_heads)
    spec = _specification(model, source_dictionary, target_dictionary, quantization, alignment_heads)
    _write_folder(spec, output, source_dictionary[len(source_dictionary) - 1])
    log_written(output_dir)


def check_alignment_heads(model: nn.Module, heads: Sequence[HeadId]) -> None:
    """Raise ValueError unless a model has these heads, and all are of one layer of cross-attention."""
    left = {
        HeadId(module.attention_type, module.layer, head)
        for module in attention_modules(model)
        for head in getattr(module.attention, "kept", range(module.attention.num_heads))
    }
    for head in heads:
        if head not in left:
            raise ValueError(f"the alignment head {head} is removed, or not in the model: choose a remaining head")
        if (head.attention_type, head.layer) != ("dec-enc", heads[0].layer):
            raise ValueError(
                "the alignment heads are of several layers or types: CTranslate2 takes heads of one layer of dec-enc"
            )


def check_model(model: nn.Module) -> None:
    """Raise ValueError, with every reason, if CTranslate2 does not support a model."""
    reasons = unsupported(model)
    if reasons:
        raise ValueError("CTranslate2 does not support this model: it has " + "; ".join(reasons))


def unsupported(model: nn.Module) -> list[str]:
    """Return every reason why CTranslate2 does not support a model, an empty list if it does.

    These are the rules of CTranslate2's own converter (converters/fairseq.py) and of its decoder layer. Two rules of
    the converter do not apply: equal numbers of heads and equal normalisation in encoder and decoder.
    """
    activation = getattr(getattr(model, "args", None), "activation_fn", "relu")
    reasons = [text for name, text in model_features(model).items() if name != "no-encoder"]
    if activation not in ACTIVATIONS:
        reasons.append(f"the activation function {activation} (supported: {', '.join(ACTIVATIONS)})")
    return reasons


@torch.no_grad()
def _specification(
    model: Any, source: Dictionary, target: Dictionary, quantization: str | None, alignment_heads: Sequence[HeadId]
) -> Any:
    """Return the model and its vocabularies as a specification of CTranslate2."""
    try:
        from ctranslate2 import specs
        from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
    except ImportError as error:
        hint = "pip install 'fairseq-headgates[ctranslate2]'"
        raise ValueError(f"CTranslate2 cannot be loaded ({error}): {hint}") from None
    if quantization not in (None, *ACCEPTED_MODEL_TYPES):
        raise ValueError(f"unknown quantization {quoted(quantization)}: choose from {', '.join(ACCEPTED_MODEL_TYPES)}")
    # A copy: heads are added to it, and CTranslate2 quantises in place. In training mode, LayerDrop hides layers.
    model = copy.deepcopy(model).cpu().float().eval()
    spec: Any
    if "encoder" not in stacks_of(model):
        spec = _language_model(model, source, specs)
    else:
        spec = _translator(model, source, target, specs, alignment_heads)
    spec.validate()
    # In int16, the zeros of a layer without heads get the scale 1024 / 0 and are read back as something / inf = 0.
    # A weight that is too large for float16 becomes infinite: `_check_translates` finds it.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spec.optimize(quantization=quantization)
    return spec


def _translator(
    model: Any, source: Dictionary, target: Dictionary, specs: ModuleType, alignment_heads: Sequence[HeadId]
) -> TransformerSpec:
    from ctranslate2.converters import fairseq

    # `return_attention` averages over the first heads of a layer.
    layer = len(model.decoder.layers) - 1
    aligned = max(1, model.decoder.layers[layer].encoder_attn.num_heads)
    if alignment_heads:
        layer, aligned = alignment_heads[0].layer, len(alignment_heads)
        _put_first(model.decoder.layers[layer].encoder_attn, [head.head for head in alignment_heads])
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(**_padded(model.encoder), **_common(model, model.encoder, specs)),
        specs.TransformerDecoderSpec(
            **_padded(model.decoder),
            **_common(model, model.decoder, specs),
            alignment_layer=layer,
            alignment_heads=aligned,
        ),
    )
    fairseq.set_transformer_encoder(spec.encoder, model.encoder)
    fairseq.set_transformer_decoder(spec.decoder, model.decoder)
    spec.register_source_vocabulary(_vocabulary(source))
    spec.register_target_vocabulary(_vocabulary(target))
    # fairseq ends every source with </s> and starts every target with it.
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = spec.config.eos_token
    return spec


def _language_model(model: Any, dictionary: Dictionary, specs: ModuleType) -> TransformerDecoderModelSpec:
    from ctranslate2.converters import fairseq

    options = {**_padded(model.decoder), **_common(model, model.decoder, specs)}
    spec = specs.TransformerDecoderModelSpec(specs.TransformerDecoderSpec(**options, with_encoder_attention=False))
    fairseq.set_transformer_decoder(spec.decoder, model.decoder, with_encoder_attention=False)
    spec.register_vocabulary(_vocabulary(dictionary))
    if not getattr(model.args, "add_bos_token", False):
        spec.config.bos_token = spec.config.eos_token
    return spec


def _common(model: Any, stack: Any, specs: ModuleType) -> dict[str, Any]:
    """Return the arguments that encoder and decoder share."""
    return {
        "num_layers": len(stack.layers),
        "pre_norm": stack.layers[0].normalize_before,
        "no_final_norm": stack.layer_norm is None,
        "activation": specs.Activation[ACTIVATIONS[getattr(model.args, "activation_fn", "relu")]],
        "layernorm_embedding": stack.layernorm_embedding is not None,
    }


def _put_first(attention: Any, heads: Sequence[int]) -> None:
    """Reorder the heads of an attention module, in place: these come first. Its output stays the same."""
    kept = list(getattr(attention, "kept", range(attention.num_heads)))
    first = [kept.index(head) for head in heads]
    rows = head_positions([*first, *(i for i in range(len(kept)) if i not in first)], attention.head_dim)
    for name in ("q_proj", "k_proj", "v_proj"):
        projection = getattr(attention, name)
        for parameter in (projection.weight, projection.bias):
            if parameter is not None:
                parameter.copy_(parameter[rows])
    attention.out_proj.weight.copy_(attention.out_proj.weight[:, rows])


def _padded(stack: Any) -> dict[str, int]:
    """Pad every layer of an encoder or decoder with zeros to the same number of heads, and to at least 1 neuron.

    q, k, v [H D, E] and `fc1` [F, E] get rows of zeros, the output projection [E, H D] and `fc2` [E, F] columns, in
    place. Return H and D.
    """
    attentions = [module.attention for module in attention_modules(stack)]
    heads, size = max(1, *(attention.num_heads for attention in attentions)), attentions[0].head_dim
    for attention in attentions:
        for name, inputs in (("q_proj", attention.embed_dim), ("k_proj", attention.kdim), ("v_proj", attention.vdim)):
            setattr(attention, name, _zero_padded(getattr(attention, name), inputs, heads * size))
        attention.out_proj = _zero_padded(attention.out_proj, heads * size, attention.embed_dim)
    for layer in stack.layers.children():
        neurons = max(1, layer.fc1.out_features)
        layer.fc1 = _zero_padded(layer.fc1, layer.fc1.in_features, neurons)
        layer.fc2 = _zero_padded(layer.fc2, neurons, layer.fc2.out_features)
    return {"num_heads": heads, "head_dim": size}


def _zero_padded(linear: nn.Linear | None, inputs: int, outputs: int) -> nn.Linear:
    """Return `linear`, or zeros for None, padded with zeros to a weight [outputs, inputs] and a bias [outputs]."""
    padded = nn.utils.skip_init(nn.Linear, inputs, outputs)
    for parameter in padded.parameters():
        parameter.zero_()
    if linear is not None:
        padded.weight[: linear.weight.size(0), : linear.weight.size(1)] = linear.weight
        if linear.bias is not None:
            padded.bias[: len(linear.bias)] = linear.bias
    return padded


def _vocabulary(dictionary: Dictionary) -> list[str]:
    """Return the symbols by number; CTranslate2 has its own name for padding."""
    return ["<blank>" if number == dictionary.pad() else symbol for number, symbol in enumerate(dictionary.symbols)]


def check_output(output: Path, force: bool) -> None:
    """Raise ValueError unless a model may be written there: `force` replaces models, nothing else."""
    if output.exists() and not force:
        raise ValueError(f"{output} exists: choose another name, or pass --force to overwrite it")
    if output.exists() and not (output / "model.bin").is_file():
        raise ValueError(
            f"{output} exists and is not a CTranslate2 model: choose another name "
            "(--force replaces only CTranslate2 models)"
        )


def _write_folder(spec: TransformerSpec | TransformerDecoderModelSpec, output: Path, word: str) -> None:
    """Save to a folder beside `output`, translate `word` with it and rename it; an old `output` is deleted afterwards.

    Raise ValueError, and leave nothing behind.
    """
    try:
        with part_of(output, folder=True) as part:
            spec.save(str(part))
            _check_translates(spec, part, word)
            replace_folder(part, output)
    except OSError as error:
        raise ValueError(f"cannot write {output} ({error.strerror or error}): choose another place") from None


def _check_translates(spec: Any, folder: Path, word: str) -> None:
    """Translate `word`, or continue it, with a CTranslate2 model. Raise ValueError if that is not possible."""
    import ctranslate2

    level = ctranslate2.get_log_level()
    ctranslate2.set_log_level(logging.ERROR)  # it warns that CPUs compute float16 in single precision
    try:
        if isinstance(spec, ctranslate2.specs.TransformerDecoderModelSpec):
            (found,) = ctranslate2.Generator(str(folder), intra_threads=1).generate_batch(
                [[spec.config.bos_token, word]], max_length=5, return_scores=True
            )
        else:
            (found,) = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
                [[word]], max_decoding_length=5, return_scores=True
            )
        if not math.isfinite(found.scores[0]):
            raise ValueError(f"the score of {quoted(word)} is {found.scores[0]}")
    except Exception as error:  # of any type, from compiled code
        raise ValueError(
            f"CTranslate2 {ctranslate2.__version__} cannot run the converted model ({first_line(error)}): "
            "choose another --quantization or version of CTranslate2"
        ) from None
    finally:
        ctranslate2.set_log_level(level)
