"""Language models: the same as fairseq's, gated, masked and pruned; losses; what is refused."""

import argparse
import math

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel
from support.language_models import VARIANTS, make_lm, make_lm_args, make_lm_sample, make_stock_lm, make_text
from support.models import PAD, logits, make_task
from support.training import assert_penalty_in_training_only

from fairseq_headgates import HeadTable, gate_values, head_sites, masked, prune
from fairseq_headgates.analysis.ablation import ablation_losses
from fairseq_headgates.analysis.options import FunctionOptions
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.evaluation.corpus_losses import mean_loss
from fairseq_headgates.extensions.functions.counting import Annotations, count_functions
from fairseq_headgates.extensions.functions.results import functions_of
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.plugin.models.language_model import TransformerLMHeadGatesModel, read_characters
from fairseq_headgates.safety.checkpoint import model_args


def assert_logits(actual, expected):
    """Everywhere, because the padding is at the end of a text."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


MASK = HeadTable({"dec-self": [[1, 0, 1, 1], [0, 0, 0, 0]]})
variants = pytest.mark.parametrize("variant", VARIANTS)


PRESETS = [
    name.removeprefix("transformer_lm") for name, m in ARCH_MODEL_REGISTRY.items() if m is TransformerLanguageModel
]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_those_of_fairseq(preset):
    """The options that fairseq's own preset sets, and the defaults of its model for all others."""
    ours, stock = argparse.Namespace(), argparse.Namespace()
    ARCH_CONFIG_REGISTRY["transformer_lm_head_gates" + preset](ours)
    ARCH_CONFIG_REGISTRY.get("transformer_lm" + preset, lambda args: None)(stock)
    assert vars(ours).items() >= vars(stock).items()
    assert ARCH_MODEL_REGISTRY["transformer_lm_head_gates" + preset] is TransformerLMHeadGatesModel


def gated(variant, **options):
    """A model with gates that are closed, open and between."""
    model = make_lm(**VARIANTS[variant], gate_heads="dec-self", **options)
    for i, site in enumerate(head_sites(model)):
        site.attention.gate.load_state_dict({"log_alpha": torch.tensor([-3.0, 0.4, 3.0, -0.5]) + 0.1 * i})
    return model


@variants
def test_without_options_it_is_the_stock_model(variant):
    ours, stock = make_lm(**VARIANTS[variant]), make_stock_lm(**VARIANTS[variant])
    assert ours.state_dict().keys() == stock.state_dict().keys()
    torch.testing.assert_close(logits(ours, make_text()), logits(stock, make_text()), rtol=0, atol=1e-6)


@variants
def test_a_stock_checkpoint_starts_a_gated_model(variant):
    stock, ours = make_stock_lm(3, **VARIANTS[variant]), make_lm(**VARIANTS[variant], gate_heads="dec-self")
    missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
    assert all("gate" in name for name in missing) and not unexpected
    torch.testing.assert_close(logits(ours, make_text()), logits(stock, make_text()), rtol=0, atol=1e-6)


@variants
def test_gated_masked_pruned_and_stock_compute_the_same(variant):
    model = gated(variant)
    open_heads = HeadTable({each: (values > 0).int().tolist() for each, values in gate_values(model).items()})
    expected = logits(model, make_text())
    with masked(model, open_heads):
        assert_logits(logits(model, make_text()), expected)
    assert_logits(logits(prune(model), make_text()), expected)
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}
    assert_logits(logits(build_model(prune_checkpoint(state, open_heads)), make_text()), expected)
    exported = stock_checkpoint(state, open_heads)
    args = model_args(exported)
    stock = TransformerLanguageModel.build_model(args, make_task()).eval()
    stock.load_state_dict(exported["model"], strict=True)
    assert args.arch == "transformer_lm"
    assert_logits(logits(stock, make_text()), expected)


@pytest.mark.parametrize("cutoff", [None, "10,20"])
def test_embeddings_of_characters(cutoff):
    """A checkpoint does not have its dictionary: without it the model is built, measured and pruned."""
    characters = {"character_embedding_dim": 4, "char_embedder_highway_layers": 1, "adaptive_softmax_cutoff": cutoff}
    options = {"character_embeddings": True, "character_filters": "[(1, 8)] + [(2, 8)] * 2", **characters}
    stock, dictionary = make_stock_lm(**options), make_task().source_dictionary
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


@variants
def test_a_layer_without_heads(variant):
    model = make_lm(**VARIANTS[variant])
    with masked(model, MASK):
        expected = logits(model, make_text())
    pruned = prune(model, MASK)
    assert_logits(logits(pruned, make_text()), expected)
    attention = [site.attention for site in head_sites(pruned)]
    assert [each.num_heads for each in attention] == [3, 0] and attention[1].q_proj is None


# --- losses ----------------------------------------------------------------------------------------------------------


def criterion_of(variant, ours):
    task = make_task()
    if variant == "adaptive":
        return (PENALISED["adaptive_loss"] if ours else AdaptiveLoss)(task, False)
    return (PENALISED["cross_entropy"] if ours else CrossEntropyCriterion)(task, False)


def summed(loss):
    return loss.item() if torch.is_tensor(loss) else loss


