"""The state of Adam is cut to what the pruned model would have stored."""

from functools import cache

import pytest
import torch
from support.checkpoints import OPEN, small_gated, small_state
from support.models import logits, make_batch

from fairseq_headgates import HeadTable, prune
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.safety.checkpoint import model_args

NO_DECODER = {**OPEN, "dec-self": [[0] * 4] * 2}


# The state of the optimiser, by a second route

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0, amsgrad=True),
}
FREEZE = r"^decoder\.layers\.0\.(self_attn|fc1)|k_proj\.bias|embed_tokens"


def accumulate(model, make):
    """What an optimiser remembers of three batches while it changes nothing (its rate is 0)."""
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    for seed in range(3):
        optimizer.zero_grad()
        batch = make_batch(seed)
        output = model(**batch)[0].flatten(0, 1)
        torch.nn.functional.cross_entropy(output, batch["prev_output_tokens"].flatten()).backward()
        for parameter in model.parameters():  # distributed training knows no missing gradient
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(("name", "freeze"), [("adam", None), ("adam", FREEZE), ("amsgrad", FREEZE)])
def test_pruned_optimizer_state_equals_that_of_training_the_pruned_model(name, freeze):
    """The gates do not move and have no noise, so the pruned model would have seen these very gradients."""
    model = small_gated(freeze_params=freeze)
    state = small_state(model, accumulate(model, OPTIMIZERS[name]))
    for mask in (OPEN, {**OPEN, "dec-self": [[0, 0, 0, 0], [1, 0, 0, 1]]}):
        pruned = prune(model, HeadTable(mask))
        if mask is OPEN:
            expected = accumulate(pruned, OPTIMIZERS[name]).state_dict()
            compare_remembered(prune_checkpoint(state, HeadTable(mask))["last_optimizer_state"], expected)
        else:  # removing an open head changes the gradients, but never the numbers and the shapes
            cut = prune_checkpoint(state, HeadTable(mask))["last_optimizer_state"]
            trained = [p for p in pruned.parameters() if p.requires_grad]
            assert cut["param_groups"][0]["params"] == list(range(len(trained)))
            OPTIMIZERS[name](trained).load_state_dict(cut)
            for number, parameter in enumerate(trained):
                assert all(v.shape == parameter.shape for v in cut["state"][number].values() if getattr(v, "ndim", 0))


def compare_remembered(actual, expected):
    assert actual["param_groups"] == expected["param_groups"]
    assert actual["state"].keys() == expected["state"].keys()
    for number, entry in expected["state"].items():
        assert actual["state"][number].keys() == entry.keys()
        for key, value in entry.items():
            torch.testing.assert_close(
                actual["state"][number][key],
                value,
                atol=1e-7,  # the gradient of the keys' bias is 0 in theory; what is remembered of it is rounding
                rtol=2e-3,
                msg=lambda t, n=number, k=key: f"{n} {k}: {t}",
            )


@pytest.mark.parametrize("freeze", [None, FREEZE])
def test_flat_fp16_state_is_pruned_like_separate_parameters(freeze):
    """--fp16 trains one long vector: its moments are those of all trained parameters, one after another."""
    model = small_gated(freeze_params=freeze)
    separate = accumulate(model, OPTIMIZERS["adam"]).state_dict()
    entries = [separate["state"][number] for number in range(len(separate["state"]))]
    flat = {
        "state": {
            0: {"step": 3, **{k: torch.cat([e[k].view(-1) for e in entries]) for k in ("exp_avg", "exp_avg_sq")}}
        },
        "param_groups": [{**separate["param_groups"][0], "params": [0]}],
        "loss_scale": 128.0,
    }
    mask = HeadTable(OPEN)
    cut = prune_checkpoint({**small_state(model), "last_optimizer_state": flat}, mask)["last_optimizer_state"]
    expected = prune_checkpoint({**small_state(model), "last_optimizer_state": separate}, mask)["last_optimizer_state"]
    assert cut["loss_scale"] == 128 and cut["param_groups"] == flat["param_groups"]
    (entry,) = cut["state"].values()
    assert entry["step"] == 3
    for key in ("exp_avg", "exp_avg_sq"):
        joined = torch.cat([expected["state"][n][key].reshape(-1) for n in range(len(expected["state"]))])
        assert torch.equal(entry[key], joined)
    vector = torch.nn.Parameter(torch.zeros(sum(p.numel() for p in prune(model, mask).parameters() if p.requires_grad)))
    assert entry["exp_avg"].shape == vector.shape


