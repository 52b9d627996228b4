"""Every model of fairseq's registry is gated, trained and pruned, or refused in one line."""

import importlib.util
import logging
import re

import numpy as np
import pytest
import torch
from fairseq.models import MODEL_REGISTRY
from fairseq.modules import MultiheadAttention
from fairseq.modules.sparse_multihead_attention import SparseMultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from support.any_model import CASES, SEARCHED, TEXT, build, multilingual, speech_model, text, text_task
from support.fairseq_0_12_2 import IS_0_12_2
from support.pages import ROOT
from torch import nn

from fairseq_headgates import (
    HeadAttention,
    attention_modules,
    gate_values,
    insert_gates,
    l0_penalty,
    masked,
    observe,
    open_probabilities,
    prune,
)
from fairseq_headgates.heads import TYPES
from fairseq_headgates.plugin.monitoring import unwrapped

ENCODER, DECODER, BOTH = ("enc-self",), ("dec-self",), TYPES
# The attention types of every model that is supported, and the number of layers of each where it is not 2.
SUPPORTED = {
    **dict.fromkeys(("transformer", "transformer_align", "bart", "roberta_enc_dec", "tts_transformer"), BOTH),
    **dict.fromkeys(("nonautoregressive_transformer", "nacrf_transformer", "cmlm_transformer"), BOTH),
    **dict.fromkeys(("iterative_nonautoregressive_transformer", "insertion_transformer"), BOTH),
    **dict.fromkeys(("levenshtein_transformer", "transformer_from_pretrained_xlm"), BOTH),
    **dict.fromkeys(("s2t_transformer", "s2t_conformer", "convtransformer"), BOTH),
    **dict.fromkeys(("s2ut_transformer", "s2ut_conformer", "s2spect_transformer", "s2spect_conformer"), BOTH),
    **dict.fromkeys(("unity_conformer", "s2spect2_conformer", "xm_transformer", "unity_xm_transformer"), BOTH),
    **dict.fromkeys(("wav2vec_seq2seq", "hubert_seq2seq", "multilingual_transformer"), BOTH),
    **dict.fromkeys(("roberta", "camembert", "gottbert", "xlmr", "xmod", "masked_lm"), ENCODER),
    **dict.fromkeys(("wav2vec2", "wav2vec_ctc", "wav2vec2_laser", "wav2vec_classification"), ENCODER),
    **dict.fromkeys(("hubert", "hubert_ctc"), ENCODER),
    **dict.fromkeys(("transformer_lm", "transformer_ulm", "speech_dlm"), DECODER),
    **dict.fromkeys(("fastspeech2", "multires_hubert", "multires_hubert_ctc"), ("enc-self", "dec-self")),
    "lightconv": ("dec-enc",),
}
TWO_DECODERS = ("s2ut_transformer", "s2ut_conformer", "s2spect_transformer", "s2spect_conformer", "xm_transformer")
TWO_DECODERS += ("unity_conformer", "s2spect2_conformer", "unity_xm_transformer", "multilingual_transformer")
TWO_ENCODERS = (
    "unity_conformer",
    "s2spect2_conformer",
    "unity_xm_transformer",
    "multires_hubert",
    "multires_hubert_ctc",
)
CONVOLUTIONS = {f"{side}_layers": "[(16, 3)] * 2" for side in ("encoder", "decoder")}
OF_FCONV = {"project_input": "False", "gated_attention": "False", "downsample": "False", "self_attention": "True"}


def in_stages():
    """A model that cannot be built here, because another package is missing: its class and one of its modules."""
    model_class = MODEL_REGISTRY["pipeline_parallel_transformer"]
    model = model_class.__new__(model_class)
    nn.Module.__init__(model)
    model.attention = MultiheadAttention(8, 2)
    return model


NO_ATTENTION = "it has no attention"
# Models that are refused: one for each reason, how a test gets it, and the reason; and those that are like them.
REFUSED = {
    "lstm": (lambda: build("lstm", criterion=""), "its attention is of class AttentionLayer"),
    "fconv_self_att": (
        lambda: build("fconv_self_att", **CONVOLUTIONS, **OF_FCONV, encoder_attention="False"),
        "of class DownsampledMultiHeadAttention, SelfAttention, SingleHeadAttention",
    ),
    "lightconv_lm": (lambda: build("lightconv_lm"), NO_ATTENTION),
    "pipeline_parallel_transformer": (in_stages, "stages of a pipeline"),
}
ALIKE = {"lstm_lm", "fconv", "fconv_lm", "s2t_berard", "tacotron_2", "wav2vec", "dummy_model", "CodeHiFiGANVocoder"}
ALIKE |= {"hf_gpt2", *(f"model_parallel_{name}" for name in ("transformer", "transformer_lm", "roberta"))}


ABSENT, FROM_FILES = "this version of fairseq has no such model", "this version of fairseq builds it from files"
LACKING = {name: ABSENT for name in (*SUPPORTED, *REFUSED) if name not in MODEL_REGISTRY}
if IS_0_12_2:
    LACKING |= dict.fromkeys(("s2ut_conformer", "xm_transformer"), FROM_FILES)
