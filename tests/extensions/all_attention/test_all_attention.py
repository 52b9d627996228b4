"""The all-attention layer and model against a naive rewrite; memory; batches; pruning."""

import math

import pytest
import torch
from support.all_attention import make_blocks, make_model
from support.models import VOCABULARY

from fairseq_headgates import attention_modules, observe, prune
from fairseq_headgates.attention.cuts import removal_plan
from fairseq_headgates.extensions.all_attention.layer import JointAttention
from fairseq_headgates.inference import kernels
from fairseq_headgates.inference.shapes import mask_value
from fairseq_headgates.plugin.models.building import build_model


class NaiveModel:
    """The model with one row, query, head and key at a time. Memory is a list of states by row and layer."""

    def __init__(self, model, mem_len):
        self.model, self.mem_len = model, mem_len
        self.last, self.memory = {}, {}

    def __call__(self, tokens, blocks):
        return torch.stack(
            [self.row(i, row, block.tolist()) for i, (row, block) in enumerate(zip(tokens, blocks, strict=True))]
        )

    def row(self, row, tokens, block):
        decoder = self.model.decoder
        stream, place = block
        if self.last.get(row) != (stream, place - 1):
            self.memory[row] = [[] for _ in decoder.layers]
        self.last[row] = (stream, place)
        states = list(decoder.embed_scale * decoder.embed_tokens(tokens))
        for number, layer in enumerate(decoder.layers):
            before = self.memory[row][number]
            self.memory[row][number] = (
                ([*before, *(x.detach() for x in states)])[-self.mem_len :] if self.mem_len else []
            )
            states = self.layer(layer, before, states)
        return decoder.output_layer(torch.stack([decoder.layer_norm(x) for x in states]))

    def layer(self, layer, before, states):
        every = [layer.self_attn_layer_norm(x) for x in [*before, *states]]
        found = []
        for i, x in enumerate(states):
            at = len(before) + i
            found.append(x + self.attention(layer.self_attn, every, at))
        return found

    def attention(self, attention, every, at):
        size = attention.head_dim
        heads = []
        for head in range(attention.num_heads):
            rows = slice(head * size, (head + 1) * size)
            query = attention.q_proj.weight[rows] @ every[at]
            b, c = attention.query_bias.content[head], attention.query_bias.position[head]
            scores, values = [], []
            for j in range(at + 1):
                key = attention.k_proj.weight[rows] @ every[j]
                distance = attention.position_proj.weight[rows] @ encoding(at - j, attention.embed_dim)
                scores.append(((query + b) @ key + (query + c) @ distance) / math.sqrt(size))
                values.append(attention.v_proj.weight[rows] @ every[j])
            vectors = attention.persistent.key.size(1)
            for n in range(vectors):
                scores.append((query + b) @ (math.sqrt(size) * attention.persistent.key[head, n]) / math.sqrt(size))
                values.append(math.sqrt(vectors) * attention.persistent.value[head, n])
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
        return attention.out_proj.weight @ torch.cat(heads)


def encoding(distance, dim):
    """The sine and the cosine of the distance at dim / 2 rates."""
    angles = [distance / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.double)


def randomized(model):
    """Random numbers in all parameters, biases and norms included; double precision."""
    torch.manual_seed(3)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


@pytest.mark.cases(3)
@pytest.mark.parametrize(("mem_len", "training"), [(0, True), (3, True), (5, True), (12, True), (0, False), (5, False)])
def test_forward_and_gradients_are_those_of_a_naive_rewrite(training, mem_len):
    """Four blocks one after another, the third a new stream in one row."""
    model = randomized(make_model(mem_len=mem_len)).train(training)
    naive = NaiveModel(model, mem_len)
    for tokens, blocks in make_blocks():
        found = model(tokens, blocks=blocks)[0]
        expected = naive(tokens, blocks)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        if training:
            weights = torch.randn(found.shape, dtype=torch.double, generator=torch.Generator().manual_seed(1))
            gradients = [torch.autograd.grad((x * weights).sum(), list(model.parameters())) for x in (found, expected)]
            for (name, _), a, b in zip(model.named_parameters(), *gradients, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, msg=name)


