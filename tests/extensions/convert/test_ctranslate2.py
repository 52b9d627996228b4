"""What CTranslate2 computes and searches with a converted model, against fairseq."""

import copy
import json
import random
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.ctranslate2 import DICTIONARY, convert, ctranslate2
from support.language_models import make_lm
from support.models import PAD, VOCABULARY, make_stock

from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.attention.cuts import prune, remove_heads
from fairseq_headgates.attention.hooks import observe
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.attention.neurons import set_ffn_dims
from fairseq_headgates.compat import mend_swish
from fairseq_headgates.extensions.convert.ctranslate2 import to_ctranslate2
from fairseq_headgates.heads import TYPES, HeadId, HeadTable

EOS = DICTIONARY.eos()
TOLERANCE = 1e-5  # of a log-probability in single precision; the largest difference seen is 1.5e-6

POST = {"encoder_normalize_before": False, "decoder_normalize_before": False}
SHARED = {"share_all_embeddings": True}
VARIANTS = {
    "pre-norm": {},
    "post-norm": POST,
    "pre-norm encoder, post-norm decoder": {"decoder_normalize_before": False},
    "shared embeddings": SHARED,
    "shared decoder embeddings": {"share_decoder_input_output_embed": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "normalised embeddings": {"layernorm_embedding": True},
    "unscaled embeddings": {"no_scale_embedding": True},
    "no final norm": {"no_decoder_final_norm": True},
    "wider encoder": {"encoder_embed_dim": 48},
    "more encoder layers": {"encoder_layers": 3, "encoder_layerdrop": 0.5},
    "tanh": {"activation_fn": "tanh"},
    "gelu": {"activation_fn": "gelu"},
    "gelu_accurate": {"activation_fn": "gelu_accurate"},
    "swish": {"activation_fn": "swish"},
}
FULL = {attention_type: [[1, 1, 1, 1]] * 3 for attention_type in TYPES}
SOME = {
    "enc-self": [[0, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]],
    "dec-self": [[0, 0, 0, 0], [1, 1, 0, 0]],
    "dec-enc": [[0, 1, 1, 1], [0, 0, 1, 0]],
}
NO_ENCODER_HEADS = {**FULL, "enc-self": [[0, 0, 0, 0]] * 3}
NO_DECODER_HEADS = {
    **NO_ENCODER_HEADS,
    "enc-self": SOME["enc-self"],
    "dec-self": [[0] * 4] * 2,
    "dec-enc": [[0] * 4] * 2,
}
NONE = {attention_type: [[0, 0, 0, 0]] * 3 for attention_type in TYPES}
TOLERANCES = {
    "float32": TOLERANCE, "float16": 0.02, "bfloat16": 0.1, "int16": 0.05, "int8": 0.3, "int8_float16": 0.3
}  # fmt: skip

layers = st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=2, max_size=2)
masks = st.fixed_dictionaries(dict.fromkeys(TYPES, layers))