if importlib.util.find_spec("fairseq.libnat") is None:
    LACKING |= dict.fromkeys(("insertion_transformer", "levenshtein_transformer"), "fairseq was built without libnat")


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    """fairseq's CRF needs a name that numpy 1.24 removed; its speech models log their whole configuration."""
    monkeypatch.setattr(np, "float", float, raising=False)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def each(names):
    """Parameters of a test: the names of models, of which this version of fairseq lacks some."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(name in LACKING, reason=LACKING.get(name, ABSENT)))
        for name in names
    ]


def test_every_model_of_fairseq_is_supported_or_refused():
    stock = {name for name, cls in MODEL_REGISTRY.items() if cls.__module__.startswith("fairseq.")}
    assert stock <= {*SUPPORTED, *REFUSED, *ALIKE}
    assert not SUPPORTED.keys() & {*REFUSED, *ALIKE} and SUPPORTED.keys() == CASES.keys()


def strong(model):
    """Give attention large weights, so that every head matters: some models start with tiny ones."""
    generator = torch.Generator().manual_seed(1)
    for module in attention_modules(model):
        for parameter in module.attention.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def test_the_documentation_lists_every_model():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    supported, _, refused = page.partition("## Models that are refused")
    assert set(SUPPORTED) <= set(re.findall(r"`(\w+)`", supported))
    assert {*REFUSED, *ALIKE} <= set(re.findall(r"`(\w+)`", refused))


def run(model, case):
    """The output of a model in evaluation, without a graph."""
    with torch.no_grad():
        return case.run(model.eval())


def train(model, case):
    """Two updates with the loss of a test and the penalty. Every gate gets a gradient."""
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        (case.run(model).square().mean() + 0.1 * l0_penalty(model)).backward()
        assert all(module.attention.gate.theta.grad.abs().sum() > 0 for module in attention_modules(model))
        optimizer.step()


def close_some(model):
    """Set every gate: in each layer one is closed and two are between 0 and 1."""
    for module in attention_modules(model):
        values = torch.tensor([20.0, -0.4, 0.4, -20.0]).roll(module.layer)
        with torch.no_grad():
            module.attention.gate.theta.copy_(values)


@pytest.mark.cases(12)
@pytest.mark.parametrize("name", each(SUPPORTED))
def test_a_model_is_gated_trained_and_pruned(name):
    case = CASES[name]
    model = strong(case.build())
    stock = run(model, case)
    types = SUPPORTED[name]
    layers = dict.fromkeys(types, 2)
    layers.update({attention_type: 4 for attention_type in ("dec-self", "dec-enc") if name in TWO_DECODERS})
    layers.update({"enc-self": 4} if name in TWO_ENCODERS else {})
    assert {attention_type: tuple(gates.shape) for attention_type, gates in gate_values(model).items()} == {
        attention_type: (number, 4) for attention_type, number in layers.items()
    }
    insert_gates(model, types)
    torch.testing.assert_close(run(model, case), stock, atol=1e-5, rtol=1e-5)

    train(model, case)
    close_some(model)
    pruned = prune(model)  # right after an update
    gated = run(model, case)
    torch.testing.assert_close(run(pruned, case), gated, atol=1e-5, rtol=1e-5)
    sizes = [sum(p.numel() for p in some.parameters() if p.dim() > 1) for some in (pruned, model)]
    assert sizes[0] < sizes[1]
    assert all(len(module.attention.kept) == 3 for module in attention_modules(pruned))

    with observe(model) as seen:
        torch.testing.assert_close(run(model, case), gated, atol=1e-5, rtol=1e-5)
    assert set(seen) == set(types)

    mask = {attention_type: (gates > 0.5).int() for attention_type, gates in gate_values(model).items()}
    with masked(model, mask):
        expected = run(model, case)
    assert (expected - gated).abs().max() > 1e-3
    torch.testing.assert_close(run(prune(model, mask), case), expected, atol=1e-5, rtol=1e-5)


def search(model, name):
    """The tokens and scores that beam search finds."""
    generator = SequenceGenerator([model.eval()], text_task().dictionary, beam_size=3, max_len_b=5)
    found = generator.generate([model], {"net_input": SEARCHED[name]})
    tokens = [hypothesis["tokens"].tolist() for beam in found for hypothesis in beam]
    return tokens, torch.tensor([hypothesis["score"] for beam in found for hypothesis in beam])


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", each(SEARCHED))
def test_beam_search_finds_the_same(name):
    """Stock and open; gated and pruned."""
    model = strong(CASES[name].build())
    stock = search(model, name)
    opened = search(insert_gates(model, SUPPORTED[name]), name)
    close_some(model)
    gated, pruned = search(model, name), search(prune(model), name)
    for one, other in ((stock, opened), (gated, pruned)):
        assert one[0] == other[0]
        torch.testing.assert_close(one[1], other[1], atol=1e-4, rtol=1e-4)


def test_encoder_states_that_are_not_repeated_for_hypotheses():
    """BART's are not. In a batch with equal sentences they look repeated; then the first of them ends."""
    stock = MultiheadAttention(16, 4, encoder_decoder_attention=True).eval()
    states = torch.randn(7, 2, 16).repeat_interleave(3, dim=1)
    padding = torch.arange(7) >= torch.tensor([7, 7, 7, 4, 4, 4])[:, None]
    queries = torch.randn(1, 18, 16)
    outputs = []
    for attention in (stock, HeadAttention(stock)):
        attention.set_beam_size(3)
        cache, order = {}, torch.arange(9, 18)
        with torch.no_grad():
            first, _ = attention(queries, states, states, padding, cache, static_kv=True)
            attention.reorder_incremental_state(cache, order)
            left = {"key": states[:, 3:], "value": states[:, 3:], "key_padding_mask": padding[3:]}
            second, _ = attention(queries[:, order], **left, incremental_state=cache, static_kv=True)
        outputs.append(torch.cat([first, second], dim=1))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("name", each(REFUSED))