@cache
def refused_states():
    model = small_gated()
    adam = accumulate(model, OPTIMIZERS["adam"]).state_dict()
    trained = len(adam["state"])
    groups = [{**adam["param_groups"][0], "params": part} for part in ([0], list(range(1, trained)))]
    factored = {"step": 1, "exp_avg_sq_row": torch.ones(3), "exp_avg_sq_col": torch.ones(4), "RMS": 1.0}
    flat = {"step": 1, "exp_avg": torch.zeros(7), "exp_avg_sq": torch.zeros(7)}
    return model, {
        "two groups": {**adam, "param_groups": groups},
        "adafactor": {**adam, "state": dict.fromkeys(range(trained), factored)},
        "other parameters": {**adam, "param_groups": [{**adam["param_groups"][0], "params": list(range(trained - 1))}]},
        "another shape": {**adam, "state": {**adam["state"], 3: {"exp_avg": torch.zeros(2, 2)}}},
        "a vector of another length": {"state": {0: flat}, "param_groups": [{"params": [0]}]},
        "several optimisers": {"0": adam, "1": adam},
    }


@pytest.mark.parametrize("kind", refused_states()[1])
def test_states_that_cannot_be_pruned_are_dropped_with_a_notice(kind):
    model, states = refused_states()
    state, notices = {**small_state(model), "last_optimizer_state": states[kind]}, []
    smaller = prune_checkpoint(state, HeadTable(OPEN), notice=notices.append)
    assert smaller["last_optimizer_state"] is None
    (notice,) = notices
    assert notice.startswith("the optimiser state is dropped (") and "\n" not in notice
    prune_checkpoint(state, HeadTable(OPEN), optimizer=False, notice=pytest.fail)
    stock_checkpoint(state, HeadTable(OPEN))


def test_frozen_gates_are_no_longer_named():
    """`--freeze-params '\\.gate\\.'` names nothing in the pruned model, which would not load with it."""
    model = small_gated(freeze_params=r"\.gate\.")
    smaller = prune_checkpoint(small_state(model), HeadTable(OPEN))
    assert model_args(smaller).freeze_params is None
    build_model(smaller)
    kept = prune_checkpoint(small_state(small_gated(freeze_params=FREEZE)), HeadTable(OPEN))
    assert model_args(kept).freeze_params == FREEZE
    assert not build_model(kept).encoder.embed_tokens.weight.requires_grad


def test_a_model_that_trained_its_gates_alone_is_pruned():
    """`--freeze-params '^(?!.*\\.gate\\.)'`: without gates nothing would be left to train, so nothing is frozen."""
    model = small_gated(freeze_params=r"^(?!.*\.gate\.)")
    smaller = prune_checkpoint(small_state(model, accumulate(model, OPTIMIZERS["adam"])), HeadTable(OPEN))
    torch.testing.assert_close(
        logits(build_model(smaller), make_batch()), logits(model, make_batch()), atol=1e-5, rtol=1e-5
    )


def test_a_frozen_shared_parameter_stays_frozen_under_its_other_name():
    """With shared embeddings `decoder.embed_tokens` is `encoder.embed_tokens`; it stays frozen."""
    model = small_gated(freeze_params=r"^decoder\.embed_tokens", share_all_embeddings=True)
    state = small_state(model, accumulate(model, OPTIMIZERS["adam"]))
    smaller = prune_checkpoint(state, HeadTable(OPEN))
    assert not build_model(smaller).encoder.embed_tokens.weight.requires_grad
    prune_checkpoint(smaller, HeadTable(NO_DECODER))  # the numbers of the optimiser still fit