def test_a_torch_without_the_fused_operator(monkeypatch):
    """The plain formula takes its place."""
    monkeypatch.setattr(kernels, "_FUSED", "no_such_operator")
    test_forward_and_gradients_are_those_of_a_naive_rewrite(training=True, mem_len=3)


def run_blocks(model):
    with torch.no_grad():
        return [model(tokens, blocks=blocks)[0] for tokens, blocks in make_blocks()]


def gated(mem_len=3, **options):
    """Gates that are closed, between and open; one layer has no open head."""
    model = make_model(mem_len=mem_len, gate_heads="dec-self", decoder_attention_heads=4, decoder_layers=3, **options)
    for module, values in zip(
        attention_modules(model), ([-3.0, 0.4, 3.0, -0.5], [-3.0] * 4, [0.1, -3.0, 3.0, 3.0]), strict=True
    ):
        module.attention.gate.load_state_dict({"log_alpha": torch.tensor(values)})
    return model


def test_a_wide_model_is_built_from_its_checkpoint():
    """The number of positions, which is large, stands for no table."""
    sizes = {f"decoder_{name}_dim": 1024 for name in ("embed", "input", "output")}
    model = make_model(decoder_layers=1, max_target_positions=None, **sizes)
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}
    assert build_model(state).max_positions() == 100_000


def test_without_half_of_the_heads_a_layer_has_half_of_the_parameters():
    """All but the LayerNorm; and half of the cache."""
    model = make_model(decoder_attention_heads=4)
    pruned = prune(model, {"dec-self": [[1, 0, 0, 1], [0, 1, 1, 0]]})
    whole, half = (sum(p.numel() for p in m.decoder.layers[0].self_attn.parameters()) for m in (model, pruned))
    assert half * 2 == whole
    plan = removal_plan(model, pruned)
    assert plan["cache_bytes_per_token"]["dec-self"][1] * 2 == plan["cache_bytes_per_token"]["dec-self"][0]


def test_incremental_decoding_equals_the_whole_block():
    """Also when hypotheses change their order, and in a pruned model."""
    for model in (gated(), prune(gated())):
        tokens = make_blocks()[0][0]
        expected = run_full(model, tokens)
        state = {}
        for length in range(1, 3):
            found = run_full(model, tokens[:, :length], state)
            torch.testing.assert_close(found[:, -1], expected[:, length - 1], rtol=1e-5, atol=1e-6)
        order = torch.tensor([1, 1])
        model.decoder.reorder_incremental_state_scripting(state, order)
        swapped = torch.cat([tokens[order, :2], tokens[:, 2:]], 1)
        expected = run_full(model, swapped)
        for length in range(3, 5):
            found = run_full(model, swapped[:, :length], state)
            torch.testing.assert_close(found[:, -1], expected[:, length - 1], rtol=1e-5, atol=1e-6)


def run_full(model, tokens, state=None):
    with torch.no_grad():
        return model.decoder(tokens, incremental_state=state)[0]


def test_incremental_decoding_keeps_the_context_length_of_training():
    model, state = make_model(mem_len=3), {}
    tokens = torch.randint(4, VOCABULARY, (1, 20))
    for length in range(1, 21):
        found = run_full(model, tokens[:, :length], state)
        seen = model.decoder.layers[0].self_attn._get_input_buffer(state)["prev_key"].size(2)
        assert found.isfinite().all() and seen == min(length, 3 + 4 - 1)


def test_a_validation_leaves_the_memory_of_the_training_as_it_is():
    model = make_model(mem_len=4).train()
    batches = make_blocks()
    model(batches[0][0], blocks=batches[0][1])
    expected = model(batches[1][0], blocks=batches[1][1])[0]
    model(batches[0][0], blocks=batches[0][1])
    run_blocks(model.eval())
    found = model.train()(batches[1][0], blocks=batches[1][1])[0]
    torch.testing.assert_close(found, expected)


