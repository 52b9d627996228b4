"""Times of blocks by a clock that counts multiplications, and budgets of time."""

import json
import random

import pytest
from support.analysis import READ
from torch.nn import functional

from fairseq_headgates.attention.neurons import ffn_dims
from fairseq_headgates.cli.fairseq_options import fairseq_options
from fairseq_headgates.cli.main import main
from fairseq_headgates.compression import timing
from fairseq_headgates.compression.model import Compressor, OutOfReach
from fairseq_headgates.data import speed
from fairseq_headgates.data.corpus import load_corpus
from fairseq_headgates.data.speed import Rates
from fairseq_headgates.data.task import setup_task
from fairseq_headgates.plugin.models.building import load_model

BEAM, EMBED, HEAD = 2, 32, 8
QUIET = {"LEVELS": 8, "PASSES": 1, "ROUNDS": 1}  # enough for blocks of 64 neurons, and without noise
BUSY = {name: getattr(timing, name) for name in ("PASSES", "ROUNDS")}


class Clock:
    """Shows the multiplications of all linear layers so far, as a machine that is busy at times would do."""

    def __init__(self):
        self.now, self.multiplications = 0.0, 0
        self.quiet()

    def quiet(self):
        self.seed, self.slower = None, 0.0

    def busy(self, seed, slower):
        """From now on, stretches of a million multiplications take up to 1 + slower times as long."""
        self.seed, self.slower, self.multiplications = seed, slower, 0

    def pass_(self, multiplications):
        stretch = random.Random(f"{self.seed} {self.multiplications // 1_000_000}").random()
        self.now += multiplications * (1 + self.slower * stretch)
        self.multiplications += multiplications


