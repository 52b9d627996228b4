"""Gating methods in training: several forward passes, fixed gates, weight decay."""

import argparse
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY, OPTIMIZER_REGISTRY, FP16Optimizer, build_optimizer
from support.commands import TYPES
from support.gates import LAYER_TYPES, layers
from support.models import make_batch, make_gated

from fairseq_headgates import attention_modules
from fairseq_headgates.attention.modules import gate_method
from fairseq_headgates.compat import configuration
from fairseq_headgates.gates import (
    HardConcrete,
    HeadGates,
    L0Gates,
)

INIT_0 = {"gate_heads": TYPES, "gate_init": "0"}


@pytest.mark.parametrize(
    ("passes", "sparsity", "dropout"),
    [
        ("++", "l0", 0),
        ("++", "lagrangian", 0.1),
        *((passes, "subset", 0.1) for passes in ("+++", "-++-", "+e+")),
    ],
)
def test_gradients_of_several_forward_passes_are_exact(passes, sparsity, dropout):
    """With --checkpoint-activations as without, with the same random numbers; R-Drop makes two passes for each update.

    `passes` are those before the backward pass: + with gradients, - without, e in evaluation mode.
    """
    target = {} if sparsity == "l0" else {"target_heads": "9", "sparsity_method": sparsity}
    tolerance = 1e-5 if sparsity == "subset" else 1e-9  # gates are in single precision, and a subset sums over them
    found = []
    for recomputed in (False, True):
        model, total = make_gated(**INIT_0, checkpoint_activations=recomputed, dropout=dropout, **target).double(), 0
        torch.manual_seed(0)
        for number, kind in enumerate(passes):
            model.train(kind != "e")
            with torch.set_grad_enabled(kind == "+"):
                output = model(**make_batch(seed=number))[0]
            if kind == "+":
                total = total + (number + 1) * output.log_softmax(-1)[..., 3].sum()
        model.train()
        total.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=tolerance, atol=tolerance, msg=name)
    assert any(grad.abs().max() > 1e-3 for name, grad in found[0].items() if name.endswith("theta"))


@pytest.mark.parametrize("sparsity", ["l0", "subset"])
def test_gradients_of_interleaved_forward_passes_with_dropout_are_those_of_single_ones(sparsity):
    """Forward passes of activations that are recomputed; a is ended while b is open, b while c is."""
    target = {} if sparsity == "l0" else {"target_heads": "9", "sparsity_method": sparsity}
    model = make_gated(**INIT_0, checkpoint_activations=True, dropout=0.3, **target).train()

    def forward(number):
        torch.manual_seed(number)
        return (number + 1) * model(**make_batch(seed=number))[0].log_softmax(-1)[..., 3].sum()

    def gradients():
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    for number in range(3):
        forward(number).backward()
    expected = gradients()
    model.zero_grad()
    a, b = forward(0), forward(1)
    a.backward()
    c = forward(2)
    b.backward()
    c.backward()
    for name, grad in gradients().items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_layers_outside_of_a_forward_pass_are_recomputed_with_their_own_gates():
    """Such as the encoder alone, while a forward pass of the whole model is open."""
    batch, found = make_batch(), []
    for recomputed in (False, True):
        model = make_gated(**INIT_0, checkpoint_activations=recomputed, dropout=0).train()
        whole = model(**batch)[0].sum()
        torch.manual_seed(5)
        model.encoder(batch["src_tokens"], batch["src_lengths"])["encoder_out"][0].pow(3).sum().backward()
        found.append(
            [
                module.attention.gate.theta.grad
                for module in attention_modules(model)
                if module.attention_type == "enc-self"
            ]
        )
        whole.backward()
    torch.testing.assert_close(found[1], found[0])


def test_gates_are_fixed_after_the_given_update_and_stay_fixed():
    made = layers([[3, 0.2, -3, 0.1]] * 3, lr_scale=7.0)
    method = L0Gates(made, LAYER_TYPES, fix_after=10).train()
    method.set_num_updates(9)
    assert not method.fixed
    method.set_num_updates(10)
    method.before_forward()
    assert method.fixed
    assert made[0].log_alpha().tolist() == [10, 10, -10, 10]
    for _ in range(3):
        method.before_forward()
        gates = method.training_gates(made[0])
        assert gates.tolist() == [1, 1, 0, 1] and not gates.requires_grad