@variants
def test_the_criterion_adds_lambda_times_the_penalty_in_training_only(variant):
    model, sample = make_lm(**VARIANTS[variant], gate_heads="dec-self", gate_init="1"), make_lm_sample()
    ours, stock = criterion_of(variant, True), criterion_of(variant, False)
    size, penalty, logs = assert_penalty_in_training_only(model, sample, ours, stock)
    assert logs["l0"].item() == pytest.approx(penalty * size) and logs["heads_open_dec_self"].item() == 8 * size


@variants
def test_the_loss_in_bits_is_that_of_fairseqs_criterion(variant):
    """Of fairseq-eval-lm in the case of an adaptive softmax: its criterion ignores token 1 of every tail."""
    model, sample = gated(variant), make_lm_sample()
    found = mean_loss(model, Corpus(make_task(), [sample]))
    with torch.no_grad():
        output = model(**sample["net_input"])
        scores = model.get_normalized_probs(output, log_probs=True, sample=sample)
    real = sample["target"].ne(PAD)
    expected = -scores.gather(2, sample["target"][..., None])[..., 0][real].mean().item() / math.log(2)
    assert found == pytest.approx(expected, rel=1e-5)
    if variant != "adaptive":
        loss, size, _ = criterion_of(variant, False)(model, sample)
        assert found == pytest.approx(summed(loss) / size / math.log(2), rel=1e-5)


@variants
@pytest.mark.parametrize("mode", ["single", "all-but-one"])
def test_ablation_is_the_loss_of_the_masked_model(variant, mode):
    model, corpus = gated(variant), Corpus(make_task(), [make_lm_sample(seed) for seed in (0, 1)])
    whole, losses = ablation_losses(model, corpus, mode)
    assert whole == pytest.approx(mean_loss(model, corpus), rel=1e-6)
    for head, found in losses.items():
        row = [int((i != head.head) if mode == "single" else (i == head.head)) for i in range(4)]
        mask = {"dec-self": [row if layer == head.layer else [1] * 4 for layer in range(2)]}
        with masked(model, mask):
            assert found == pytest.approx(mean_loss(model, corpus), rel=1e-5), head


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_head_that_looks_at_the_previous_token_is_positional():
    """Head 1 of layer 0 gets queries and keys that pair each position with the one before."""
    model, sample = make_lm(decoder_normalize_before=True, decoder_learned_pos=True, decoder_embed_dim=64,
                            decoder_input_dim=64, decoder_output_dim=64), make_lm_sample()  # fmt: skip
    decoder, attention = model.decoder, model.decoder.layers[0].self_attn
    with torch.no_grad():
        decoder.embed_tokens.weight.zero_()
        positions = torch.eye(64)[: len(decoder.embed_positions.weight)]
        decoder.embed_positions.weight.copy_(positions)
        head = slice(16, 32)
        for projection, weight in (
            (attention.q_proj, 20 * torch.eye(64).roll(1, 1)),
            (attention.k_proj, torch.eye(64)),
        ):
            projection.weight.zero_()
            projection.bias.zero_()
            projection.weight[head] = weight[:16]
    corpus = Corpus(make_task(), [sample])
    counts = count_functions(model, corpus, Annotations(rare=True))
    found = functions_of(counts, FunctionOptions(), gate_values(model))
    assert list(found["heads"]) == ["dec-self"]
    assert found["heads"]["dec-self"][0][1]["functions"] == ["positional -1"]
    assert "rare" not in found["heads"]["dec-self"][0][1]


def test_trees_of_a_source_and_alignments_are_refused():
    model, corpus = make_lm(), Corpus(make_task(), [make_lm_sample()])
    with pytest.raises(ValueError, match="no enc-self heads: leave the trees of the source out .*--target-conllu"):
        count_functions(model, corpus, Annotations(trees={"source": []}, rare=False))
    with pytest.raises(ValueError, match="no decoder-encoder attention: leave the word alignments out"):
        count_functions(model, corpus, Annotations(links=[frozenset()] * 3))


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_heads": "dec-enc"}, "dec-enc"),
        ({"gate_heads": "dec-self,enc-self"}, "enc-self"),
        ({"alive_heads": '{"enc-self": [[1,1,1,1],[1,1,1,1]]}'}, "enc-self"),
        ({"alive_heads": '{"dec-self": [[1,1,1,1]]}'}, "dec-self"),
        ({"gate_heads": "dec-self", "target_heads": "dec-enc=3", "sparsity_method": "lagrangian"}, "dec-enc"),
    ],
)
def test_heads_that_a_language_model_does_not_have_are_refused(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_lm(**options)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1


def test_a_checkpoint_with_other_sizes_than_its_weights_is_refused():
    model = make_lm()
    args = make_lm_args()
    args.decoder_layers = 3
    state = {"args": None, "cfg": {"model": args}, "model": model.state_dict()}
    with pytest.raises(ValueError, match="decoder_layers is 3, but the weights have 2 layers"):
        build_model(state)


@variants
def test_padding_is_not_counted(variant):
    """The loss of a batch is that of its texts one by one, without padding."""
    model, sample = gated(variant), make_lm_sample()
    tokens, lengths = sample["net_input"].values()
    alone = [
        {"net_input": {"src_tokens": tokens[i : i + 1, :n]}, "target": sample["target"][i : i + 1, :n]}
        for i, n in enumerate(lengths.tolist())
    ]
    found = mean_loss(model, Corpus(make_task(), [sample]))
    assert found == pytest.approx(mean_loss(model, Corpus(make_task(), alone)), rel=1e-5)