@pytest.fixture(scope="module", autouse=True)
def module_clock():
    found, linear = Clock(), functional.linear

    def counting(x, weight, bias=None):
        found.pass_(x.numel() * len(weight))
        return linear(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", counting)
        for name, number in QUIET.items():
            patch.setattr(timing, name, number)
        for module in (timing, speed):
            patch.setattr(module, "clock_of", lambda device: lambda: found.now)
        yield found


@pytest.fixture
def clock(module_clock):
    yield module_clock
    module_clock.quiet()


@pytest.fixture(scope="module")
def new_compressor(toy, checkpoints):
    """Of the toy model, refitted on the validation set; the test set is translated."""
    words = [toy.data, "--path", checkpoints["baseline"], "--beam", BEAM, "--batch-size", 10, "--cpu"]
    both = [fairseq_options("compress", [*map(str, words), "--gen-subset", name]) for name in ("valid", "test")]
    task, (_, model) = setup_task(both[0]), load_model(str(checkpoints["baseline"]))
    fit, measured = (load_corpus(args, task, model) for args in both)
    return lambda: Compressor(model, fit, measured, ["heads", "neurons"], lambda text: iter, timed=True)


@pytest.fixture(scope="module")
def compressor(new_compressor):
    return new_compressor()


def test_saved_time_is_that_of_the_multiplications(compressor, clock):
    """Encoders read each token once, decoders do a step for every hypothesis, all of one length."""
    (spread, all_saved), batches = compressor.times, compressor.work.corpus.batches
    begun = clock.now
    compressor.work.prepared(compressor.whole)[1]()
    total = clock.now - begun
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
        assert saved == pytest.approx({number: number * each / total for number in saved})
        assert len(saved) == {"neurons": 9, "heads": 5}[units.kind]
    assert spread == 1 and 1 / 3 < sum(max(saved.values()) for saved in all_saved) < 1


def test_short_work_is_repeated(compressor, clock, monkeypatch):
    """If there are not enough data."""
    begun = clock.now
    speed.run_once(compressor.whole, compressor.measured, None)
    monkeypatch.setattr(timing, "SECONDS", 5 * (clock.now - begun))
    work = timing.Work(compressor.whole, compressor.measured)
    begun = clock.now
    assert work.prepared(compressor.whole)[1]() == 1 and clock.now - begun > 0.9 * timing.SECONDS
    assert len(work.corpus.batches) == len(compressor.measured.batches)


def test_the_speed_is_reached(compressor):
    speedup = 1.5
    found = compressor.compress(speedup=speedup)
    assert speedup <= found.results["speedup"] < 1.02 * speedup
    assert found.results["speedup_interval"] == pytest.approx([found.results["speedup"]] * 2)


@pytest.fixture
def measured(monkeypatch):
    """measured(*factors): by which measurements are wrong, one after the other, the last of them from then on."""
    original = timing.Work.speedups

    def measured(*factors):
        left = list(factors)

        def speedups(*given, **options):
            factor = left.pop(0) if len(left) > 1 else left[0]
            return [Rates(tuple(factor * each for each in rates.rounds)) for rates in original(*given, **options)]

        monkeypatch.setattr(timing.Work, "speedups", speedups)

    yield measured


@pytest.mark.release
def test_a_plan_that_misses_the_speed_is_corrected(compressor, measured):
    assert compressor.compress(speedup=1.2).results["speedup"] == pytest.approx(1.2, rel=0.02)
    measured(0.9)
    assert compressor.compress(speedup=1.2).results["speedup"] == pytest.approx(1.2, rel=0.03)


@pytest.mark.release
@pytest.mark.parametrize("factor", [0.9, 2])
def test_a_wrong_first_measurement_changes_nothing(factor, compressor, measured):
    """The plan is within the tolerance; its correction removes more, or less, and is not."""
    right = compressor.compress(speedup=1.2)
    measured(factor, 1)
    assert compressor.compress(speedup=1.2).plan == right.plan


@pytest.fixture
def on_busy_machine(compressor, new_compressor, clock, monkeypatch):
    """on_busy_machine(seed, slower): the compressor of a toy, whose costs are known, on such a machine."""

    for name, number in BUSY.items():
        monkeypatch.setattr(timing, name, number)

    def on_busy_machine(seed, slower):
        clock.busy(seed, slower)
        found = new_compressor()
        found.units = compressor.units
        return found

    return on_busy_machine


@pytest.mark.release
def test_noise_changes_little(compressor, on_busy_machine, clock):
    found = on_busy_machine(1, slower=0.3).compress(speedup=1.4).results
    low, high = found["speedup_interval"]
    assert low < found["speedup"] < high < 1.4 * low
    clock.quiet()
    without = compressor.compress(speedup=1.4).results
    assert without["parameters"][1] == pytest.approx(found["parameters"][1], rel=0.05)


@pytest.mark.release
def test_no_plan_is_made_from_noise(on_busy_machine, monkeypatch):
    """Neither if the machine is busy from the start, nor if it is when the blocks are measured."""
    with pytest.raises(ValueError, match=r"timings vary by \d\d%, --speedup is 1.2: the machine is busy") as raised:
        on_busy_machine(1, slower=2).compress(speedup=1.2)
    assert not isinstance(raised.value, OutOfReach)
    monkeypatch.setattr(timing, "LEVELS", 2)
    later = on_busy_machine(1, slower=2)
    later.fastest = {later.kinds: Rates((2.5,) * 5)}
    with pytest.raises(ValueError, match="the machine is busy"):
        later.compress(speedup=1.2)


def test_the_speed_does_not_depend_on_the_number_of_words(compressor, monkeypatch):
    counts = iter(range(1, 100))
    monkeypatch.setattr(timing, "run_once", lambda *given: speed.run_once(*given) and next(counts))
    (rates,) = compressor.work.speedups(compressor.whole, compressor.whole)
    assert rates.rounds == pytest.approx([1] * timing.ROUNDS)


def test_speeds_out_of_reach_are_refused_at_once(new_compressor):
    found = new_compressor()
    with pytest.raises(OutOfReach, match=r"--speedup is 9: at most ([1-3]\.\d\d) \[\1, \1\], the speed without any h"):
        found.compress(speedup=9, kinds=["heads"])
    assert "units" not in vars(found)  # whose costs take longer


@pytest.mark.release
def test_the_command_writes_a_model_with_a_speed(toy, checkpoints, headgates, tmp_path):
    places = [toy.data, "--path", checkpoints["baseline"], "--gen-subset", "test", "--beam", 1, *READ]
    options = ["--speedup", 1.2, "--inference-dtype", "int8", "--fit-sentences", 60]
    (found,) = json.loads(headgates("compress", *places, *options, "--out", tmp_path / "fast.pt", "--json"))
    assert found["speedup"] == pytest.approx(1.2, rel=0.03)
    _, model = load_model(tmp_path / "fast.pt")
    assert model.inference_dtype == "int8" and ffn_dims(model) == found["ffn_dims"][1]
    measured = ["--metric", "bleu", "--max-len-b", 8, "--plot", tmp_path / "sizes.svg", "--fit-sentences", 60]
    table = headgates("compress", *places, "--params", 0.9, "--speed", *measured)
    assert table.split("\n\n")[0].splitlines()[0].endswith("estimated  BLEU              speed")
    assert all(f">{text}<" in (tmp_path / "sizes.svg").read_text() for text in ("BLEU", "speed", "neurons"))


@pytest.mark.release
def test_a_speed_that_is_missed_is_said(toy, checkpoints, capsys, tmp_path, monkeypatch):
    """After the table is printed and the model is written."""
    found = Rates((1.25, 1.3, 1.4))
    monkeypatch.setattr(timing, "LEVELS", 1)
    monkeypatch.setattr(timing.Work, "speedups", lambda self, whole, *models, progress: [found] * len(models))
    out = tmp_path / "slow.pt"
    words = [toy.data, "--path", checkpoints["baseline"], "--gen-subset", "valid", *READ, "--fit-sentences", 60]
    assert main(list(map(str, ["compress", *words, "--speedup", 1.2, "--out", out]))) == 2
    printed = capsys.readouterr()
    assert out.exists() and " 1.30 [1.25, 1.40]\n" in printed.out
    said = "headgates compress: error: --speedup is missed by more than 5%, 1.30 [1.25, 1.40] instead of 1.2: repeat "
    assert printed.err.splitlines()[-1].startswith(said) and "next:" not in printed.err