def test_fixed_gates_do_not_read_the_parameter():
    """Optimisers in mixed precision overwrite it with their own copy after every update."""
    made = layers([[3, 0.2, -3, 0.1]] * 3)
    method = L0Gates(made, LAYER_TYPES, fix_after=10).train()
    method.set_num_updates(10)
    method.before_forward()
    with torch.no_grad():
        made[0].theta.fill_(-7.0)
    assert made[0].evaluation_value().tolist() == [1, 1, 0, 1]
    assert made[0].state_dict()["log_alpha"].tolist() == [10, 10, -10, 10]


STRETCHES = [(-0.1, 1.1), (-1e-5, 1.1), (-0.1, 1 + 1e-6), (-1e-6, 1e6), (-1e6, 1 + 1e-6), (-0.7e6, 1.3), (-100.3, 1.05)]


@pytest.mark.parametrize("temperature", [0.33, 50.0])
@pytest.mark.parametrize("stretch", STRETCHES)
def test_fixed_gates_are_exactly_0_or_1_whatever_the_stretch(stretch, temperature):
    distribution = HardConcrete(temperature, *stretch)
    made = [HeadGates(2, distribution) for _ in LAYER_TYPES]
    for layer in made:
        layer.load_state_dict({"log_alpha": distribution.closes_at + torch.tensor([0.2, -0.2])})
    expected = [1.0, 0.0] * 3
    method = L0Gates(made, LAYER_TYPES, fix_after=1).train()
    method.set_num_updates(1)
    method.before_forward()
    assert torch.cat([method.training_gates(layer) for layer in made]).tolist() == expected
    copies = [HeadGates(2, distribution) for _ in LAYER_TYPES]  # as a checkpoint is loaded
    for layer, copied in zip(made, copies, strict=True):
        copied.load_state_dict(layer.state_dict())
    for loaded in (method.eval(), L0Gates(copies, LAYER_TYPES).eval()):
        assert loaded.evaluate(loaded.log_alpha()).tolist() == expected
        assert torch.cat([layer.eval()() for layer in loaded.layers]).tolist() == expected
        assert loaded.open_probability(loaded.log_alpha()).tolist() == pytest.approx(expected, abs=1e-3)


GPU_ONLY = {"lamb", "cpu_adam"}  # and packages of their own
OPTIONS = {
    "adagrad": ["--lr", 0.5],
    "sgd": ["--momentum", 0.9],
    "adam": ["--adam-betas", "(0.9, 0.99)"],
    "adafactor": ["--beta1", 0.9],
}


