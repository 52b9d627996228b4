"""The programs around training: batches of an update, averages, estimates of the time."""

import pytest
import torch
from support.recipes import call

from fairseq_headgates.checkpoints import load_checkpoint
from text import batches
from training import plan

pytest_plugins = ["support.recipes"]


def fairseqs_batches(toy, max_tokens):
    """The batches of the training data as fairseq's own task and iterator form them."""
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    config = TranslationConfig(data=str(toy.data), source_lang="src", target_lang="tgt", dataset_impl=None)
    config.train_subset, config.required_seq_len_multiple = "train", 1
    task = TranslationTask.setup_task(config)
    task.load_dataset("train")
    iterator = task.get_batch_iterator(task.datasets["train"], max_tokens=max_tokens, required_batch_size_multiple=1)
    return list(iterator.next_epoch_itr(shuffle=False))


@pytest.mark.parametrize("max_tokens", [40, 97, 500])
def test_source_tokens_are_those_of_fairseqs_batches(toy, max_tokens):
    real = fairseqs_batches(toy, max_tokens)
    tokens = [int((sample["net_input"]["src_tokens"] != 1).sum()) for sample in real]
    assert batches.Batches(toy.data, "src", "tgt").source_tokens(max_tokens) == pytest.approx(sum(tokens) / len(real))


@pytest.mark.parametrize(("workers", "limit"), [(1, 60), (3, 300), (8, 60)])
def test_a_plan_reaches_the_tokens_within_the_limit(toy, workers, limit):
    ours = batches.Batches(toy.data, "src", "tgt")
    max_tokens, update_freq, reached = batches.plan(ours, 400, workers, limit)
    assert max_tokens <= limit
    assert reached == pytest.approx(400, rel=0.2)  # the toy's batches are few and small
    if update_freq > 1:  # one batch less for each worker would not do
        assert (update_freq - 1) * workers * ours.source_tokens(limit) < 400


def test_batches_without_data_or_too_small_for_any_sentence_are_refused(toy, tmp_path, refuses):
    refuses("text.batches", tmp_path, "en", "ru", "--max-tokens", 100, words=str(tmp_path))
    words = "fits into --max-tokens 1: the shortest has"
    refuses("text.batches", toy.data, "src", "tgt", "--max-tokens", 1, words=words)


@pytest.mark.parametrize(
    "names",
    [  # by number of updates, not by name; the last one is a copy where no epoch ended there
        {900: "checkpoint_1_900.pt", 1000: "checkpoint_2_1000.pt", 1100: "checkpoint_last.pt"},
        {1000: "checkpoint_9_1000.pt", 1100: "checkpoint_10_1100.pt"},
    ],
)
def test_an_average_is_the_mean_of_the_last_checkpoints(checkpoints, tmp_path, capsys, names):
    source = load_checkpoint(str(checkpoints["gated"]))
    generator = torch.Generator().manual_seed(1)
    models = {}
    for updates, name in names.items():
        model = {n: t + torch.rand(t.shape, generator=generator).to(t.dtype) for n, t in source["model"].items()}
        models[updates] = model
        history = [{**source["optimizer_history"][-1], "num_updates": updates}]
        torch.save({**source, "model": model, "optimizer_history": history}, tmp_path / name)
    if "checkpoint_last.pt" not in names.values():
        (tmp_path / "checkpoint_last.pt").write_bytes((tmp_path / "checkpoint_10_1100.pt").read_bytes())
    assert call("training.average", tmp_path, tmp_path / "averaged.pt", "--last", 2) == 0
    assert ", ".join(list(names.values())[-2:]) in capsys.readouterr().out
    found = load_checkpoint(str(tmp_path / "averaged.pt"))["model"]
    first, second = list(models.values())[-2:]
    for name, tensor in found.items():
        mean = (first[name].double() + second[name].double()) / 2
        assert tensor.dtype == source["model"][name].dtype
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)


LOG = """\
2026-01-01 00:00:00 | INFO | fairseq.utils | rank   0: capabilities =  8.0  ; total memory = 79.0 GB ; name = {name}
2026-01-01 00:00:10 | INFO | train_inner | epoch 001: 50 / 99 loss=9, wps=1, ups=0.1, wpb=10000, gb_free=11.5, wall=1
2026-01-01 00:00:20 | INFO | train_inner | epoch 001: 60 / 99 loss=9, wps=20000, ups=2, wpb=10000, gb_free=9.5, wall=1
2026-01-01 00:00:30 | INFO | train_inner | epoch 001: 70 / 99 loss=9, wps=20000, ups=2, wpb=10000, gb_free=8.5, wall=1
2026-01-01 00:00:30 | INFO | fairseq_cli.train | begin validation on "valid" subset
2026-01-01 00:01:30 | INFO | fairseq.checkpoint_utils | Saved checkpoint x (epoch 1 @ 70 updates, score 1.0)
"""


PLANNED = {"tokens": 16_000, "updates": 36_000, "prune-updates": 3_600, "gated": 2, "scratch": 1, "every": 3_600}


@pytest.fixture
def planned(tmp_path, capsys):
    """planned(**options): the lines of a plan from the log of a baseline on a machine with this GPU."""
    (tmp_path / "baseline").mkdir()
    (tmp_path / "settings.txt").write_text("SRC=en TOKENS_PER_UPDATE=8000 EPOCHS=1\n")

    def planned(name="NVIDIA A100-SXM4-80GB", **options):
        log = LOG.format(name=name) if name else "\n".join(LOG.splitlines()[1:])
        (tmp_path / "baseline" / "train.log").write_text(log)
        words = [word for option, value in {**PLANNED, **options}.items() for word in (f"--{option}", value)]
        assert call("training.plan", tmp_path, *words) == 0
        return capsys.readouterr().out.splitlines()

    return planned


def test_a_plan_multiplies_the_measured_speed_by_the_planned_updates(planned, tmp_path, refuses):
    """Half a second an update of half the size, a minute for each of ten validations: 10 h and 10 min."""
    table = planned()
    assert "20,000 target tokens a second" in table[0] and "60 s" in table[0]
    assert table[3].split() == ["NVIDIA", "A100-SXM4-80GB", "10.2", "2.0", "2.0", "11.2", "25.4", "8.5", "GB"]
    assert len(table) == 4  # this machine only
    assert planned(seeds=3)[3].split()[2:7] == ["30.5", "6.1", "6.1", "33.5", "76.2"]
    assert planned(name=None)[3].startswith("CPU ")
    (tmp_path / "baseline" / "train.log").write_text("")
    refuses("training.plan", tmp_path, words="train for more updates")


def test_a_plan_says_when_the_first_gate_can_close(planned, tmp_path):
    (tmp_path / "all_lambda0.02").mkdir()
    (tmp_path / "all_lambda0.02" / "train.log").write_text(
        LOG + "over 300 updates, log_alpha of a gate can change by about 0.2 at most; closing a gate takes 4.9: "
        "at update 1499 at the earliest: expect few closed gates\n"
    )
    assert planned()[1] == "no gate can close before update 1,499 of 3,600"


@pytest.mark.parametrize("name", ["all_lambda0.1_rate10", "all_heads0.25_subset"])
def test_a_plan_measures_a_run_with_gates(name, tmp_path):
    for folder in (name, "all_heads6_gradient", "all_lambda0.1_scratch", "all_heads6_random"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.log").touch()
    assert plan.gated_log(tmp_path) == tmp_path / name / "train.log"
