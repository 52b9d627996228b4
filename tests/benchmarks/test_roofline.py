"""Computed costs of heads (benchmarks/roofline.py): against counts of FLOPs, parameters and caches of real models."""

from types import SimpleNamespace

import bench_models
import pytest
import roofline
import torch
from support.models import make_gated, make_task
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_headgates import observe, prune
from fairseq_headgates.attention.modules import attention_modules
from fairseq_headgates.heads import TYPES
from fairseq_headgates.inference.beam_stacks import SEARCH

HEADS, LAYERS, BATCH, BEAM, SOURCE, POSITION = 3, 2, 2, 3, 7, 5
WIDTH = 64 * HEADS
SIZES = {"embed_dim": WIDTH, "ffn_embed_dim": 4 * WIDTH, "attention_heads": HEADS, "layers": LAYERS}
OPTIONS = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SIZES.items()}
VOCABULARY = len(make_task().source_dictionary)
A100 = "NVIDIA A100 80GB SXM, bf16: 312 TFLOP/s, 2,039 GB/s"


@pytest.fixture(scope="module", params=[HEADS, 1])
def kept(request):
    return request.param


@pytest.fixture(scope="module")
def model(kept):
    """Three heads a layer, or the first of them."""
    model = make_gated(share_all_embeddings=True, **OPTIONS)
    return (
        model if kept == HEADS else prune(model, {each: [[1] * kept + [0] * (HEADS - kept)] * LAYERS for each in TYPES})
    )


def decoding(model, beam=BEAM):
    """A search in which the step number POSITION comes next."""
    model.decoder.set_beam_size(beam)
    generator = SimpleNamespace(model=SimpleNamespace(single_model=model), vocab_size=VOCABULARY, eos=2)
    options = SimpleNamespace(seed=1, beam=beam, length=SOURCE, device="cpu")
    return bench_models.Decoding(options, generator, BATCH).steps(POSITION - 1)


def count(work):
    """The FLOPs of torch's operators."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def sizes(kept):
    return roofline.Model(HEADS, kept, LAYERS, VOCABULARY)


@pytest.mark.parametrize("beam", [1, BEAM])
def test_flops_of_a_step_are_those_of_the_model(beam, kept, model):
    cost = roofline.decoder_step(sizes(kept), BATCH, beam, POSITION, SOURCE)
    assert cost.flops == count(decoding(model, beam).step)


def test_flops_of_the_encoder_are_those_of_the_model(kept, model):
    tokens = torch.randint(4, VOCABULARY, (BATCH, SOURCE))
    with observe(model):  # by the formula, whose FLOPs every version of torch counts
        found = count(lambda: model.encoder(tokens, torch.full((BATCH,), SOURCE)))
    assert roofline.encoder_pass(sizes(kept), BATCH, SOURCE).flops == found


def test_parameters_are_those_of_the_model(kept, model):
    own = sizes(kept)
    assert roofline.parameters(own) == sum(p.numel() for p in model.parameters())
    attention = model.encoder.layers[0].self_attn
    of_heads = sum(p.numel() for p in attention.parameters()) - attention.out_proj.bias.numel()
    assert roofline.head_parameters(own) == of_heads / attention.num_heads
    step = roofline.decoder_step(own, BATCH, BEAM, POSITION, SOURCE).weights
    once = [
        p for name, p in model.decoder.named_parameters() if ".encoder_attn.k_" in name or ".encoder_attn.v_" in name
    ]
    assert step == sum(p.numel() for p in model.decoder.parameters()) - sum(p.numel() for p in once)
    own_encoder = [p for name, p in model.encoder.named_parameters() if not name.startswith("embed_tokens")]
    assert roofline.encoder_pass(own, BATCH, SOURCE).weights == sum(p.numel() for p in own_encoder)


def test_keys_and_values_are_those_in_the_cache(kept, model):
    search = decoding(model)
    search.step()
    step = search.state[SEARCH].step
    own = [step.buffers[name][:, :, : step.used] for *names, _ in step.of_target() for name in names]
    source = [step.buffers[name] for *names, _ in step.of_source() for name in names]
    assert len(own) == len(source) == 2 * LAYERS
    held = sum(tensor.nbytes for tensor in own + source)
    cost = roofline.decoder_step(sizes(kept), BATCH, BEAM, POSITION, SOURCE)
    assert 4 * cost.keys_values == held


def test_activations_are_inputs_and_outputs_of_linear_layers_and_attention(kept, model):
    """The inputs of queries, keys and values of self-attention are counted once; embeddings are not counted."""
    seen = []
    layers = [module for module in model.encoder.modules() if isinstance(module, nn.Linear)]
    repeated = {
        id(each) for module in attention_modules(model) for each in (module.attention.k_proj, module.attention.v_proj)
    }

    def note(module, inputs, output):
        seen.append(output.numel() + (0 if id(module) in repeated else inputs[0].numel()))

    handles = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        model.encoder(torch.randint(4, VOCABULARY, (BATCH, SOURCE)), torch.full((BATCH,), SOURCE))
    for handle in handles:
        handle.remove()
    attention = LAYERS * 2 * BATCH * SOURCE * 64 * kept  # queries and contexts
    assert len(seen) == 6 * LAYERS
    assert roofline.encoder_pass(sizes(kept), BATCH, SOURCE).activations == sum(seen) + attention


@pytest.fixture
def printed(monkeypatch, capsys):
    """printed(arguments) gives the lines of the output."""

    def printed(arguments):
        monkeypatch.setattr("sys.argv", ["roofline.py", *arguments.split()])
        roofline.main()
        return capsys.readouterr().out.splitlines()

    return printed


def test_the_table_of_a_device(printed):
    """Transformer-base, 32 sentences, half of the heads, in two bytes a number."""
    lines = printed("--part step --device A100 --heads 8 --batch 32 --remove 0.5 --length 25")
    assert lines[0] == f"decoder step 13 of 25, beam 4 (computed) - {A100}"
    flops, moved = {}, {}
    for kept in (8, 4):
        cost = roofline.decoder_step(roofline.Model(8, kept, 6, 32000), 32, 4, 13, 25)
        flops[kept], moved[kept] = cost.flops, 2 * (cost.weights + cost.keys_values + cost.activations)
    seconds = {kept: max(flops[kept] / 312e12, moved[kept] / 2039e9) for kept in flops}
    expected = ["8", "32", f"{flops[8] / 1e9:.2f}", f"{moved[8] / 1e9:.3f}", f"{flops[8] / moved[8]:.1f}"]
    assert lines[-1].split() == [*expected, f"{1000 * seconds[8]:.3f}", "weights", f"{seconds[8] / seconds[4]:.2f}"]


def test_the_table_of_heads(printed):
    assert printed("--part heads --heads 8")[-1].split() == ["8", "512", "60.5", "31.2%", "131,264", "0.269", "128"]
