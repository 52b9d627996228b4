"""What a GPU computes, against the CPU: every family of models, beam search, the penalty, scores, refit, relevance.

Without a GPU these tests are skipped. HEADGATES_CUDA=cpu runs them without one, to check the tests themselves.
"""

import copy
import os

import pytest
import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from support.all_attention import make_blocks
from support.all_attention import make_model as make_all_attention
from support.classifiers import make_roberta, make_sentences
from support.language_models import make_lm, make_text
from support.models import logits, make_batch, make_gated, make_stock
from support.pruning import ALL_TYPES, NO_HEADS_SOMEWHERE, generate, make_case, stirred
from support.searching import DICTIONARY, batch, ending, search
from support.sentences import PAIRS, TASK, make_gates, make_model, sample, sentences

from fairseq_headgates import HeadTable, attention_modules, l0_penalty, masked, prune, refit
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores.importance import score
from fairseq_headgates.scores.options import SCORES, ScoreOptions
from fairseq_headgates.scores.relevance.explaining import explain
from fairseq_headgates.scores.relevance.rules import RULES

DEVICE = torch.device(os.environ.get("HEADGATES_CUDA", "cuda"))
if DEVICE.type == "cuda" and not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

METHOD_OPTIONS = {
    "l0": {},
    "lagrangian": {"sparsity_method": "lagrangian", "target_heads": "0.5"},
    "subset": {"sparsity_method": "subset", "target_heads": "0.5"},
}
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def there(thing):
    """A copy of a model, or of tensors in containers, on the GPU."""
    if isinstance(thing, torch.nn.Module):
        return copy.deepcopy(thing).to(DEVICE)
    return utils.apply_to_sample(lambda tensor: tensor.to(DEVICE), thing)


def assert_near(found, expected, dtype=torch.float32):
    found, expected = found.detach().cpu().double(), expected.detach().double()
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


