"""Language models: characters, losses, functions; see also test_families.py."""

import argparse
import math

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.models.transformer_lm import TransformerLanguageModel
from support.language_models import VARIANTS, make_lm, make_lm_args, make_lm_sample, make_text
from support.models import PAD, logits, make_task

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.extensions.functions.counting import Annotations, count_functions
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.plugin.models.language_model import read_characters
from fairseq_headgates.safety.checkpoint import model_args


def assert_logits(actual, expected):
    """Everywhere, because the padding is at the end of a text."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


MASK = HeadTable({"dec-self": [[1, 0, 1, 1], [0, 0, 0, 0]]})


@pytest.mark.parametrize("cutoff", [None, "10,20"])
def test_embeddings_of_characters(cutoff):
    """A checkpoint does not have its dictionary: without it the model is built, measured and pruned."""
    characters = {"character_embedding_dim": 4, "char_embedder_highway_layers": 1, "adaptive_softmax_cutoff": cutoff}
    options = {"character_embeddings": True, "character_filters": "[(1, 8)] + [(2, 8)] * 2", **characters}
    stock, dictionary = make_lm(model=TransformerLanguageModel, **options), make_task().source_dictionary
    args = make_lm_args(**options, arch="transformer_lm")
    state = {"args": args, "model": stock.state_dict()}
    whole = make_lm(**options)
    whole.load_state_dict(stock.state_dict())
    with masked(whole, MASK):
        expected = logits(whole, make_text())
    models = {"whole": build_model(state), "pruned": build_model(prune_checkpoint(state, MASK))}
    for model in models.values():
        read_characters(model, dictionary)
    assert_logits(logits(models["whole"], make_text()), logits(stock, make_text()))
    assert_logits(logits(models["pruned"], make_text()), expected)
    exported = stock_checkpoint(state, MASK)
    again = TransformerLanguageModel.build_model(model_args(exported), make_task()).eval()
    again.load_state_dict(exported["model"])
    assert_logits(logits(again, make_text()), expected)
    for name, value in (("char_embedder_highway_layers", 10**9), ("character_filters", "print(1)")):
        with pytest.raises(ValueError, match=name):
            build_model({**state, "args": argparse.Namespace(**{**vars(args), name: value})})


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_in_bits_is_that_of_fairseqs_criterion(variant):
    """Of fairseq-eval-lm in the case of an adaptive softmax: its criterion ignores token 1 of every tail."""
    model, sample = make_lm(**VARIANTS[variant]), make_lm_sample()
    found = mean_loss(model, Corpus(make_task(), [sample]))
    with torch.no_grad():
        output = model(**sample["net_input"])
        scores = model.get_normalized_probs(output, log_probs=True, sample=sample)
    real = sample["target"].ne(PAD)
    expected = -scores.gather(2, sample["target"][..., None])[..., 0][real].mean().item() / math.log(2)
    assert found == pytest.approx(expected, rel=1e-5)
    if variant != "adaptive":
        loss, size, _ = CrossEntropyCriterion(make_task(), False)(model, sample)
        assert found == pytest.approx(loss.item() / size / math.log(2), rel=1e-5)


def test_trees_of_a_source_and_alignments_are_refused():
    model, corpus = make_lm(), Corpus(make_task(), [make_lm_sample()])
    with pytest.raises(ValueError, match="no enc-self heads: leave the trees of the source out .*--target-conllu"):
        count_functions(model, corpus, Annotations(trees={"source": []}, rare=False))
    with pytest.raises(ValueError, match="no cross-attention: leave the word alignments out"):
        count_functions(model, corpus, Annotations(links=[frozenset()] * 3))
