"""RoBERTa: checkpoints, losses, scores and accuracy; see also test_families.py."""

import argparse
import math

import pytest
import torch
import torch.nn.functional as F
from fairseq.models.roberta import RobertaModel
from support.any_model import build
from support.classifiers import (
    CLASSIFICATION,
    HEAD,
    MASKED_LM,
    make_roberta,
    make_sentences,
    masked_sample,
    states,
)
from support.models import PAD

from fairseq_headgates import HeadTable, gate_values, importance, masked, prune
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.data.corpus import Corpus, load_dataset
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.data.metrics import Accuracy
from fairseq_headgates.data.statistics import mcnemar
from fairseq_headgates.extensions.functions.counting import Annotations, count_functions
from fairseq_headgates.extensions.functions.results import functions_of
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.scores.options import FunctionOptions, ScoreOptions

MASK = HeadTable({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]]})


def probabilities(model, sample):
    """p of every class, by the plain definition."""
    with torch.no_grad():
        return model(**sample["net_input"], classification_head_name=HEAD)[0].double().softmax(-1)


def test_parameter_names_of_old_roberta_checkpoints_are_converted():
    """Published models have them: the encoder is called "decoder", its first norm emb_layer_norm."""
    model, sample = make_roberta(1, RobertaModel), make_sentences()
    old = {
        name.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm"): weight
        for name, weight in model.state_dict().items()
    }
    assert any(name.startswith("decoder.sentence_encoder.emb_layer_norm") for name in old)
    state = {"args": model.args, "model": old}
    torch.testing.assert_close(states(build_model(state), sample), states(model, sample), rtol=0, atol=1e-5)
    pruned = build_model(prune_checkpoint(state, MASK))
    torch.testing.assert_close(states(pruned, sample), states(prune(model, MASK), sample), rtol=1e-5, atol=1e-5)


def test_the_loss_of_a_classifier_counts_every_sentence():
    """Class 1 has the number of the padding symbol."""
    model, sample = make_roberta(), make_sentences()
    p = probabilities(model, sample).gather(1, sample["target"])
    assert mean_loss(model, Corpus(CLASSIFICATION, [sample])) == pytest.approx(-p.log2().mean().item(), abs=1e-6)


def test_the_loss_of_masked_tokens():
    model, sample = make_roberta(), masked_sample()
    with torch.no_grad():
        logits = model(**sample["net_input"])[0].double()
    counted = sample["target"].ne(PAD)
    expected = F.cross_entropy(logits[counted], sample["target"][counted]).item() / math.log(2)
    assert mean_loss(model, Corpus(MASKED_LM, [sample])) == pytest.approx(expected, abs=1e-5)


def test_a_classifier_with_a_decoder_is_refused_with_a_reason():
    model = build("bart_head_gates")
    model.register_classification_head(HEAD, num_classes=2)
    with pytest.raises(ValueError, match="the checkpoint is a classifier with a decoder"):
        load_dataset(argparse.Namespace(), CLASSIFICATION, model, "valid")


def test_the_gradient_score_is_the_derivative_with_respect_to_a_gate():
    """Of one sentence: by differences of -ln p. They are large: fairseq computes softmax in single precision."""
    model, sample = make_roberta(2).double(), make_sentences()
    sample = {"id": sample["id"][:1], "target": sample["target"][:1],
              "net_input": {name: value[:1] for name, value in sample["net_input"].items()}}  # fmt: skip
    table = importance.score(model, CLASSIFICATION, [sample], "gradient", ScoreOptions(normalize="none"))
    for layer in range(2):
        for head in range(4):
            losses = []
            for change in (1e-2, -1e-2):
                rows = torch.ones(2, 4, dtype=torch.double)
                rows[layer, head] += change
                with masked(model, HeadTable({"enc-self": rows.tolist()})):
                    losses.append(-probabilities(model, sample)[0, sample["target"][0, 0]].log().item())
            slope = abs(losses[0] - losses[1]) / 2e-2
            assert table.layers["enc-self"][layer][head] == pytest.approx(slope, rel=5e-4)


def test_accuracy_is_in_the_order_of_the_sentences():
    model, sample = make_roberta(4), make_sentences()
    metric = Accuracy(model, Corpus(CLASSIFICATION, [sample]))
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
    counts = count_functions(model, Corpus(CLASSIFICATION, [sample]), Annotations(rare=False))
    found = functions_of(counts, FunctionOptions(), gate_values(model), "")
    words = sum(int(token) >= 4 for token in sample["net_input"]["src_tokens"].flatten())
    assert words == 19 - 2 * 3 and counts.type_counts["enc-self"].statistics[0] == words
    assert list(found["heads"]) == ["enc-self"]
