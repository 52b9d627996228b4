"""Language models and RoBERTa compute what fairseq's do; gated, masked, pruned and exported alike; losses."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from support import classifiers, language_models
from support.classifiers import CLASSIFICATION, HEAD, MASKED_LM, make_roberta, make_sentences, masked_sample
from support.language_models import make_lm, make_lm_sample, make_text
from support.models import logits, make_task
from support.training import assert_penalty_in_training_only

from fairseq_headgates import HeadTable, attention_modules, gate_values, masked, prune
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.safety.checkpoint import model_args
from fairseq_headgates.scores.ablation import ablation_losses

PRESETS = [f"transformer{name}" for name in ("", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_vaswani_wmt_en_de_big")]
PRESETS += [name for name, model in ARCH_MODEL_REGISTRY.items() if model is TransformerLanguageModel]
PRESETS += [name for name, model in ARCH_MODEL_REGISTRY.items() if model is RobertaModel and name.startswith("roberta")]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_those_of_fairseq(preset):
    """The options that fairseq's own preset sets; of a language model also the defaults of its model for all others."""
    family = next(name for name in ("transformer_lm", "transformer", "roberta") if preset.startswith(name))
    name, ours, stock = preset.replace(family, f"{family}_head_gates", 1), argparse.Namespace(), argparse.Namespace()
    ARCH_CONFIG_REGISTRY[name](ours)
    ARCH_CONFIG_REGISTRY.get(preset, lambda args: None)(stock)
    assert vars(ours).items() >= vars(stock).items() and ARCH_MODEL_REGISTRY[name].__name__.endswith("HeadGatesModel")
    assert vars(ours).keys() == vars(stock).keys() or family == "transformer_lm"


@dataclass(frozen=True)
class Variant:
    """A model of the plugin and its twin in fairseq.

    Attributes:
        attention_type: of its heads
        make: builds it with further options
        stock: the class of its twin
        run: what a model computes
    """

    attention_type: str
    make: Callable
    stock: type
    run: Callable


def classes(model):
    """p of the classes of three sentences."""
    with torch.no_grad():
        return model(**make_sentences()["net_input"], classification_head_name=HEAD)[0].softmax(-1)


VARIANTS = {
    f"language model, {name}": Variant(
        "dec-self",
        partial(make_lm, **options),
        TransformerLanguageModel,
        lambda model: logits(model, make_text()),
    )
    for name, options in language_models.VARIANTS.items()
} | {
    f"RoBERTa, {name}": Variant(
        "enc-self",
        partial(make_roberta, **options),
        RobertaModel,
        lambda model: classifiers.states(model, make_sentences()),
    )
    for name, options in classifiers.VARIANTS.items()
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def test_a_stock_checkpoint_starts_a_gated_model_with_the_same_output(variant):
    stock, plain = variant.make(3, variant.stock), variant.make()
    assert plain.state_dict().keys() == stock.state_dict().keys()
    ours = variant.make(gate_heads=variant.attention_type)
    missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
    assert all("gate" in name for name in missing) and not unexpected
    torch.testing.assert_close(variant.run(ours), variant.run(stock), rtol=0, atol=1e-6)
    if variant.stock is RobertaModel:
        torch.testing.assert_close(classes(ours), classes(stock), rtol=0, atol=1e-6)


def test_gated_masked_pruned_and_stock_compute_the_same(variant):
    """Gates that are closed, open and between; a layer without heads."""
    model = variant.make(gate_heads=variant.attention_type)
    for module, row in zip(attention_modules(model), ([-3.0, 0.4, 3.0, -0.5], [-3.0] * 4), strict=True):
        module.attention.gate.load_state_dict({"log_alpha": torch.tensor(row)})
    open_heads = HeadTable({each: (values > 0).int().tolist() for each, values in gate_values(model).items()})
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}
    exported = stock_checkpoint(state, open_heads)
    args = model_args(exported)
    assert args.arch == variant.stock.__module__.split(".")[2]
    stock = variant.stock.build_model(args, make_task())
    if variant.stock is RobertaModel:
        stock.register_classification_head(HEAD, num_classes=2)
    stock.load_state_dict(exported["model"], strict=True)
    pruned = prune(model)
    attention = [module.attention for module in attention_modules(pruned)]
    assert [each.num_heads for each in attention] == [3, 0] and attention[1].q_proj is None
    expected = variant.run(model)
    with masked(model, open_heads):
        torch.testing.assert_close(variant.run(model), expected, rtol=1e-5, atol=1e-5)
    for other in (pruned, build_model(prune_checkpoint(state, open_heads)), stock.eval()):
        torch.testing.assert_close(variant.run(other), expected, rtol=1e-5, atol=1e-5)
        if variant.stock is RobertaModel:
            torch.testing.assert_close(classes(other), classes(model), rtol=0, atol=1e-6)


def criterions(name):
    """A model with gates, a sample, a criterion of the plugin and that of fairseq."""
    if name in ("cross_entropy", "adaptive_loss"):
        variant = "adaptive" if name == "adaptive_loss" else "pre-norm"
        model = make_lm(**language_models.VARIANTS[variant], gate_heads="dec-self", gate_init="1")
        stock = {"cross_entropy": CrossEntropyCriterion, "adaptive_loss": AdaptiveLoss}[name]
        return model, make_lm_sample(), PENALISED[name](make_task(), False), stock(make_task(), False)
    model = make_roberta(gate_heads="enc-self", gate_init="1")
    if name == "masked_lm":
        cfg = MaskedLmConfig(tpu=False)
        return model, masked_sample(), PENALISED[name](cfg, MASKED_LM), MaskedLmLoss(cfg, MASKED_LM)
    cfg, task = SentencePredictionConfig(classification_head_name=HEAD), CLASSIFICATION
    return model, make_sentences(), PENALISED[name](cfg, task), SentencePredictionCriterion(cfg, task)


@pytest.mark.parametrize("name", ["cross_entropy", "adaptive_loss", "masked_lm", "sentence_prediction"])
def test_the_criterion_adds_lambda_times_the_penalty_in_training_only(name):
    size, penalty, logs = assert_penalty_in_training_only(*criterions(name))
    assert logs["l0"].item() == pytest.approx(penalty * size)
    assert 8 * size in (logs.get(f"heads_open_{each}", torch.zeros(())).item() for each in ("dec_self", "enc_self"))


CORPORA = {
    "language model": (make_lm, Corpus(make_task(), [make_lm_sample(seed) for seed in (0, 1)])),
    "adaptive": (partial(make_lm, **language_models.VARIANTS["adaptive"]), Corpus(make_task(), [make_lm_sample()])),
    "classes": (make_roberta, Corpus(CLASSIFICATION, [make_sentences()])),
    "masked tokens": (make_roberta, Corpus(MASKED_LM, [masked_sample()])),
}


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("mode", ["single", "all-but-one"])
def test_ablation_is_the_loss_of_the_masked_model(name, mode):
    make, corpus = CORPORA[name]
    model = make(2)
    whole, losses = ablation_losses(model, corpus, mode)
    assert whole == pytest.approx(mean_loss(model, corpus), rel=1e-6)
    for (attention_type, layer, head), found in losses.items():
        row = [int((i == head) == (mode == "all-but-one")) for i in range(4)]
        with masked(model, {attention_type: [row if i == layer else [1] * 4 for i in range(2)]}):
            assert found == pytest.approx(mean_loss(model, corpus), rel=1e-5, abs=1e-5), head