def test_a_model_is_refused_with_its_reason(name):
    make, reason = REFUSED[name]
    model = make()
    functions = [lambda: insert_gates(model, ["enc-self"]), lambda: prune(model), lambda: gate_values(model)]
    functions += [lambda: open_probabilities(model), lambda: observe(model).__enter__()]
    for function in functions:
        with pytest.raises(ValueError, match=f"^{type(model).__name__} .*{reason}.*choose") as error:
            function()
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="no stochastic gates"):
        l0_penalty(model)


# --- names and numbers of layers -------------------------------------------------------------------------------------


def names(model, attention_type):
    return [module.name for module in attention_modules(model) if module.attention_type == attention_type]


def test_layers_of_a_type_are_counted_over_all_parts_of_a_model():
    model = multilingual(share_encoders=True)
    assert names(model, "enc-self") == [f"models.en-de.encoder.layers.{i}.self_attn" for i in (0, 1)]
    assert names(model, "dec-enc") == [
        f"models.{pair}.decoder.layers.{i}.encoder_attn" for pair in ("en-de", "en-fr") for i in (0, 1)
    ]
    assert [module.layer for module in attention_modules(model)] == [0, 1, *range(4), *range(4)]
    insert_gates(model, TYPES, init=0.0)  # the second model shares the layers of the encoder
    assert isinstance(model.models["en-fr"].encoder.layers[1].self_attn, HeadAttention)
    assert isinstance(model.models["en-fr"].decoder.layers[1].self_attn, HeadAttention)
    for part in model.train().models.values():  # fairseq trains one after the other, with new gates each time
        assert unwrapped(part) is model
        assert not torch.equal(part(**TEXT)[0], part(**TEXT)[0])


def test_decoders_of_auxiliary_tasks_are_named_dec_self():
    model = speech_model("s2ut_transformer", True)
    assert names(model, "dec-self")[2:] == [f"letters_decoder.layers.{i}.self_attn" for i in (0, 1)]
    speech = build("fastspeech2")
    assert names(speech, "dec-self") == [f"encoder.decoder_fft_layers.{i}.self_attn" for i in (0, 1)]


@pytest.mark.skipif("speech_dlm" in LACKING, reason=ABSENT)
def test_cross_channel_attention_is_not_replaced():
    model = insert_gates(CASES["speech_dlm"].build(), ["dec-self"])
    assert type(model.decoder.layers[1].cross_channel_attn) is MultiheadAttention
    assert names(model, "dec-self") == [f"decoder.layers.{i}.self_attn" for i in (0, 1)]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_type_whose_attention_is_another_class_is_refused():
    model = build("s2t_conformer", attn_type="espnet", pos_enc_type="rel_pos")
    with pytest.raises(ValueError, match="no enc-self attention .* dec-self .*RelPositionMultiHeadedAttention"):
        insert_gates(model, ["enc-self"])
    assert list(gate_values(insert_gates(model, ["dec-self"]))) == ["dec-self", "dec-enc"]


def test_a_subclass_with_a_forward_pass_of_its_own_is_refused():
    model = build("transformer")
    model.encoder.layers[0].self_attn = SparseMultiheadAttention(16, 4, self_attention=True)
    for function in (lambda: insert_gates(model, ["dec-enc"]), lambda: prune(model)):
        with pytest.raises(
            ValueError, match="forward pass of its own .class SparseMultiheadAttention.*build the model"
        ):
            function()
    assert not any(isinstance(module, HeadAttention) for module in model.modules())


def test_different_numbers_of_heads_in_one_type_are_refused():
    model = build("transformer")
    model.encoder.layers[1].self_attn = MultiheadAttention(16, 2, self_attention=True)
    for function in (lambda: insert_gates(model, ["dec-enc"]), lambda: prune(model), lambda: gate_values(model)):
        with pytest.raises(ValueError, match="TransformerModel has enc-self layers with 2 and 4 heads: .*build"):
            function()
    assert text(model).isfinite().all()
