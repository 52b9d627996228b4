"""RoBERTa: the same as fairseq's, gated, masked and pruned; losses, scores and accuracy; what is refused."""

import argparse
import math

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from support.any_model import build
from support.classifiers import HEAD, VARIANTS, make_roberta, make_sentences, make_stock_roberta, states
from support.models import PAD, make_task
from support.training import assert_penalty_in_training_only

from fairseq_headgates import HeadTable, gate_values, head_sites, importance, masked, prune, relevance
from fairseq_headgates.analysis.ablation import ablation_losses
from fairseq_headgates.analysis.options import FunctionOptions, ScoreOptions
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.evaluation.corpus import Corpus, load_dataset
from fairseq_headgates.evaluation.corpus_losses import mean_loss
from fairseq_headgates.evaluation.metrics import Accuracy
from fairseq_headgates.evaluation.statistics import mcnemar
from fairseq_headgates.extensions.functions.counting import Annotations, count_functions
from fairseq_headgates.extensions.functions.results import functions_of
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.plugin.models.roberta import RobertaHeadGatesModel
from fairseq_headgates.safety.checkpoint import model_args

MASK = HeadTable({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]]})
variants = pytest.mark.parametrize("variant", VARIANTS)
PRESETS = [
    name.removeprefix("roberta")
    for name, model in ARCH_MODEL_REGISTRY.items()
    if model is RobertaModel and name.startswith("roberta")
]


def task_of(kind, **options):
    """The task of fairseq without its data, on the dictionary of other tests."""
    task = kind.__new__(kind)
    options = {"classification_head_name": HEAD, "num_classes": 2, "regression_target": False, **options}
    task.cfg, task.dictionary = argparse.Namespace(**options), make_task().source_dictionary
    task._label_dictionary = task.dictionary
    return task


CLASSES, MASKED_LM = task_of(SentencePredictionTask), task_of(MaskedLMTask)


def masked_sample():
    """Sentences with every third token to be predicted."""
    sample = make_sentences()
    tokens = sample["net_input"]["src_tokens"]
    chosen = tokens.ge(4) & (torch.arange(9) % 3 == 1)
    sample["target"] = torch.where(chosen, tokens, PAD)
    sample["net_input"]["src_tokens"] = torch.where(chosen, 4, tokens)
    return sample


def gated(variant, **options):
    """A model with gates that are closed, open and between."""
    model = make_roberta(**VARIANTS[variant], gate_heads="enc-self", **options)
    for i, site in enumerate(head_sites(model)):
        site.attention.gate.load_state_dict({"log_alpha": torch.tensor([-3.0, 0.4, 3.0, -0.5]) + 0.1 * i})
    return model


def probabilities(model, sample):
    """p of every class, by the plain definition."""
    with torch.no_grad():
        return model(**sample["net_input"], classification_head_name=HEAD)[0].double().softmax(-1)


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_those_of_fairseq(preset):
    ours, stock = argparse.Namespace(), argparse.Namespace()
    ARCH_CONFIG_REGISTRY["roberta_head_gates" + preset](ours)
    ARCH_CONFIG_REGISTRY["roberta" + preset](stock)
    assert vars(ours) == vars(stock) and ARCH_MODEL_REGISTRY["roberta_head_gates" + preset] is RobertaHeadGatesModel


@variants
def test_a_stock_checkpoint_starts_a_gated_model_with_the_same_output(variant):
    stock, ours = make_stock_roberta(3, **VARIANTS[variant]), make_roberta(**VARIANTS[variant], gate_heads="enc-self")
    missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
    assert all("gate" in name for name in missing) and not unexpected
    sample = make_sentences()
    torch.testing.assert_close(states(ours, sample), states(stock, sample), rtol=0, atol=1e-5)
    torch.testing.assert_close(probabilities(ours, sample), probabilities(stock, sample), rtol=0, atol=1e-6)


