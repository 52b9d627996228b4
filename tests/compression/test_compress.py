"""Models without heads and neurons against models with zeros in their place, and `headgates compress`."""

import json
import math
import re
from dataclasses import replace

import ctranslate2
import pytest
import torch
from support.analysis import READ
from support.classifiers import CLASSES, MASKED
from support.commands import EVALUATION, hypotheses, worker_arguments
from support.models import PAD, make_args, make_task
from support.sentences import PAIRS, TASK, make_model, many_sentences, sample

from fairseq_headgates import compress, prune
from fairseq_headgates.attention.anatomy import attention_modules, blocks_of
from fairseq_headgates.attention.neurons import ffn_dims
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.compression import model as compressing
from fairseq_headgates.compression import timing
from fairseq_headgates.compression.moments import moments
from fairseq_headgates.compression.plan import parameters_saved, plan_of, units_of
from fairseq_headgates.compression.refit import refit_to
from fairseq_headgates.compression.search import Curve
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.plugin.models.building import load_model
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from fairseq_headgates.plugin.options.values import parse_ffn_dims

BATCHES = [sample(PAIRS[:15]), sample(PAIRS[15:])]


def logits(model):
    with torch.no_grad():
        return model(**sample(PAIRS)["net_input"])[0]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_removed_neurons_are_neurons_without_output():
    model, kept = make_model(), {"encoder.layers.0": [0, 5, 63], "decoder.layers.1": []}
    found = prune(model, neurons=kept)
    with torch.no_grad():
        for name, neurons in kept.items():
            others = [i for i in range(64) if i not in neurons]
            model.get_submodule(name).fc2.weight[:, others] = 0
    torch.testing.assert_close(logits(found), logits(model), atol=1e-12, rtol=1e-10)
    assert ffn_dims(found) == {"encoder": [3, 64], "decoder": [64, 0]}


def test_a_block_without_neurons_outputs_the_mean_of_its_outputs():
    model, corpus, kept = make_model(), Corpus(TASK, BATCHES), {"decoder.layers.1": []}
    small = prune(model, neurons=kept)
    before = mean_loss(small, corpus)
    values = refit_to(model, small, corpus, neurons=kept)
    assert [*values] == ["decoder.layers.1.fc2.weight", "decoder.layers.1.fc2.bias"]
    assert abs(mean_loss(small, corpus) - mean_loss(model, corpus)) < abs(before - mean_loss(model, corpus))


def test_the_cheapest_units_are_removed():
    """Heads without output weights and neurons that copy others cost nothing."""
    model = make_model()
    with torch.no_grad():
        model.encoder.layers[1].self_attn.out_proj.weight[:, 8:16] = 0
        for parameter in model.decoder.layers[0].fc1.parameters():
            parameter[32:] = parameter[:32]
    whole = prune(model)
    units = units_of(whole, Corpus(TASK, BATCHES))
    plan = plan_of(whole, units, parameters_saved(units), 32 * (2 * 32 + 1))
    assert plan.cost < 1e-3 and {*plan.neurons} == {"decoder.layers.0"}
    assert len({neuron % 32 for neuron in plan.neurons["decoder.layers.0"]}) == 32
    assert plan.mask.layers["enc-self"] == [[1, 1, 1, 1], [1, 0, 1, 1]]


@pytest.mark.parametrize("units", [["heads"], ["neurons"], ["heads", "neurons"]])
def test_the_budget_is_kept(units):
    model = make_model()
    found = compress(model, TASK, BATCHES, 0.9, units)
    assert 0.88 * parameters(model) < parameters(found) <= 0.9 * parameters(model)
    heads = sum(module.attention.num_heads for module in attention_modules(found))
    neurons = sum(map(sum, ffn_dims(found).values()))
    assert (heads == 24 or "heads" in units) and (neurons == 4 * 64 or "neurons" in units)


def test_all_parameters_change_nothing():
    model = make_model()
    assert torch.equal(logits(compress(model, TASK, BATCHES, 1.0)), logits(prune(model)))


