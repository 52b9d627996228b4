"""The L0 criterion: what lambda weighs against, what is logged, what is refused."""

import argparse
import logging
import pickle
import re
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import tasks
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.configs import CheckpointConfig, CommonConfig, DatasetConfig, OptimizationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY, build_lr_scheduler
from fairseq.options import get_training_parser, parse_args_and_arch
from support.models import PAD, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import l0_penalty
from fairseq_headgates.compat import configuration
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.plugin.monitoring import OTHER_RATES, GateMonitor, unwrapped

# Of hydra, about the configuration of fairseq.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LAMBDA = 0.07


def make_criterion(sentence_avg=False, l0_weight=LAMBDA, reduction="sum"):
    task = make_task()
    task.target_dictionary.pad_index = PAD
    criterion = PENALISED["label_smoothed_cross_entropy"](task, sentence_avg, 0.1)
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


@pytest.mark.parametrize("weight", [-0.5, float("nan"), 1.1e9])
def test_a_lambda_out_of_range_is_refused(weight, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_criterion(l0_weight=weight)
    assert exit_.value.code == 2 and f"--l0-weight is {weight:g}: it must be from 0 to 1e+09" in capsys.readouterr().err


def test_the_criterion_does_not_register_the_model_as_a_submodule():
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
    PENALISED["label_smoothed_cross_entropy"].add_args(parser)
    with pytest.raises(SystemExit) as exit_:
        parser.parse_args(argv)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1


@pytest.mark.parametrize("name", PENALISED)
def test_every_criterion_has_the_options_of_fairseqs_and_of_the_penalty(name):
    parsers = [argparse.ArgumentParser(), argparse.ArgumentParser()]
    for criterion, parser in zip((CRITERION_REGISTRY[name], PENALISED[name]), parsers, strict=True):
        criterion.add_args(parser)
    stock, ours = ({action.dest for action in parser._actions} for parser in parsers)
    assert ours - stock == {"l0_weight", "l0_reduction", "l0_warmup_updates", "l0_start_update"} and stock <= ours
    assert issubclass(PENALISED[name], CRITERION_REGISTRY[name]) and CRITERION_REGISTRY[f"{name}_l0"] is PENALISED[name]


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
    ("options", "advice"),
    [
        ({"criterion": "label_smoothed_cross_entropy"}, "use --criterion label_smoothed_cross_entropy_l0"),
        ({"criterion": "sentence_ranking"}, "use --sparsity-method subset"),
        ({"criterion": "label_smoothed_cross_entropy", "sparsity_method": "subset", "target_heads": "3"}, None),
        ({"criterion": "label_smoothed_cross_entropy_l0"}, None),
        ({"criterion": "label_smoothed_cross_entropy", "gate_heads": ""}, None),
    ],
)
def test_gates_without_their_penalty_are_warned_about(options, advice, caplog):
    make_gated(**{"gate_heads": "enc-self", **options})
    assert ("adds no penalty on the gates" in caplog.text) == (advice is not None) and (advice or "") in caplog.text


def test_criterions_that_a_task_accepts_by_name_alone_have_no_counterpart():
    """`ctc` is named for the options of old speech models, which are not among the architectures with gates."""
    sources = [Path(file).read_text(encoding="utf-8") for file in Path(tasks.__file__).parent.glob("*.py")]
    named = {name for text in sources for name in re.findall(r'criterion == "(\w+)"', text)}
    assert "sentence_ranking" in named and not (named - {"ctc"}) & PENALISED.keys()


# The check of the learning rate schedule

SCHEDULES = {
    "cosine": ["--warmup-updates", 10, "--lr-period-updates", 30],
    "fixed": ["--warmup-updates", 10, "--lr", "0.01,0.001"],
    "inverse_sqrt": ["--warmup-updates", 10],
    "polynomial_decay": ["--warmup-updates", 10, "--total-num-update", 80],
    "reduce_lr_on_plateau": ["--warmup-updates", 10],
    "step": ["--warmup-updates", 10, "--lr-deacy-period", 20],
    "tri_stage": ["--phase-ratio", "(0.25, 0.25, 0.5)"],
    "triangular": ["--max-lr", 0.02, "--lr-period-updates", 30],
}


def parsed(*options):
    """All options of fairseq-train."""
    common = ["data", "--no-save", "--arch", "transformer_head_gates", "--lr", 0.01, "--max-update", 80]
    return parse_args_and_arch(get_training_parser(), [*map(str, [*common, *options])])


def configured(*options):
    """The groups of options that the monitor reads, as hydra composes them from all options in a fifth of a second."""
    args = parsed(*options)
    schedule = LR_SCHEDULER_DATACLASS_REGISTRY.get(args.lr_scheduler)
    if schedule is None:  # a schedule of an older form
        return convert_namespace_to_omegaconf(args)
    groups = {"common": CommonConfig, "dataset": DatasetConfig, "optimization": OptimizationConfig}
    groups |= {"checkpoint": CheckpointConfig, "lr_scheduler": schedule}
    values = {name: {f.name: getattr(args, f.name, f.default) for f in fields(cls)} for name, cls in groups.items()}
    values["lr_scheduler"]["_name"] = args.lr_scheduler
    return configuration(values)