@variants
def test_gated_masked_pruned_and_stock_compute_the_same(variant):
    model, sample = gated(variant), make_sentences()
    open_heads = HeadTable({each: (values > 0).int().tolist() for each, values in gate_values(model).items()})
    expected = states(model, sample)
    with masked(model, open_heads):
        torch.testing.assert_close(states(model, sample), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states(prune(model), sample), expected, rtol=1e-5, atol=1e-5)
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}
    rebuilt = build_model(prune_checkpoint(state, open_heads))
    torch.testing.assert_close(states(rebuilt, sample), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(probabilities(rebuilt, sample), probabilities(model, sample), rtol=0, atol=1e-6)
    exported = stock_checkpoint(state, open_heads)
    args = model_args(exported)
    stock = RobertaModel.build_model(args, make_task()).eval()
    stock.register_classification_head(HEAD, num_classes=2)
    stock.load_state_dict(exported["model"], strict=True)
    assert args.arch == "roberta"
    torch.testing.assert_close(states(stock, sample), expected, rtol=1e-5, atol=1e-5)


@variants
def test_a_layer_without_heads(variant):
    model, sample = make_roberta(**VARIANTS[variant]), make_sentences()
    with masked(model, MASK):
        expected = states(model, sample)
    pruned = prune(model, MASK)
    torch.testing.assert_close(states(pruned, sample), expected, rtol=1e-5, atol=1e-5)
    assert [site.attention.num_heads for site in head_sites(pruned)] == [3, 0]


def test_parameter_names_of_old_roberta_checkpoints_are_converted():
    """Published models have them: the encoder is called "decoder", its first norm emb_layer_norm."""
    model, sample = make_stock_roberta(1), make_sentences()
    old = {
        name.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm"): weight
        for name, weight in model.state_dict().items()
    }
    assert any(name.startswith("decoder.sentence_encoder.emb_layer_norm") for name in old)
    state = {"args": model.args, "model": old}
    torch.testing.assert_close(states(build_model(state), sample), states(model, sample), rtol=0, atol=1e-5)
    pruned = build_model(prune_checkpoint(state, MASK))
    torch.testing.assert_close(states(pruned, sample), states(prune(model, MASK), sample), rtol=1e-5, atol=1e-5)


# --- losses, scores and accuracy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "masked"])
def test_the_criterion_adds_lambda_times_the_penalty_in_training_only(kind):
    model = make_roberta(gate_heads="enc-self", gate_init="1")
    if kind == "classes":
        sample, cfg = make_sentences(), SentencePredictionConfig(classification_head_name=HEAD)
        ours, stock = PENALISED["sentence_prediction"](cfg, CLASSES), SentencePredictionCriterion(cfg, CLASSES)
    else:
        sample, cfg = masked_sample(), MaskedLmConfig(tpu=False)
        ours, stock = PENALISED["masked_lm"](cfg, MASKED_LM), MaskedLmLoss(cfg, MASKED_LM)
    size, _, logs = assert_penalty_in_training_only(model, sample, ours, stock)
    assert logs["heads_open_enc_self"].item() == 8 * size


@variants
def test_the_loss_of_a_classifier_counts_every_sentence(variant):
    """Class 1 has the number of the padding symbol."""
    model, sample = gated(variant), make_sentences()
    p = probabilities(model, sample).gather(1, sample["target"])
    assert mean_loss(model, Corpus(CLASSES, [sample])) == pytest.approx(-p.log2().mean().item(), abs=1e-6)


def test_the_loss_of_masked_tokens():
    model, sample = gated("post-norm"), masked_sample()
    with torch.no_grad():
        logits = model(**sample["net_input"])[0].double()
    counted = sample["target"].ne(PAD)
    expected = F.cross_entropy(logits[counted], sample["target"][counted]).item() / math.log(2)
    assert mean_loss(model, Corpus(MASKED_LM, [sample])) == pytest.approx(expected, abs=1e-5)


def test_a_classifier_with_a_decoder_is_refused_with_a_reason():
    model = build("bart_head_gates")
    model.register_classification_head(HEAD, num_classes=2)
    with pytest.raises(ValueError, match="the checkpoint is a classifier with a decoder"):
        load_dataset(argparse.Namespace(), CLASSES, model)


@pytest.mark.parametrize(("task", "make"), [(CLASSES, make_sentences), (MASKED_LM, masked_sample)])
def test_ablation_is_the_loss_with_each_head_masked(task, make):
    model, corpus = make_roberta(2), Corpus(task, [make()])
    whole, found = ablation_losses(model, corpus)
    assert whole == pytest.approx(mean_loss(model, corpus), abs=1e-6)
    for layer in range(2):
        for head in range(4):
            rows = [[int((i, j) != (layer, head)) for j in range(4)] for i in range(2)]
            with masked(model, HeadTable({"enc-self": rows})):
                assert found.values["enc-self"][layer][head] == pytest.approx(mean_loss(model, corpus), abs=1e-5)


def test_the_gradient_score_is_the_derivative_with_respect_to_a_gate():
    """Of one sentence: by differences of -ln p. They are large: fairseq computes softmax in single precision."""
    model, sample = make_roberta(2).double(), make_sentences()
    sample = {"id": sample["id"][:1], "target": sample["target"][:1],
              "net_input": {name: value[:1] for name, value in sample["net_input"].items()}}  # fmt: skip
    table = importance.score(model, CLASSES, [sample], "gradient", ScoreOptions(normalize="none"))
    for layer in range(2):
        for head in range(4):
            losses = []
            for change in (1e-2, -1e-2):
                rows = torch.ones(2, 4, dtype=torch.double)
                rows[layer, head] += change
                with masked(model, HeadTable({"enc-self": rows.tolist()})):
                    losses.append(-probabilities(model, sample)[0, sample["target"][0, 0]].log().item())
            slope = abs(losses[0] - losses[1]) / 2e-2
            assert table.values["enc-self"][layer][head] == pytest.approx(slope, rel=5e-4)


def test_accuracy_is_in_the_order_of_the_sentences():
    model, sample = make_roberta(4), make_sentences()
    metric = Accuracy(model, Corpus(CLASSES, [sample]))
    assert metric.references == [0, 1, 1]  # the ids of the batch are 2, 0, 1
    classes = probabilities(model, sample).argmax(-1).tolist()
    found = metric.predict(metric.prepared(model))
    assert found == [classes[1], classes[2], classes[0]]
    assert metric.main.value([0, 1, 0]) == pytest.approx(200 / 3)


@pytest.mark.parametrize(("only_a", "only_b", "both"), [(0, 0, 3), (5, 1, 2), (1, 5, 0), (0, 6, 4), (3, 3, 1)])
def test_mcnemar_is_the_binomial_test_of_the_sentences_that_differ(only_a, only_b, both):
    labels = [1] * (only_a + only_b + both)
    a = [1] * only_a + [0] * only_b + [1] * both
    b = [0] * only_a + [1] * only_b + [1] * both
    n, extreme = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, k) for k in range(extreme + 1)) / 2**n
    assert mcnemar(a, b, labels) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar([0, 1], [2, 1], [1, 1]) == 1  # both wrong, in different ways


def test_functions_ignore_the_first_symbol():
    model, sample = make_roberta(), make_sentences()
    counts = count_functions(model, Corpus(CLASSES, [sample]), Annotations(rare=False))
    found = functions_of(counts, FunctionOptions(), gate_values(model), "")
    words = sum(int(token) >= 4 for token in sample["net_input"]["src_tokens"].flatten())
    assert words == 19 - 2 * 3 and counts.type_counts["enc-self"].statistics[0] == words
    assert list(found["heads"]) == ["enc-self"]


def test_relevance_of_other_layers_is_refused():
    class Layer(type(make_roberta().encoder.sentence_encoder.layers[0])):
        pass

    model = make_roberta()
    model.encoder.sentence_encoder.layers[1].__class__ = Layer
    with pytest.raises(ValueError, match="it has a part of class Layer; choose another method"):
        relevance.head_relevance(model, make_sentences()["net_input"])