def test_sentences_that_are_held_out_do_not_count():
    """Losses, inputs and gradients are those of the other sentences alone."""
    model = prune(make_model())
    batches = [{**sample(PAIRS[i : i + 20]), "id": torch.arange(i, i + 20)} for i in (0, 20)]
    parts = zip(Corpus(TASK, batches).held_out(0.1), (slice(0, 36), slice(36, 40)), strict=True)
    for part, numbers in parts:
        alone = Corpus(TASK, [{**sample(PAIRS[numbers]), "id": torch.arange(40)[numbers]}])
        assert mean_loss(model, part) == pytest.approx(mean_loss(model, alone), rel=1e-12)
        found, expected = (moments(model, each, blocks_of(model), sampled=True) for each in (part, alone))
        for name, of_layer in expected.items():
            torch.testing.assert_close(found[name].inputs, of_layer.inputs, atol=1e-10, rtol=1e-10)
            torch.testing.assert_close(found[name].gradients, of_layer.gradients, atol=1e-10, rtol=1e-10)


def test_batches_have_the_sentences_of_their_part_alone():
    """Also in dictionaries within them; a batch without any is left out."""
    batches = [{**sample(PAIRS[i : i + 10]), "id": torch.arange(i, i + 10)} for i in (0, 10)]
    fit, held_out = Corpus(TASK, batches).held_out(0.1)
    assert [batch["id"].tolist() for batch in fit.batches] == [[*range(10)], [*range(10, 18)]]
    (batch,) = held_out.batches
    assert torch.equal(batch["net_input"]["src_tokens"], batches[1]["net_input"]["src_tokens"][8:])


def sure_batch(model, number, seed):
    """A batch whose targets are those that the model predicts with a probability above 0.999."""
    batch = sample(many_sentences(number, seed))
    probability, best = model(**batch["net_input"])[0].softmax(-1).max(-1)
    return {**batch, "target": torch.where((probability > 0.999) & (batch["target"] != PAD), best, PAD)}


@torch.no_grad()
def test_a_loss_that_contradicts_the_estimate_is_reported(caplog):
    """Gradients vanish where a model is sure of its predictions; but without its heads it is wrong."""
    model = make_model()
    model.decoder.output_projection.weight *= 20
    compress(model, TASK, [sure_batch(model, 100, 7)], 0.9, ["heads"])
    (message,) = (message for message in caplog.messages if "estimated" in message)
    rises, estimated = map(float, re.findall(r"[\d.e-]+(?= bits| were)", message))
    assert rises > 1000 * estimated


@torch.no_grad()
def test_of_several_plans_the_best_by_measurement_is_taken(monkeypatch):
    """The estimate does not see the last head of the first self-attention of the decoder, the only one that counts."""
    model, blind = make_model(), "decoder.layers.0.self_attn"
    layer = model.get_submodule(blind)
    layer.out_proj.weight[:, 8:] = 0
    layer.out_proj.weight[:, :8] *= 10
    model.decoder.output_projection.weight *= 20

    def curves(*given, **options):
        return [
            replace(each, curve=Curve((1, 2, 3, 0), (0.0,) * 5)) if each.block.name == blind else each
            for each in units_of(*given, **options)
        ]

    monkeypatch.setattr(compressing, "units_of", curves)
    corpus, batches = Corpus(TASK, [sure_batch(model, 100, 8)]), [sure_batch(model, 300, 7)]
    wanted = parameters(model) - 5 * (4 * 8 * 32 + 3 * 8)  # without five heads
    whole = mean_loss(prune(model), corpus)
    found = compress(model, TASK, batches, wanted, ["heads"])
    monkeypatch.setattr(compressing, "UNEXPECTED", math.inf)
    planned = compress(model, TASK, batches, wanted, ["heads"])
    assert [each.get_submodule(blind).num_heads for each in (planned, found)] == [0, 1]
    assert parameters(found) <= wanted
    assert mean_loss(planned, corpus) - whole > 10 * (mean_loss(found, corpus) - whole)


@pytest.fixture
def without_costs(monkeypatch):
    """Costs of units, which take minutes, are not computed."""
    monkeypatch.setattr(compressing, "units_of", None)