def make_model(**options):
    """A stock model that hides no mistake: sharp attention, and biases and norms that are not 0 and 1."""
    model = make_stock(**options)
    mend_swish(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
            elif "attn" in name:
                parameter *= 2
    return model


def zeroed(model, mask):
    """The stock model with the columns of the removed heads set to 0: what the converted model must compute."""
    model = copy.deepcopy(model)
    for module in attention_modules(model):
        alive = (
            torch.tensor(mask[module.attention_type][module.layer]).bool().repeat_interleave(module.attention.head_dim)
        )
        module.attention.out_proj.weight.data[:, ~alive] = 0
    return model


def without_neurons(model, dims):
    """The model with the columns of all but the first neurons of each feed-forward block set to 0, in place."""
    for side, numbers in dims.items():
        for layer, number in zip(getattr(model, side).layers, numbers, strict=True):
            layer.fc2.weight.data[:, number:] = 0
    return model


def without_heads(model, mask):
    """The model with the weights of the removed heads taken out."""
    rows = {attention_type: mask[attention_type][:number] for attention_type, (number, _) in head_counts(model).items()}
    return remove_heads(copy.deepcopy(model), HeadTable(rows))


def make_sentences(seed, number=6, vocabulary=VOCABULARY):
    rng = random.Random(seed)
    return [[rng.randrange(4, vocabulary) for _ in range(rng.randint(1, 9))] for _ in range(number)]


def words(sentences):
    return [[DICTIONARY[token] for token in sentence] for sentence in sentences]


def source_batch(sources):
    """[B, S], padded on the left as fairseq pads."""
    length = max(map(len, sources)) + 1
    tokens = torch.tensor([[PAD] * (length - len(source) - 1) + source + [EOS] for source in sources])
    return {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}


def target_batch(targets):
    """What the decoder reads and what it is to say, both [B, T]."""
    length = max(map(len, targets)) + 1
    paddings = [[PAD] * (length - 1 - len(target)) for target in targets]
    read = [[EOS, *target, *padding] for target, padding in zip(targets, paddings, strict=True)]
    say = [[*target, EOS, *padding] for target, padding in zip(targets, paddings, strict=True)]
    return torch.tensor(read), torch.tensor(say)


def log_probabilities(model, sources, targets):
    """log p of each target token, </s> last, by fairseq: one list for every sentence."""
    read, say = target_batch(targets)
    with torch.no_grad():
        table = model(**source_batch(sources), prev_output_tokens=read)[0].log_softmax(-1)
    chosen = table.gather(2, say[:, :, None]).squeeze(2)
    return [row[: len(target) + 1].tolist() for row, target in zip(chosen, targets, strict=True)]


def assert_same_scores(translator, reference, tolerance=TOLERANCE):
    sources, targets = make_sentences(1), make_sentences(2)
    scored = translator.score_batch(words(sources), words(targets))
    for actual, expected in zip(scored, log_probabilities(reference, sources, targets), strict=True):
        assert actual.log_probs == pytest.approx(expected, abs=tolerance, rel=0)


# What it computes


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    ("options", "mask"),
    [
        *(pytest.param(options, SOME, id=name) for name, options in VARIANTS.items()),
        pytest.param({}, FULL, id="all heads"),
    ],
)
def test_log_probabilities_are_those_of_fairseq(options, mask, tmp_path):
    model = make_model(**options)
    assert_same_scores(convert(without_heads(model, mask), tmp_path), zeroed(model, mask))


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [{}, POST], ids=["pre-norm", "post-norm"])
@example(NO_ENCODER_HEADS)
@example(NO_DECODER_HEADS)
@example(NONE)
@given(masks)
@settings(max_examples=5)
def test_an_export_without_any_of_the_heads_computes_the_same(options, mask):
    model = make_model(**options)
    with tempfile.TemporaryDirectory() as folder:
        assert_same_scores(convert(without_heads(model, mask), Path(folder)), zeroed(model, mask))


def test_a_stock_attention_and_other_numbers_of_heads_in_the_decoder(tmp_path):
    model = make_model(encoder_attention_heads=8)
    assert_same_scores(convert(model, tmp_path), model)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_a_model_in_half_precision_and_training_mode_is_exported(dtype, tmp_path):
    model = make_model(encoder_layers=5, encoder_layerdrop=0.9).to(dtype)
    assert_same_scores(convert(copy.deepcopy(model).train(), tmp_path), model.float())


def test_the_vocabulary_is_named_as_ctranslate2_names_it(tmp_path):
    convert(make_model(), tmp_path)
    vocabulary = json.loads((tmp_path / "model" / "shared_vocabulary.json").read_text())
    assert vocabulary[:5] == ["<s>", "<blank>", "</s>", "<unk>", "w0"] and len(vocabulary) == len(DICTIONARY)


@pytest.mark.cases(6)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("quantization", "mask"),
    [
        *((quantization, SOME) for quantization in TOLERANCES),
        *(("int8", mask) for mask in (FULL, NO_ENCODER_HEADS, NO_DECODER_HEADS, NONE)),
    ],
)
def test_quantization(quantization, mask, tmp_path):
    model, tolerance = make_model(), TOLERANCES[quantization]
    assert_same_scores(convert(without_heads(model, mask), tmp_path, quantization), zeroed(model, mask), tolerance)


@pytest.mark.cases(3)
@pytest.mark.parametrize("quantization", [None, "int16", "int8"])
@pytest.mark.parametrize(
    "dims",
    [{"encoder": [64, 0]}, {"encoder": [0, 5], "decoder": [64, 0]}, {"encoder": [0, 0], "decoder": [0, 0]}],
    ids=["one", "two", "all"],
)
def test_feed_forward_blocks_without_neurons(dims, quantization, tmp_path):
    """In single precision, and as CTranslate2 computes by default: in the type of the weights, where it can."""
    model, found, tolerance = make_model(), [], TOLERANCES[quantization or "float32"]
    whole = without_neurons(model, dims)
    for name, each in {"small": set_ffn_dims(copy.deepcopy(model), dims), "whole": whole}.items():
        (tmp_path / name).mkdir()
        assert_same_scores(convert(each, tmp_path / name, quantization), whole, tolerance)
        translator = ctranslate2.Translator(str(tmp_path / name / "model"), intra_threads=1)
        scored = translator.score_batch(words(make_sentences(1)), words(make_sentences(2)))
        found.append([score for sentence in scored for score in sentence.log_probs])
    assert found[0] == pytest.approx(found[1], abs=tolerance, rel=0)


