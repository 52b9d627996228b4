"""The L0 criterion: what lambda weighs against, what is logged, what is refused."""

import argparse
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics
from support.models import PAD, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import l0_penalty
from fairseq_headgates.criterions import LabelSmoothedCrossEntropyL0Criterion
from fairseq_headgates.criterions.losses import LabelSmoothedCrossEntropyL0Config
from fairseq_headgates.monitoring import unwrapped

LAMBDA = 0.07


def make_criterion(sentence_avg=False, l0_weight=LAMBDA, reduction="sum"):
    task = make_task()
    task.target_dictionary.pad_index = PAD
    criterion = LabelSmoothedCrossEntropyL0Criterion(task, sentence_avg, 0.1)
    criterion.set_l0(l0_weight, reduction)
    return criterion


def make_sample(rows=slice(None), seed=0):
    batch = {key: value[rows] for key, value in make_batch(seed).items()}
    target = batch["prev_output_tokens"].roll(-1, 1)
    return {"net_input": batch, "target": target, "ntokens": int(target.ne(PAD).sum()), "nsentences": len(target)}


def gate_gradient(model, samples, criterion):
    """The gradient fairseq applies: summed over micro-batches, divided by the summed sample size."""
    model.zero_grad()
    total = 0
    for sample in samples:
        loss, sample_size, _ = criterion(model, sample)
        loss.backward()
        total += sample_size
    return torch.cat([p.grad / total for name, p in model.named_parameters() if "gate" in name])