@pytest.mark.parametrize("params", [0.1, 1, 1.01])
@pytest.mark.usefixtures("without_costs")
def test_budgets_out_of_reach_are_refused(params):
    words = rf"--params is {params}: it must be from [\d,]+ \([\d.]+%\), without any heads"
    with pytest.raises(ValueError, match=words):
        compress(make_model(), TASK, BATCHES, params)


# --- options and files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "line"),
    [
        ("[64]", "'\\[64\\]' does not give the neurons of each layer"),
        ('{"middle": [1]}', "does not give the neurons"),
        ('{"encoder": [-1, 2]}', "does not give the neurons"),
        ('{"encoder": [1]}', "has 1 layers of the encoder, the model has 2"),
        ('{"decoder": [64, 65]}', "65 neurons: it must be at most 64, --decoder-ffn-embed-dim"),
    ],
)
def test_wrong_dimensions_are_refused(dims, line):
    with pytest.raises(ValueError, match=line):
        TransformerHeadGatesModel.build_checked(make_args(ffn_dims=dims), make_task())


def test_a_new_model_has_the_given_dimensions():
    dims = {"encoder": [0, 64], "decoder": [8, 1]}
    model = TransformerHeadGatesModel.build_checked(make_args(ffn_dims=json.dumps(dims)), make_task())
    assert ffn_dims(model) == dims
    torch.nn.functional.cross_entropy(model(**sample(PAIRS)["net_input"])[0].flatten(0, 1), torch.zeros(320).long())


@pytest.fixture(scope="module")
def compressed(toy, checkpoints, run, tmp_path_factory):
    """A checkpoint with 80% of the parameters, and what the command printed."""
    out = tmp_path_factory.mktemp("compressed") / "small.pt"
    arguments = [toy.data, "--path", checkpoints["baseline"], "--gen-subset", "valid", *READ]
    arguments += ["--params", "0.8", "--fit-sentences", 60, "--out", out]
    return out, run("headgates", "compress", *arguments).out


def test_dimensions_are_those_of_a_checkpoint(compressed, checkpoints):
    assert json.dumps(parse_ffn_dims(str(compressed[0]))) == json.dumps(ffn_dims(load_model(compressed[0])[1]))
    assert parse_ffn_dims(str(checkpoints["gated"])) is None


def test_the_command_writes_what_the_function_returns(compressed, toy, checkpoints, headgates):
    out, text = compressed
    _, model = load_model(out)
    assert "encoder neurons" in text and f"{parameters(model):,}" in text
    neurons = " ".join(map(str, ffn_dims(model)["encoder"]))
    assert f"neurons of the encoder, by layer: {neurons}" in headgates("show", "--path", out)
    arguments = [toy.data, "--path", checkpoints["baseline"], "--params", "0.8", "--fit-sentences", 60, "--json", *READ]
    (found,) = json.loads(headgates("compress", *arguments))
    assert found["ffn_dims"][1] == ffn_dims(model) and found["parameters"][1] == parameters(model)


@pytest.mark.release
def test_programs_translate_with_it_alike(compressed, toy, run, train, headgates, tmp_path):
    """fairseq-generate, with the plugin, without it, and after training without a learning rate; and CTranslate2."""
    out, _ = compressed
    options = ["--gen-subset", "test", "--cpu", "--beam", 1, "--max-len-b", 8]
    expected = hypotheses(run("fairseq-generate", toy.data, *EVALUATION, *options, "--path", out))
    headgates("prune", "--path", out, "--out", tmp_path / "stock.pt", "--stock")
    alone = run("fairseq-generate", toy.data, *EVALUATION[2:], *options, "--path", tmp_path / "stock.pt")
    more = ["--finetune-from-model", out, "--alive-heads", out, "--remove-heads", "--ffn-dims", out, "--lr", 0]
    train(tmp_path / "more", *more, updates=1)
    trained = run("fairseq-generate", toy.data, *EVALUATION, *options, "--path", tmp_path / "more/checkpoint_last.pt")
    assert expected == hypotheses(alone) == hypotheses(trained) and len(set(expected)) > 2
    headgates("convert", "--path", out, "--out", tmp_path / "ct2", "--to", "ctranslate2", toy.data)
    translator = ctranslate2.Translator(str(tmp_path / "ct2"))
    sources = [line.split() for line in (toy.text / "test.src").read_text().splitlines()]
    found = translator.translate_batch(sources, beam_size=1, max_decoding_length=8)
    assert [" ".join(each.hypotheses[0]) for each in found] == expected