def monitored(*options, **settings):
    """A gated model and its monitor in such a training."""
    model, monitor = make_gated(gate_heads="enc-self", **settings), GateMonitor(None)
    monitor.configuration = configured(*options)
    return model, monitor


class Rates(FairseqOptimizer):
    """Optimiser that only takes learning rates."""

    def __init__(self):
        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def checked(model, monitor, caplog):
    """The change of log_alpha and the update of the first closed gate in the one record of the check."""
    caplog.clear()
    for _ in range(2):
        monitor.training(model)
        monitor.validating(model)
    (record,) = caplog.records
    found = re.search(r"by about (\S+) at most; .* at update (\d+) at the earliest", record.message)
    return record.levelno, *map(float, found.groups())


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", [name for name in LR_SCHEDULER_REGISTRY if name not in OTHER_RATES])
def test_no_schedule_of_fairseq_moves_gates_further(name, caplog):
    """Against the sums of fairseq's own rates, update by update, as its trainer asks for them."""
    caplog.set_level(logging.INFO)
    options = ["--lr-scheduler", name, *SCHEDULES[name]]
    schedule, optimizer = configured(*options).lr_scheduler, Rates()
    if name == "cosine":
        assert schedule == convert_namespace_to_omegaconf(parsed(*options)).lr_scheduler
    scheduler, rates = build_lr_scheduler(schedule, optimizer), []
    scheduler.step_begin_epoch(1)
    for update in range(80):
        scheduler.step_update(update)
        rates.append(50 * optimizer.get_lr())
    sums = list(accumulate(rates))
    _, change, first = checked(*monitored(*options, gate_lr_scale=50.0), caplog)
    half = max(rates) / 2 + 0.05  # a step, and the rounding in the message; `fixed` begins its warm-up with 1
    assert sums[-1] - half <= change <= 80 * max(rates) + half
    assert first <= next(update for update, change in enumerate(sums, 1) if change >= 4.9)


@pytest.mark.parametrize("options", [["manual", "--update2lr", "{'1': 0.01}"], ["pass_through"]])
def test_schedules_with_other_rates_are_not_checked(options, caplog):
    caplog.set_level(logging.INFO)
    model, monitor = monitored("--lr-scheduler", *options)
    caplog.clear()
    monitor.training(model)
    assert not caplog.records


@pytest.mark.parametrize(
    ("updates", "warmup", "scale", "change", "first"),
    [
        (300, 16_000, 50, 0.2, 1497),  # in the warm-up: 0.0014 * 50 * 300**2 / 32000
        (300, 0, 50, 21.0, 70),  # at the peak: 4.898 / 0.07
        (300, 100, 10, 3.5, 400),
    ],
)
def test_the_learning_rate_rises_to_its_peak(updates, warmup, scale, change, first, caplog):
    caplog.set_level(logging.INFO)
    options = ["--lr", 0.0014, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", warmup, "--max-update", updates]
    level, *found = checked(*monitored(*options, gate_lr_scale=float(scale)), caplog)
    assert found == [change, first]
    assert level == (logging.WARNING if change < 9.8 else logging.INFO)


@pytest.mark.parametrize(("max_update", "level"), [(100, logging.WARNING), (0, None)])
def test_a_schedule_that_closes_no_gate_is_warned_about(max_update, level, caplog):
    caplog.set_level(logging.INFO)
    options = ["--lr-scheduler", "inverse_sqrt", "--lr", 0.001, "--warmup-updates", 100, "--max-update", max_update]
    model, monitor = monitored(*options, gate_lr_scale=10.0)
    caplog.clear()
    model.set_num_updates(max_update)  # fairseq does so when it loads a model for generation
    assert not caplog.records
    monitor.training(model)
    records = [record for record in caplog.records if "log_alpha of a gate can change by" in record.message]
    assert [record.levelno for record in records] == ([] if level is None else [level])
    assert all("closing a gate takes 4.9: at update 540 at the earliest" in record.message for record in records)


def test_a_run_counted_in_epochs_is_warned_after_the_first(caplog):
    options = ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", 100, "--max-update", 0, "--max-epoch", 3]
    model, monitor = monitored(*options, "--lr", 0.001, gate_lr_scale=10.0)
    caplog.clear()
    model.set_num_updates(0)
    monitor.training(model)
    model.set_num_updates(49)  # fairseq counts the updates before this one
    monitor.validating(model)
    monitor.training(model)
    monitor.validating(model)
    assert [record.message.split(",")[0] for record in caplog.records] == ["over 150 updates"]


@pytest.mark.parametrize("name", ["masked_lm", "nat_loss"])
def test_criterions_can_be_pickled(name):
    assert pickle.loads(pickle.dumps(PENALISED[name])) is PENALISED[name]
    assert PENALISED["masked_lm"].__name__ == "MaskedLmL0Criterion"  # checkpoints hold it
