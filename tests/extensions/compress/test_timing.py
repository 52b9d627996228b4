"""Times of blocks by a clock that counts multiplications, and budgets of time."""

import json

import pytest
from support.analysis import READ
from torch.nn import functional

from fairseq_headgates.attention.neurons import ffn_dims
from fairseq_headgates.checkpoints.building import load_model
from fairseq_headgates.cli.fairseq_options import fairseq_options
from fairseq_headgates.evaluation import speed
from fairseq_headgates.evaluation.corpus import load_corpus
from fairseq_headgates.evaluation.options import setup_task
from fairseq_headgates.extensions.compress import timing
from fairseq_headgates.extensions.compress.model import Compressor, OutOfReach

BEAM, EMBED, HEAD = 2, 32, 8


@pytest.fixture(scope="module", autouse=True)
def multiplications():
    """The clock shows the multiplications of all linear layers so far."""
    count, linear = [0], functional.linear

    def counting(x, weight, bias=None):
        count[0] += x.numel() * len(weight)
        return linear(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", counting)
        for module in (timing, speed):
            patch.setattr(module, "clock_of", lambda device: lambda: count[0])
        yield


@pytest.fixture(scope="module")
def compressor(toy, checkpoints):
    """Of the toy model, whose validation set is translated."""
    words = [toy.data, "--gen-subset", "valid", "--path", checkpoints["baseline"], "--beam", BEAM, "--batch-size", 10]
    args = fairseq_options("compress", [*map(str, words), "--cpu"])
    task, (_, model) = setup_task(args), load_model(str(checkpoints["baseline"]))
    corpus = load_corpus(args, task, model)
    return Compressor(model, corpus, corpus, ["heads", "neurons"], lambda text: iter, timed=True)


def test_saved_time_is_that_of_the_multiplications(compressor):
    """Encoders read each token once, decoders do a step for every hypothesis, all of one length."""
    (total, all_saved), batches = compressor.times, compressor.work.corpus.batches
    steps = compressor.work.corpus.cfg.generation.min_len + 1
    source = [sample["net_input"]["src_tokens"].numel() for sample in batches]
    hypotheses = [BEAM * len(sample["target"]) for sample in batches]
    rows = {"enc-self": sum(source), "dec-self": sum(hypotheses) * steps}
    for units, saved in zip(compressor.units, all_saved, strict=True):
        each = {"neurons": 2 * EMBED, "heads": 4 * EMBED * HEAD}[units.kind]
        if units.block.attention_type in rows:
            each *= rows[units.block.attention_type]
        else:  # keys and values once
            each = 2 * EMBED * HEAD * (rows["dec-self"] + sum(source))
        assert saved == {number: number * each for number in saved}
        assert len(saved) == {"neurons": 9, "heads": 5}[units.kind]
    everything = sum(max(saved.values()) for saved in all_saved)
    assert everything < total < 3 * everything


@pytest.mark.parametrize("speedup", [1.1, 1.5])
def test_the_speed_is_reached(compressor, speedup):
    found = compressor.compress(speedup=speedup)
    assert speedup <= found.results["speedup"] < 1.02 * speedup


def test_a_plan_that_misses_the_speed_is_corrected_once(compressor, monkeypatch):
    measured = []
    original = timing.Work.speedup
    monkeypatch.setattr(timing.Work, "speedup", lambda *given: measured.append(original(*given)) or 0.9 * measured[-1])
    found = compressor.compress(speedup=1.2)
    assert len(measured) == 2 and measured[0] == pytest.approx(1.2, rel=0.02)
    assert found.results["speedup"] == pytest.approx(1.2, rel=0.02)


def test_the_speed_does_not_depend_on_the_number_of_words(compressor, monkeypatch):
    counts = iter(range(1, 100))
    monkeypatch.setattr(timing, "run_once", lambda *given: speed.run_once(*given) and next(counts))
    assert compressor.work.speedup(compressor.whole, compressor.whole) == pytest.approx(1)


def test_speeds_out_of_reach_are_refused(compressor):
    with pytest.raises(OutOfReach, match=r"--speedup is 9: it must be from 1 to [1-3]\.\d\d, the estimate without any"):
        compressor.compress(speedup=9, kinds=["heads"])


def test_the_command_writes_a_model_with_a_speed(toy, checkpoints, headgates, tmp_path):
    places = [toy.data, "--path", checkpoints["baseline"], "--gen-subset", "valid", *READ]
    options = ["--speedup", 1.2, "--inference-dtype", "int8", "--fit-sentences", 60]
    (found,) = json.loads(headgates("compress", *places, *options, "--out", tmp_path / "fast.pt", "--json"))
    assert found["speedup"] == pytest.approx(1.2, rel=0.03)
    _, model = load_model(tmp_path / "fast.pt")
    assert model.inference_dtype == "int8" and ffn_dims(model) == found["ffn_dims"][1]
    measured = ["--metric", "bleu", "--max-len-b", 8, "--plot", tmp_path / "sizes.svg", "--fit-sentences", 60]
    table = headgates("compress", *places, "--params", 0.9, "--speed", *measured)
    assert table.split("\n\n")[0].splitlines()[0].endswith("estimated  BLEU  speed")
    assert all(f">{text}<" in (tmp_path / "sizes.svg").read_text() for text in ("BLEU", "speed", "neurons"))
