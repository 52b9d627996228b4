"""Computed costs of heads (benchmarks/roofline.py): against counts of FLOPs, parameters and caches of real models."""

from types import SimpleNamespace

import bench_models
import pytest
import roofline
import torch
from support.models import make_gated, make_stock, make_task
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fairseq_headgates import observe, prune
from fairseq_headgates.attention.sites import head_sites
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


def test_keys_and_values_of_fairseq_without_a_beam_are_the_same():
    model = make_stock(share_all_embeddings=True, **OPTIONS)
    search = decoding(model, beam=1)
    search.step()
    held = [
        tensor
        for saved in search.state.values()
        for name, tensor in saved.items()
        if name in ("prev_key", "prev_value")
    ]
    cost = roofline.decoder_step(sizes(HEADS), BATCH, 1, POSITION, SOURCE)
    assert cost.keys_values == sum(tensor.numel() for tensor in held) > 0


def test_activations_are_inputs_and_outputs_of_linear_layers_and_attention(kept, model):
    """The inputs of queries, keys and values of self-attention are counted once; embeddings are not counted."""
    seen = []
    layers = [module for module in model.encoder.modules() if isinstance(module, nn.Linear)]
    repeated = {id(each) for site in head_sites(model) for each in (site.attention.k_proj, site.attention.v_proj)}

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


def test_times_and_limits_by_hand():
    device = roofline.Device("", "", itemsize=2, peak=100.0, bandwidth=10.0)
    by_flops, by_bytes = roofline.Cost(200, 3, 2, 1), roofline.Cost(200, 3, 10, 1)
    assert (roofline.seconds(by_flops, device), roofline.limit(by_flops, device)) == (2.0, "FLOPs")
    assert (roofline.seconds(by_bytes, device), roofline.limit(by_bytes, device)) == (2.8, "keys/values")


@pytest.fixture
def printed(monkeypatch, capsys):
    """printed(*arguments) gives the exit code, the lines of the output and the error."""

    def printed(*arguments):
        monkeypatch.setattr("sys.argv", ["roofline.py", *map(str, arguments)])
        try:
            code = roofline.main() or 0
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return printed


def test_the_table_of_a_device(printed):
    """By hand: transformer-base, 32 sentences, half of the heads."""
    code, lines, _ = printed(*"--part step --device A100 --heads 8 --batch 32 --remove 0.5 --length 25".split())
    assert code == 0 and lines[0] == f"decoder step 13 of 25, beam 4 (computed) - {A100}"
    flops, numbers = {}, {}
    for width in (512, 256):
        heads = 8 * 512 * width + 4 * width * 52 + 4 * 512 * width + 4 * width * 25
        flops[width] = 128 * (6 * (heads + 16 * 512**2) + 2 * 512 * 32000)
        weights = 6 * (
            4 * 512 * width + 3 * width + 512 + 2 * 512 * width + width + 512 + 8 * 512**2 + 5 * 512 + 6 * 512
        )
        cache = 6 * 2 * width * (128 * 13 + 32 * 25)
        moved = 6 * 128 * (512 + 3 * width + 2 * width + width + 512 + 512 + width + 2 * width + width + 512 + 10 * 512)
        numbers[width] = weights + 2 * 512 + 512 * 32000 + cache + moved + 128 * (512 + 32000)
    time = {width: max(flops[width] / 312e12, 2 * numbers[width] / 2039e9) for width in flops}
    expected = ["8", "32", f"{flops[512] / 1e9:.2f}", f"{2 * numbers[512] / 1e9:.3f}"]
    expected += [
        f"{flops[512] / 2 / numbers[512]:.1f}",
        f"{1000 * time[512]:.3f}",
        "weights",
        f"{time[512] / time[256]:.2f}",
    ]
    assert lines[-1].split() == expected


def test_pruning_is_faster_where_the_cache_dominates_memory_traffic(printed):
    """Long sentences: the cache. Short ones: the weights of all layers."""
    options = "--part step --device H100 --heads 8 --batch 1024 --remove 0.75 --length".split()
    (_, long, _), (_, short, _) = printed(*options, 512), printed(*options, 2)
    assert long[-1].split()[-2] == "keys/values" and float(long[-1].split()[-1]) > 3
    assert 1 < float(short[-1].split()[-1]) < 2


def test_a_model_that_does_not_fit_has_no_time(printed):
    options = "--part step --device A100 --heads 32 --batch 1024 --remove 0.01 0.75 --length 512".split()
    assert printed(*options)[1][-1].split()[-4:] == ["-", "memory", "-", "fits"]


def test_the_table_of_heads(printed):
    _, lines, _ = printed("--part", "heads", "--heads", 8)
    assert lines[-1].split() == ["8", "512", "60.5", "31.2%", "131,264", "0.269", "128"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--heads", 0], "--heads is 0: it must be at least 1"),
        (["--remove", 1], "--remove is 1: it must be above 0 and below 1"),
        (["--device", "V100"], "argument --device: invalid choice: 'V100' (choose from"),
    ],
)
def test_invalid_options_are_refused_in_one_line(options, message, printed):
    code, lines, error = printed(*options)
    assert code == 2 and not lines
    assert error.startswith(f"roofline.py: error: {message}") and error.count("\n") == 1