@pytest.mark.parametrize("sentence_avg", [False, True])
def test_lambda_is_independent_of_batch_size_and_update_freq(sentence_avg):
    """With lambda and without: the difference of the gradients is lambda dL_C for any split of any data."""
    model = make_gated(gate_heads="enc-self,dec-enc", gate_init="1", dropout=0.0).train()
    penalty = l0_penalty(model)
    expected = LAMBDA * torch.cat(torch.autograd.grad(penalty, [p for n, p in model.named_parameters() if "gate" in n]))
    one_sentence, all_sentences = [make_sample(slice(0, 1))], [make_sample()]
    split = [make_sample(slice(0, 1)), make_sample(slice(1, 3))]
    many = [make_sample(seed=seed) for seed in range(4)]
    for samples in (one_sentence, all_sentences, split, many):
        gradients = []
        for weight in (LAMBDA, 0.0):
            torch.manual_seed(0)  # the same gates are drawn
            gradients.append(gate_gradient(model, samples, make_criterion(sentence_avg, weight)))
        torch.testing.assert_close(gradients[0] - gradients[1], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("reduction", ["sum", "layer-mean"])
def test_training_loss_has_the_penalty_and_validation_loss_has_not(reduction):
    model = make_gated(gate_heads="enc-self", gate_init="20", dropout=0.0)  # open with certainty: no noise
    sample, criterion = make_sample(), make_criterion(reduction=reduction)
    plain, _, plain_log = criterion(model.eval(), sample)
    trained, size, log = criterion(model.train(), sample)
    penalty = l0_penalty(model, reduction)
    assert penalty.item() == pytest.approx(8 if reduction == "sum" else 4)
    torch.testing.assert_close(trained - plain, LAMBDA * size * penalty, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(log["nll_loss"], plain_log["nll_loss"])
    assert log["loss"] == trained
    stock = make_criterion().__class__.__mro__[2]  # fairseq's own label-smoothed cross-entropy
    reference, _, _ = stock(make_task(), False, 0.1)(model.eval(), sample)
    torch.testing.assert_close(plain, reference)


def test_what_is_logged_is_averaged_over_workers():
    model = make_gated(gate_heads="enc-self,dec-enc").eval()
    with torch.no_grad():
        model.encoder.layers[0].self_attn.gate.theta[:3] = -1
    criterion = make_criterion()
    logs = [criterion(model, make_sample(rows))[2] for rows in (slice(0, 1), slice(1, 3))]
    assert {"l0", "heads_open", "heads_open_enc_self", "heads_open_dec_enc"} <= set(logs[0])
    summed = {key: sum(log[key] for log in logs) for key in logs[0]}  # how fairseq's fast path hands them over
    for outputs in (logs, [summed]):
        with metrics.aggregate(new_root=True) as aggregator:
            criterion.reduce_metrics(outputs)
        values = aggregator.get_smoothed_values()
        assert values["heads_open"] == 13 and values["heads_open_enc_self"] == 5 and values["heads_open_dec_enc"] == 8
        assert values["l0"] == pytest.approx(l0_penalty(model).item(), abs=0.01)
        assert values["loss"] > 0


@pytest.mark.parametrize("model", [make_stock(), make_gated(alive_heads='{"enc-self": [[1,1,0,1],[1,1,1,1]]}')])
def test_a_model_without_gates_is_refused(model, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_criterion()(model, make_sample())
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and "--gate-heads" in error and error.count("\n") == 1


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf"), 1e300, 1.1e9])
def test_a_lambda_that_makes_no_sense_is_refused(weight, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_criterion(l0_weight=weight)
    assert exit_.value.code == 2 and f"--l0-weight is {weight:g}: it must be from 0 to 1e+09" in capsys.readouterr().err


def test_the_criterion_does_not_take_the_model_in():
    criterion = make_criterion()
    criterion(make_gated(gate_heads="enc-self").train(), make_sample())
    assert not list(criterion.parameters()) and not criterion.state_dict()


def test_the_model_is_found_inside_wrappers():
    model = make_gated(gate_heads="enc-self")
    assert unwrapped(SimpleNamespace(module=SimpleNamespace(module=model))) is model


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--l0-weight", "x"], "argument --l0-weight: 'x' is not a number"),
        (["--l0-reduction", "mean"], "argument --l0-reduction: 'mean' is unknown: choose from sum, layer-mean"),
    ],
)
def test_the_command_line_refuses_bad_values_in_one_line(argv, message, capsys):
    parser = argparse.ArgumentParser()
    LabelSmoothedCrossEntropyL0Criterion.add_args(parser)
    with pytest.raises(SystemExit) as exit_:
        parser.parse_args(argv)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1


def test_the_command_line_has_all_options_of_the_criterion():
    parser = argparse.ArgumentParser()
    LabelSmoothedCrossEntropyL0Criterion.add_args(parser)
    args = vars(parser.parse_args(["--l0-weight", "0.5", "--label-smoothing", "0.1"]))
    assert args.items() >= {"l0_weight": "0.5", "l0_reduction": "sum", "label_smoothing": 0.1}.items()
    defaults = {name: field.default for name, field in LabelSmoothedCrossEntropyL0Config.__dataclass_fields__.items()}
    assert {name: parser.get_default(name) for name in ("l0_weight", "l0_reduction")}.items() <= defaults.items()


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("method", ["l0", "lagrangian", "subset"])
def test_every_parameter_of_the_gates_has_a_gradient(method, fixed):
    """torch's DistributedDataParallel waits for the gradient of every parameter."""
    target = {"sparsity_method": method, "target_heads": "5"} if method != "l0" else {}
    model = make_gated(gate_heads="enc-self,dec-enc", fix_gates_after=3, **target).train()
    model.set_num_updates(3 if fixed else 2)
    loss, *_ = make_criterion(l0_weight="0.0" if target else LAMBDA)(model, make_sample())
    loss.backward()
    own = {name: p.grad for name, p in model.named_parameters() if "gate" in name}
    assert len(own) == 4 + (method == "lagrangian") and all(grad is not None for grad in own.values())
    assert not any(bool(grad.any()) for grad in own.values()) or not fixed


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"criterion": "label_smoothed_cross_entropy"}, True),
        ({"criterion": "cross_entropy", "sparsity_method": "lagrangian", "target_heads": "3"}, True),
        ({"criterion": "label_smoothed_cross_entropy", "sparsity_method": "subset", "target_heads": "3"}, False),
        ({"criterion": "label_smoothed_cross_entropy_l0"}, False),
        ({"criterion": "label_smoothed_cross_entropy", "gate_heads": ""}, False),
        ({}, False),
    ],
)
def test_gates_without_their_penalty_are_warned_about(options, warned, caplog):
    make_gated(**{"gate_heads": "enc-self", **options})
    assert ("adds no penalty on the gates" in caplog.text) == warned