def fairseq_optimizer(name, parameters, weight_decay, *options):
    """An optimiser of fairseq with the options of its command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1])
    OPTIMIZER_REGISTRY["adam" if name == "composite" else name].add_args(parser)
    args = parser.parse_args([*map(str, options or OPTIONS.get(name, [])), "--weight-decay", str(weight_decay)])
    args.optimizer = name
    if name == "composite" or name in OPTIMIZER_DATACLASS_REGISTRY:
        kind = "adam" if name == "composite" else name
        fields = OPTIMIZER_DATACLASS_REGISTRY[kind].__dataclass_fields__
        own = {**{key: value for key, value in vars(args).items() if key in fields}, "_name": kind}
        if name == "composite":
            default = {"optimizer": own, "lr_scheduler": {"_name": "fixed", "lr": args.lr}}
            own = {"_name": name, "groups": {"default": default}}
        # fairseq's options refer to each other.
        args = configuration({"common": {"tpu": False}, "optimization": {"lr": args.lr}, "optimizer": own}).optimizer
    return build_optimizer(args, parameters)


def updated(name, weight_decay, gradients, *options, make=fairseq_optimizer, half=False, freeze=None):
    """The parameters of a gated model after updates with these gradients; None if the optimiser needs a GPU."""
    model = make_gated(gate_heads=TYPES, sparsity_method="lagrangian", target_heads="9", freeze_params=freeze).train()
    model = model.half() if half else model
    method, parameters = gate_method(model), [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        method.multipliers.fill_(0.2)
    try:
        optimizer = make(name, parameters, weight_decay, *options)
    except (ImportError, AssertionError) as error:
        assert name in GPU_ONLY, error
        return None
    whole = [len(group["params"]) for group in optimizer.param_groups]
    for number, gradient in enumerate(gradients):
        method.set_num_updates(number)
        method.before_forward(model)
        generator = torch.Generator().manual_seed(number)
        for p in parameters:
            p.grad = gradient * torch.randn(p.shape, generator=generator).to(p)
        optimizer._needs_sync = True
        optimizer.step()
    assert [len(group["params"]) for group in optimizer.param_groups] == whole
    return dict(model.named_parameters())


def assert_gates_are_not_decayed(found, expected):
    """The gates are the same to the last bit; weight decay moves all other matrices."""
    for name, values in expected.items():
        if "gate" in name:
            assert torch.equal(found[name], values), name
        elif values.dim() > 1:
            assert not torch.equal(found[name], values), name


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", OPTIMIZER_REGISTRY)
@pytest.mark.parametrize("gradients", [[0] * 3, [1, 0.1, 3, 0, 0, 1]], ids=["without a gradient", "with gradients"])
def test_no_optimizer_of_fairseq_decays_the_gates(name, gradients):
    found, expected = (updated(name, decay, gradients) for decay in (0.1, 0))
    if found is None:
        pytest.skip("needs a GPU")
    assert_gates_are_not_decayed(found, expected)
    if not any(gradients):
        gate = found["encoder.layers.0.self_attn.gate.theta"]
        assert torch.equal(gate, torch.full((4,), 2.5 / 50)) and (found["gate_method.multipliers"] == 0.2).all()


def mixed_precision(name, parameters, weight_decay, *options, flat):
    """fairseq's optimiser of --fp16, on a CPU."""
    made = fairseq_optimizer(name, [torch.nn.Parameter(p.detach().float()) for p in parameters], weight_decay)
    common = {"fp16_no_flatten_grads": not flat, "fp16_scale_window": 1, "fp16_init_scale": 1}
    common |= {"fp16_scale_tolerance": 0.0, "threshold_loss_scale": None, "min_loss_scale": 1e-4}
    settings = SimpleNamespace(
        optimizer=made.cfg if hasattr(made, "cfg") else made.args, common=SimpleNamespace(**common)
    )
    return FP16Optimizer.build_optimizer(settings, parameters)


@pytest.mark.parametrize("name", ["adam", "adadelta"])
def test_weight_decay_leaves_the_gates_in_mixed_precision(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of a CPU
    make = partial(mixed_precision, flat=False)
    found, expected = (updated(name, decay, [1, 0.1, 0, 1], make=make, half=True) for decay in (0.3, 0))
    assert_gates_are_not_decayed(found, expected)
    assert not torch.equal(expected["gate_method.multipliers"], torch.full((1, 2), 0.2).half())


def test_frozen_gates_need_not_be_in_an_optimizer_with_weight_decay():
    found = updated("adam", 0.1, [1, 1, 1], freeze=r"\.gate\.|^gate_method")
    assert torch.equal(found["encoder.layers.0.self_attn.gate.theta"], torch.full((4,), 2.5 / 50))


def test_weight_decay_in_an_optimizer_that_hides_the_gates_ends_the_training(capsys, monkeypatch):
    """--fp16 trains one vector of all parameters."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # the index of a CPU
    make = partial(mixed_precision, flat=True)
    assert updated("adam", 0, [1, 1], make=make, half=True)
    with pytest.raises(SystemExit) as stopped:
        updated("adam", 0.1, [1, 1], make=make, half=True)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "fairseq-headgates: error: --weight-decay cannot be kept from the gates, because the optimiser does not hold "
        "them by themselves (--fp16, sharded or composite optimisers): use --fp16-no-flatten-grads or --weight-decay 0"
    ]


def test_a_checkpoint_in_evaluation_does_not_fix_its_gates():
    made = layers([[3, 0.2, -3, 0.1]] * 3)
    method = L0Gates(made, LAYER_TYPES, fix_after=10).eval()
    method.set_num_updates(10)
    method.before_forward()
    assert made[0].log_alpha().tolist() == pytest.approx([3, 0.2, -3, 0.1])
