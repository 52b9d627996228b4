"""What holds for every architecture with gates; support/families.py has a row for each."""

import copy
import json
import re
from itertools import product

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from support.checkpoints import assert_same_tensors, read
from support.commands import EVALUATION
from support.families import FAMILIES, LOG_ALPHA, OPEN, PROPERTIES
from support.models import assert_same
from support.pages import ROOT

from fairseq_headgates import attention_modules, gate_values, l0_penalty, masked, prune
from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.inference import kernels, packed_linear
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.safety.checkpoint import model_args
from fairseq_headgates.scores.ablation import ablation_losses
from fairseq_headgates.scores.options import SCORES


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def gated(family, seed=0, **options):
    """A model with gates on every type of its attention."""
    types = gate_values(family.make(seed))
    return family.make(seed, gate_heads=",".join(types), **options)


def test_with_open_gates_it_computes_what_fairseqs_model_computes(family):
    stock, ours = family.make(3, model=family.ours.stock), gated(family)
    assert family.make().state_dict().keys() == stock.state_dict().keys()
    missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
    assert all("gate" in name for name in missing) and not unexpected
    torch.testing.assert_close(family.outputs(ours), family.outputs(stock), rtol=0, atol=1e-6)


def test_gated_masked_pruned_and_stock_compute_the_same(family):
    """Gates that are closed, open and between; a layer without heads."""
    model = gated(family)
    for module in attention_modules(model):
        module.attention.gate.load_state_dict({"log_alpha": torch.tensor(LOG_ALPHA[module.layer])})
    expected, mask = family.outputs(model), open_mask(model)
    assert mask.layers == {each: OPEN[: len(rows)] for each, rows in mask.layers.items()}
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}
    before, pruned, smaller = copy.deepcopy(state), prune(model), prune_checkpoint(state, mask)
    assert_same_tensors(smaller["model"], dict(pruned.state_dict()))
    assert_same_tensors(dict(build_model(smaller).state_dict()), dict(pruned.state_dict()))
    found = [pruned, build_model(state), build_model(smaller)]
    if family.ours.stock in MODEL_REGISTRY.values():
        exported = stock_checkpoint(state, mask)
        found += [stock_of(family, exported), build_model(prune_checkpoint(exported, mask))]
    else:
        with pytest.raises(ValueError, match=f"fairseq has no architecture for {model.args.arch}"):
            stock_checkpoint(state, mask)
    assert_same(state, before)
    for other in found:
        torch.testing.assert_close(family.outputs(other), expected, rtol=1e-5, atol=1e-5)
    with masked(model, mask):
        torch.testing.assert_close(family.outputs(model), expected, rtol=1e-5, atol=1e-5)


def stock_of(family, exported):
    """The model of an exported checkpoint, as fairseq builds it."""
    args = model_args(exported)
    assert ARCH_MODEL_REGISTRY[args.arch] is family.ours.stock
    stock = family.ours.stock.build_model(args, family.task)
    if any("classification_heads" in name for name in exported["model"]):
        stock.register_classification_head("sentence_classification_head", num_classes=2)
    stock.load_state_dict(exported["model"], strict=True)
    return stock.eval()


# Architectures with a loss of their own. The first rows: see scores/test_ablation.py and criterions/test_criterions.py.
LOSSES = ["transformer_lm", "transformer_lm, adaptive", "roberta", "roberta, masked tokens", "bart", "all-attention"]


@torch.no_grad()
@pytest.mark.parametrize("family", LOSSES, indirect=True)
def test_the_criterion_adds_lambda_times_the_penalty_in_training_only(family):
    model, sample = gated(family, gate_init="1"), family.samples[0]
    ours, stock = family.criterions()
    ours.set_l0(0.3)

    def loss_of(criterion):
        torch.manual_seed(5)
        return criterion(copy.deepcopy(model), sample)  # a forward pass in training can change weights, and the memory

    assert float(loss_of(ours)[0]) == pytest.approx(float(loss_of(stock)[0]), abs=1e-5)
    model.train()
    (plain, size, _), (loss, _, logs) = loss_of(stock), loss_of(ours)
    penalty = float(l0_penalty(model))
    assert float(loss) - float(plain) == pytest.approx(0.3 * penalty * int(size), rel=1e-4)
    assert float(logs["l0"]) == pytest.approx(penalty * int(size))
    assert float(logs["heads_open"]) == int(size) * sum(gates.numel() for gates in gate_values(model).values())