def test_export_leaves_the_model_unchanged(tmp_path):
    model = without_heads(make_model(), SOME)
    before = copy.deepcopy(model.state_dict())
    convert(model, tmp_path, "int8")
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_returned_attention_is_that_of_fairseq(tmp_path):
    """The mean over the heads that are left in the last layer."""
    model = without_heads(make_model(), {**SOME, "dec-enc": [[1, 1, 0, 1], [0, 1, 1, 0]]}).eval()
    (source,) = make_sentences(4, number=1)
    found = convert(model, tmp_path).translate_batch(
        words([source]), beam_size=1, max_decoding_length=5, min_decoding_length=5, return_attention=True
    )[0]
    said = [DICTIONARY.index(word) for word in found.hypotheses[0]]
    with torch.no_grad():
        attention = model(**source_batch([source]), prev_output_tokens=target_batch([said])[0])[1]["attn"][0]
    expected = attention[0, : len(said), : len(source)]  # CTranslate2 leaves out </s>
    torch.testing.assert_close(torch.tensor(found.attention[0]), expected, atol=TOLERANCE, rtol=0)


def test_returned_attention_is_that_of_the_alignment_heads(tmp_path):
    """The mean of two heads of the first layer, in a model without some heads; translations do not change."""
    model = without_heads(make_model(), {**SOME, "dec-enc": [[1, 0, 1, 1], [0, 1, 1, 0]]})
    (source,) = make_sentences(4, number=1)
    search = {"beam_size": 1, "max_decoding_length": 5, "min_decoding_length": 5, "return_attention": True}
    heads = [HeadId("dec-enc", 0, 3), HeadId("dec-enc", 0, 0)]
    (found,) = convert(model, tmp_path, alignment_heads=heads).translate_batch(words([source]), **search)
    (before,) = convert(model, tmp_path, force=True).translate_batch(words([source]), **search)
    assert found.hypotheses == before.hypotheses and found.attention != before.attention
    said = [DICTIONARY.index(word) for word in found.hypotheses[0]]
    with torch.no_grad(), observe(model) as seen:
        model(**source_batch([source]), prev_output_tokens=target_batch([said])[0])
    expected = seen["dec-enc"][0].weights[0, [0, 2]].mean(0)[: len(said), : len(source)]  # heads 0 and 3 of 0, 2, 3
    torch.testing.assert_close(torch.tensor(found.attention[0]), expected, atol=TOLERANCE, rtol=0)
    for wrong, reason in (([HeadId("dec-enc", 0, 1)], "removed"), ([heads[0], HeadId("dec-enc", 1, 1)], "several")):
        with pytest.raises(ValueError, match=reason):
            convert(model, tmp_path, alignment_heads=wrong, force=True)


# Language models


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ({}, [64, 64]),
        ({"decoder_normalize_before": True, "activation_fn": "gelu"}, [5, 0]),
        ({"add_bos_token": True}, [0, 0]),
    ],
)
def test_a_language_model_becomes_a_generator(options, dims, tmp_path):
    pruned = prune(make_lm(**options), {"dec-self": [[0, 1, 1, 0], [0, 0, 0, 0]]})
    smaller = set_ffn_dims(copy.deepcopy(pruned), {"decoder": dims})
    to_ctranslate2(smaller, DICTIONARY, DICTIONARY, tmp_path / "model")
    pruned = without_neurons(pruned, {"decoder": dims})
    generator = ctranslate2.Generator(str(tmp_path / "model"), compute_type="float32", intra_threads=1)
    first = DICTIONARY.bos() if options.get("add_bos_token") else EOS
    texts = [[first, *text] for text in make_sentences(1)]
    for text, scored in zip(texts, generator.score_batch(words(texts)), strict=True):
        with torch.no_grad():
            table = pruned(torch.tensor([text]))[0][0].log_softmax(-1)
        expected = table[:-1].gather(1, torch.tensor(text[1:])[:, None]).flatten().tolist()
        assert scored.log_probs == pytest.approx(expected, abs=TOLERANCE, rel=0)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["bos_token"] == DICTIONARY[first]