FAMILIES = {
    "stock": lambda: (make_stock(), make_batch()),
    "gated": lambda: (make_case(0).model(), make_batch()),
    "language-model": lambda: (make_lm(gate_heads="dec-self"), make_text()),
    "all-attention": lambda: (make_all_attention(), {"src_tokens": make_blocks()[0][0]}),
    "roberta": lambda: (make_roberta(gate_heads="enc-self"), make_sentences()["net_input"]),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_logits_are_those_of_the_cpu(family, dtype):
    model, batch = FAMILIES[family]()
    options = {"features_only": True} if family == "roberta" else {}
    expected, found = logits(model, {**batch, **options}), logits(there(model).to(dtype), {**there(batch), **options})
    real = batch.get("prev_output_tokens", batch["src_tokens"]).ne(1)
    assert_near(found.cpu()[real], expected[real], dtype)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("beam", [1, 4])
def test_gated_masked_and_pruned_models_translate_as_on_the_cpu(beam, prepared):
    case = make_case(2)
    model, mask = case.model(), HeadTable(case.mask)
    with masked(model, mask):
        expected = generate(model, beam)
    model, batch = there(model), there(make_batch())
    pruned = prune(model, mask)
    if prepared:
        for one in (model, pruned):
            one.make_generation_fast_()
    with masked(model, mask):
        assert generate(model, beam, batch) == expected
    assert generate(pruned, beam, batch) == expected


@pytest.mark.parametrize("method", METHOD_OPTIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_penalty_and_its_gradient_are_those_of_the_cpu(method, dtype):
    model = make_gated(gate_heads=ALL_TYPES, **METHOD_OPTIONS[method]).train()
    for number, module in enumerate(attention_modules(model)):
        module.attention.gate.theta.data.copy_(torch.tensor([-1.0, 0.5, 2.0, -0.2]).roll(number))
    found = []
    for one in (model, there(model).to(dtype)):
        penalty = l0_penalty(one)
        gates = [module.attention.gate.theta for module in attention_modules(one)]
        gradients = torch.autograd.grad(penalty, gates, allow_unused=True)
        found.append([penalty, *(torch.zeros(4) if g is None else g for g in gradients)])
    for cpu, gpu in zip(*found, strict=True):
        assert_near(gpu, cpu, dtype)


@pytest.mark.parametrize("method", METHOD_OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gates_learn_in_half_precision(method, dtype):
    """Gates whose heads hurt the loss close: their gradients are finite and some are not 0."""
    model = there(make_gated(gate_heads=ALL_TYPES, **METHOD_OPTIONS[method])).to(dtype).train()
    out = model(**there(make_batch()))[0]
    out.float().logsumexp(-1).sum().backward()
    gradients = torch.cat([module.attention.gate.theta.grad for module in attention_modules(model)])
    assert gradients.isfinite().all() and gradients.ne(0).any()


def test_noise_of_gates_is_drawn_once_for_a_batch():
    model = there(stirred(make_gated(gate_heads=ALL_TYPES, dropout=0.0))).train()
    batch = there(make_batch())
    torch.manual_seed(1)
    first = model(**batch)[0]
    torch.manual_seed(1)
    assert torch.equal(model(**batch)[0], first)
    torch.manual_seed(2)
    assert not torch.equal(model(**batch)[0], first)


@pytest.mark.parametrize("method", [name for name in SCORES if name != "random"])
def test_scores_are_those_of_the_cpu(method):
    model = make_gates(make_model(gate_heads=ALL_TYPES))
    expected = score(model, TASK, [sample(sentences())], method, ScoreOptions())
    found = score(there(model), TASK, [there(sample(sentences()))], method, ScoreOptions())
    for attention_type in TYPES:
        values, wanted = (torch.tensor(table.layers[attention_type]) for table in (found, expected))
        torch.testing.assert_close(values, wanted, equal_nan=True, atol=1e-6, rtol=1e-6)


def test_a_refitted_model_is_that_of_the_cpu():
    mask, batch = HeadTable({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-enc": [[0, 0, 0, 1]] * 2}), sample(PAIRS)
    expected = refit(make_model(), mask, TASK, [batch]).state_dict()
    for name, value in refit(there(make_model()), mask, TASK, [there(batch)]).state_dict().items():
        assert_near(value, expected[name])


@pytest.mark.parametrize("rule", RULES)
def test_relevance_is_that_of_the_cpu(rule):
    model, batch = stirred(make_stock()), make_batch()
    expected = explain(copy.deepcopy(model).double(), batch, rule)
    found = explain(there(model).double(), there(batch), rule)
    for attention_type in TYPES:
        of_type = found.heads[attention_type].cpu()
        torch.testing.assert_close(of_type, expected.heads[attention_type], atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(found.source.cpu(), expected.source, atol=1e-8, rtol=1e-6)


TRANSLATED = {
    "full": lambda: make_gated(),
    "gated": lambda: stirred(make_gated(gate_heads=ALL_TYPES)),
    "pruned": lambda: prune(make_gated(), HeadTable(NO_HEADS_SOMEWHERE)),
}
BATCHES = [(9, 9), (3, 30), (20, 20)]  # sentences and the longest


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("family", TRANSLATED)
def test_searches_translate_as_on_the_cpu(family, beam):
    model = ending(TRANSLATED[family](), 1.5)
    ours = there(model)
    generator = SequenceGenerator([ours], DICTIONARY, beam_size=beam, max_len_b=40)
    for size, longest in BATCHES:
        net_input = batch(size, longest=longest)
        expected = sum(search(model, beam, net_input, max_len_b=40), [])
        found = sum(generator.generate([ours], {"net_input": there(net_input)}), [])
        assert [each["tokens"].tolist() for each in found] == [each["tokens"].tolist() for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert_near(one["score"], other["score"])
            assert_near(one["positional_scores"], other["positional_scores"])