@pytest.mark.cases(6)
@pytest.mark.parametrize("family", LOSSES, indirect=True)
@pytest.mark.parametrize("mode", ["single", "all-but-one"])
def test_ablation_is_the_loss_of_the_masked_model(family, mode):
    model, corpus = family.make(2), Corpus(family.task, family.samples)
    whole, losses = ablation_losses(model, corpus, mode)
    assert whole == pytest.approx(mean_loss(model, corpus), rel=1e-6)
    for attention_type, rows in losses.layers.items():
        for layer, head in product(range(len(rows)), range(4)):
            row = [int((i == head) == (mode == "all-but-one")) for i in range(4)]
            with masked(model, {attention_type: [row if i == layer else [1] * 4 for i in range(len(rows))]}):
                assert rows[layer][head] == pytest.approx(mean_loss(model, corpus), rel=1e-5, abs=1e-5)


# --- by command ------------------------------------------------------------------------------------------------------


BY_COMMAND = [name for name, family in FAMILIES.items() if family.commands]


each_by_command = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.release] * (name != "transformer")) for name in BY_COMMAND]
)


@each_by_command
def test_it_is_trained_pruned_compressed_and_measured_by_command(name, forms_of, run, request, tmp_path):
    """In every form alike, by fairseq's commands and by ours; the optimiser goes on with the pruned weights."""
    family, forms = FAMILIES[name], forms_of(name)
    commands = family.commands
    data, reading = commands.place(request), [*commands.reading, *EVALUATION]

    def measured(form):
        done = run(*commands.measure[:1], data, *commands.measure[1:], *reading, "--path", forms[form])
        words = " ".join(sorted(re.findall(commands.printed, done.text, re.MULTILINE))).split()
        return [float(word) if re.fullmatch(r"-?[\d.]+", word) else word for word in words]

    def loss(path):
        done = run("headgates", "evaluate", data, *reading, "--path", path, "--json")
        return json.loads(done.out)["losses"]["test"]["mean"]

    expected = measured("gated")
    assert expected
    for form in forms.keys() - {"trained", "gated"}:
        assert measured(form) == pytest.approx(expected, abs=2e-4), form
    if "generate" not in commands.measure[0]:  # which prints no loss
        assert any(number == pytest.approx(loss(forms["gated"]), abs=6e-4) for number in expected)

    shown = json.loads(run("headgates", "show", "--path", forms["pruned"], "--json").out)
    number = len(family.types)
    assert shown["gate"] == dict.fromkeys(family.types, OPEN[:2])
    assert shown["heads"] == dict.fromkeys(family.types, [3, 8]) | {"total": [3 * number, 8 * number]}

    pruned = ["--restore-file", forms["pruned"], "--alive-heads", forms["pruned"], "--remove-heads"]
    train = request.getfixturevalue(commands.train)
    train(tmp_path, *pruned, "--criterion", family.criterion[0], updates=3, **commands.choices)
    trained, state = read(tmp_path / "checkpoint_last.pt"), read(forms["pruned"])
    assert trained["optimizer_history"][-1]["num_updates"] == 3
    assert {n: w.shape for n, w in trained["model"].items()} == {n: w.shape for n, w in state["model"].items()}

    options = ["--gen-subset", "test", "--params", 0.9, "--fit-sentences", 50, "--out", tmp_path / "small.pt", "--json"]
    done = run("headgates", "compress", data, *reading, "--path", forms["gated"], *options)
    (found,) = json.loads(done.out)
    assert found["parameters"][1] <= 0.9 * found["parameters"][0]
    assert found["loss"][1] == pytest.approx(loss(tmp_path / "small.pt"), abs=1e-4)


@pytest.mark.release
@each_by_command
def test_its_properties_are_those_of_the_table(name, forms_of, run, request, monkeypatch):
    """A command works on it, or refuses it in one line."""
    family, path = FAMILIES[name], forms_of(name)["gated"]
    commands = family.commands
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", 1)
    reading = [commands.place(request), *commands.reading, *EVALUATION, "--gen-subset", "valid", "--path", path]
    for property, words in PROPERTIES.items():
        if property == "int8" and not kernels.int8_range():
            continue
        done = run("headgates", *words(reading), code=None)
        assert done.code == (2 if property in family.limits else 0), (property, done.err)
        assert done.code == 0 or (done.err.startswith("headgates") and done.err.count("\n") == 1)
        assert property != "int8" or "|dtype:int8" in done.out
    methods = ",".join(SCORES.keys() - {"relevance"})
    run("headgates", "score", *reading, "--method", methods)


def test_the_page_has_the_table():
    """The table of docs/any-model.md: a row for each family that is trained by command, a column for each property."""
    lines = (ROOT / "docs" / "any-model.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    header, _, *rows = rows[: 2 + len(BY_COMMAND)]
    assert header == ["architecture", *PROPERTIES]
    names = [re.sub(r"`| \(.*\)", "", name) for name, *_ in rows]
    assert {name: cells for name, (_, *cells) in zip(names, rows, strict=True)} == {
        name: [FAMILIES[name].limits.get(each, "yes") for each in PROPERTIES] for name in BY_COMMAND
    }