def test_a_pruned_model_starts_with_an_empty_memory():
    model = gated()
    run_blocks(model)
    (_, _), (second, following), *_ = make_blocks()
    pruned = prune(model)
    with torch.no_grad():
        torch.testing.assert_close(pruned(second, blocks=following)[0], pruned(second)[0])
    assert model.decoder.memories and model.extract_features(second)[0].shape == (2, 4, 8)


def test_blocks_of_one_token_without_memory():
    model, state = make_model(mem_len=0, tokens_per_sample=1), {}
    for length in range(1, 4):
        found = run_full(model, torch.full((1, length), 5), state)
        torch.testing.assert_close(found, run_full(model, torch.tensor([[5]])), rtol=1e-5, atol=1e-6)


def test_memory_continues_in_a_smaller_batch():
    """A later batch with fewer rows continues the first ones."""
    model = make_model(mem_len=4)
    (first, numbers), (second, following), *_ = make_blocks()
    with torch.no_grad():
        model(first, blocks=numbers)
        both = model(second, blocks=following)[0]
        model(first, blocks=numbers)
        one = model(second[:1], blocks=following[:1])[0]
    torch.testing.assert_close(one, both[:1], rtol=1e-5, atol=1e-6)


# --- one softmax -----------------------------------------------------------------------------------------------------


def joint_inputs(dtype=torch.double):
    torch.manual_seed(0)
    heads, batch, length, positions, vectors, size = 2, 3, 4, 6, 5, 7
    shapes = [(heads, batch, length, positions), (heads, batch, positions, size), (heads, batch * length, size)]
    tensors = [torch.randn(shape, dtype=dtype) for shape in (*shapes, *[(heads, vectors, size)] * 2)]
    return [tensor.requires_grad_() for tensor in tensors]


def by_formula(scores, v, q, keys, values, factor):
    heads, batch, length, positions = scores.shape
    joined = torch.cat([scores, (q @ keys.transpose(1, 2)).view(heads, batch, length, -1)], -1).softmax(-1)
    on_vectors = (joined[..., positions:].flatten(1, 2) @ values).view(heads, batch, length, -1)
    return joined[..., :positions] @ v + factor * on_vectors


def test_joint_attention_is_the_formula_with_its_gradients():
    inputs = joint_inputs()
    found, expected = (function(*inputs, 1.7) for function in (JointAttention.apply, by_formula))
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    for a, b in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradcheck(lambda *x: JointAttention.apply(*x, 1.7), inputs)


def test_masked_positions_and_extreme_scores():
    scores, v, q, keys, values = joint_inputs()
    scores = torch.where(torch.arange(6) > 2, mask_value(scores.dtype), 300 * scores)
    found = JointAttention.apply(scores, v, 40 * q, keys, values, 1.0)
    torch.testing.assert_close(found, by_formula(scores, v, 40 * q, keys, values, 1.0))


@pytest.mark.parametrize("training", [False, True])
def test_a_hook_on_attention_weights_does_not_change_the_output(training):
    """A hook on weights changes nothing, and sees those on the block."""
    model = make_model(mem_len=3).train(training)
    expected = run_blocks(model)
    with observe(model) as seen:
        for a, b in zip(run_blocks(model), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        weights = seen["dec-self"][1].weights
    assert weights.shape == (2, 2, 4, 4) and weights.triu(1).max() == 0
    assert weights.sum(-1).min() > 0 and weights.sum(-1).max() < 1  # the rest is on the memory and on vectors


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"persistent_vectors": 0}, "--persistent-vectors is 0: it must be from 1 to 100,000"),
        ({"mem_len": 10**9}, "--mem-len is 1000000000: it must be from 0"),
        ({"decoder_layerdrop": 0.1}, "--decoder-layerdrop is 0.1: transformer_lm_all_attention does not support it"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_model(**options)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1