@pytest.fixture
def one_batch(monkeypatch):
    """The speed is measured on one batch."""
    monkeypatch.setattr(timing, "SECONDS", 0)


def check_smaller(run, data, options, whole, folder, metric=()):
    """`headgates compress` and `evaluate` find the same loss, size and accuracy."""
    out, reads = folder / "small.pt", [*options, "--gen-subset", "valid"]
    compressed = [data, *reads, "--path", whole, "--params", "0.9", "--fit-sentences", 100, "--out", out, "--speed"]
    (found,) = json.loads(run("headgates", "compress", *compressed, *metric, "--json").out)
    assert found["speedup"] > 0
    evaluated = json.loads(run("headgates", "evaluate", data, *reads, "--path", out, "--json").out)
    assert evaluated["parameters"] == found["parameters"][1] <= 0.9 * found["parameters"][0]
    assert evaluated["losses"]["valid"]["mean"] == pytest.approx(found["loss"][1], abs=1e-4)
    if metric:
        assert evaluated["scores"]["accuracy"]["score"] == pytest.approx(found["accuracy"][1])


@pytest.mark.release
@pytest.mark.usefixtures("one_batch")
@pytest.mark.parametrize("task", [CLASSES, MASKED])
def test_encoders_are_compressed(task, toy_classes, train_roberta, run, tmp_path):
    train_roberta(tmp_path, "--gate-heads", "enc-self", task=task)
    data = toy_classes / "input0" if task is MASKED else toy_classes
    metric = ["--metric", "accuracy"] if task is CLASSES else []
    check_smaller(run, data, [*task, *EVALUATION], tmp_path / "checkpoint_last.pt", tmp_path, metric)


@pytest.mark.release
def test_two_workers_compress_as_one(compressed, start, toy, checkpoints, tmp_path):
    places = [toy.data, "--path", checkpoints["baseline"], "--params", "0.8", "--fit-sentences", 60, *READ]
    workers = [
        start("headgates", "compress", *places, "--out", tmp_path / "two.pt", *own) for own in worker_arguments(2)
    ]
    outputs = [worker.finish().expect(0).out for worker in workers]
    assert outputs[0] and not outputs[1]
    one, two = (load_model(path)[1].state_dict() for path in (compressed[0], tmp_path / "two.pt"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-4, rtol=1e-4)


def test_the_optimiser_is_cut(toy, checkpoints):
    """As the weights: a checkpoint without neurons, but not repaired, keeps the moments of the others."""
    state, model = load_model(checkpoints["baseline"])
    kept = {"encoder.layers.0": (1, 4), "decoder.layers.1": ()}
    smaller = prune_checkpoint(state, {"enc-self": [[1] * 4] * 2}, model=model, neurons=kept)
    names = [name for name, _ in model.named_parameters()]
    for name, entry in zip(names, smaller["last_optimizer_state"]["state"].values(), strict=True):
        assert entry["exp_avg"].shape == smaller["model"][name].shape, name
    number = names.index("encoder.layers.0.fc1.weight")
    before, after = (each["last_optimizer_state"]["state"][number]["exp_avg"] for each in (state, smaller))
    assert torch.equal(after, before[[1, 4]])


def test_a_checkpoint_without_its_option_is_refused(headgates, toy, checkpoints):
    error = headgates("compress", toy.data, checkpoints["baseline"], "--params", "0.9", code=2)
    assert error.endswith(f"unrecognized arguments: {checkpoints['baseline']}; the checkpoint is --path CKPT\n")


@pytest.mark.usefixtures("without_costs")
def test_sizes_out_of_reach_are_refused_before_the_costs_are_computed(headgates, toy, checkpoints):
    places = [toy.data, "--path", checkpoints["baseline"], "--gen-subset", "valid", *READ]
    error = headgates("compress", *places, "--params", "0.9,0.01", code=2)
    assert "--params is 0.01: it must be from" in error and error.count("\n") == 1
