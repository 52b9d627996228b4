"""Parts of a translation (benchmarks/profile_generation.py): sums, rows of operators, unknown operators, options."""

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from support.fairseq_0_12_2 import IS_0_12_2
from torch.profiler import ProfilerActivity, profile, record_function

pytest.importorskip("ctranslate2")  # of generation_speed.py

import bench_models
import bench_profile
import profile_generation

WIDTH, FFN, LAYERS, HEADS = 32, 40, 2, 4
WORDS, SENTENCES, BEAM, LENGTH = 90, 3, 2, 3
VOCABULARY, STEPS, ROWS = WORDS + 4, LENGTH + 1, SENTENCES * BEAM  # with special symbols, with </s>, hypotheses
OPTIONS = f"--size tiny --vocabulary {WORDS} --batch {SENTENCES} --beam {BEAM} --length {LENGTH} --repetitions 2"


@pytest.fixture(scope="module", autouse=True)
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bench_models.SIZES, "tiny", (WIDTH, FFN, LAYERS, HEADS))
        yield


def parsed(options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["profile_generation.py", *options.split()])
        options = profile_generation.parse()
        profile_generation.check(options)
    return options


@pytest.fixture(scope="module")
def results():
    """Measured figures of a whole model, of one with half of the heads and, where it translates, of fairseq's."""
    program, options = profile_generation, parsed(f"{OPTIONS} --remove 0.5")
    models = program.build(options)
    if IS_0_12_2:
        del models["stock"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "recording_seconds", lambda: bench_profile.recording_seconds(calls=30))
        patch.setattr(program.gc, "collect", lambda: 0)  # among all that the tests have imported
        return program.measure(
            options, {name: program.make_generator(options, model) for name, model in models.items()}
        )


def test_rows_sum_to_the_time_without_the_profiler(results):
    for result in results.values():
        costs, rows = result.costs(), result.rows()
        assert len(result.runs) == len(result.profiles) == 2
        for part in bench_profile.PARTS:
            seconds = [run[part] for run in result.runs]
            assert min(seconds) > 0
            assert sum(cost.seconds for key, cost in costs.items() if key[0] == part) == pytest.approx(sum(seconds) / 2)
            units = 1 if part == "encoder" else STEPS
            whole = sum(cost.seconds for key, cost in rows.items() if key[0] == part)
            assert whole * units == pytest.approx(sum(seconds) / 2)
            assert rows[part, "Python"].seconds > 0


def test_parts_sum_to_the_time_of_the_translation(monkeypatch):
    """By a clock that goes on by 1 s with each reading: two readings for each call of a part, two for the whole."""
    program, options = profile_generation, parsed(f"{OPTIONS} --remove")
    generator = program.make_generator(options, program.build(options)["full"])
    work, clock = program.beam_search(options, generator, SENTENCES), iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    calls = {"encoder": 1, "decoder": STEPS, "reordering": 2 * (STEPS - 1) + 1}  # encoder states: before each step
    assert bench_profile.run_times(generator, work) == {**calls, "search": 1.0 + sum(calls.values())}


def calls_of(result, part, row):
    found = [cost for (at, of, _), cost in result.costs().items() if (at, of) == (part, row)]
    return sum(cost.calls for cost in found), sum(cost.flops for cost in found), sum(cost.bytes for cost in found)


@pytest.mark.parametrize("name", ["stock", "full", "pruned 50%"])
def test_multiplications_are_in_their_rows(name, results):
    """Calls, FLOPs and bytes of a whole translation, counted by hand."""
    if name not in results:
        pytest.skip("fairseq 0.12.2 cannot generate from its own transformer")
    result, kept = results[name], WIDTH // 2 if "50%" in name else WIDTH
    output, feed_forward = VOCABULARY * WIDTH, 2 * LAYERS * WIDTH * FFN
    assert calls_of(result, "decoder", "output layer") == (STEPS, 2 * STEPS * ROWS * output, 4 * STEPS * output)
    expected = (STEPS * 2 * LAYERS, 2 * STEPS * ROWS * feed_forward, 4 * STEPS * feed_forward)
    assert calls_of(result, "decoder", "feed-forward") == expected
    projections = LAYERS * WIDTH * kept  # of one kind: queries, for example
    once = LENGTH * (ROWS if name == "stock" else SENTENCES)  # source tokens whose keys and values are computed
    _, flops, held = calls_of(result, "decoder", "attention projections")
    assert flops == 2 * projections * (6 * STEPS * ROWS + 2 * once)
    assert held == 4 * projections * (6 * STEPS + 2)
    _, flops, held = calls_of(result, "decoder", "scores, contexts")
    if name == "stock":
        positions = sum(range(1, STEPS + 1)) + STEPS * LENGTH
        assert flops == 4 * ROWS * LAYERS * kept * positions
        assert held == 8 * ROWS * LAYERS * kept * positions
    else:  # every hypothesis reads the entries of all hypotheses of its sentence
        assert flops == 4 * ROWS * LAYERS * kept * (BEAM * sum(range(1, STEPS + 1)) + STEPS * LENGTH)
        assert held == 8 * SENTENCES * LAYERS * kept * (BEAM * sum(range(1, STEPS + 1)) + STEPS * LENGTH)
    _, flops, _ = calls_of(result, "encoder", "attention projections")
    assert flops == 2 * SENTENCES * LENGTH * 4 * projections


def test_other_operators_are_in_their_parts_and_rows(results):
    result = results["full"]
    assert {(part, row) for part, row, name in result.costs() if name == "aten::_log_softmax"} == {
        ("decoder", "element-wise, sums")
    }
    assert {(part, row) for part, row, name in result.costs() if name == "aten::topk"} == {
        ("search", "largest candidates")
    }
    assert ("search", "copies, gathers", "aten::gather") in result.costs()
    assert ("reordering", "copies, gathers", "aten::index_select") in result.costs()
    assert not any(row == "output layer" for part, row, _ in result.costs() if part != "decoder")
    if "stock" in results:  # it copies keys and values of two attention layers, four tensors for each layer, per step
        copied = results["stock"].costs()["reordering", "copies, gathers", "aten::index_select"]
        assert copied.calls >= 4 * LAYERS * (STEPS - 1)


def test_no_operator_of_a_translation_is_unknown(results):
    assert profile_generation.unknown_operators(results) == []


def test_an_unknown_operator_is_reported():
    """In the figures, in the table and by name; within its part."""
    program, tools = profile_generation, bench_profile
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler, record_function("search"):
        torch.ones(1000).erfinv()
        with record_function("decoder"):
            torch.ones(3).lgamma()
    result = tools.Result(steps=1)
    result.runs.append(dict.fromkeys(tools.PARTS, 1.0))
    result.profiles.append(tools.operator_costs(tools.recorded(profiler), VOCABULARY, FFN, 0.0))
    unknown = {(part, name): cost for (part, row, name), cost in result.costs().items() if row == "unknown"}
    assert set(unknown) == {("search", "aten::erfinv"), ("decoder", "aten::lgamma")}
    assert all(cost.seconds > 0 for cost in unknown.values())
    assert sum(cost.seconds for key, cost in result.costs().items() if key[0] == "search") == pytest.approx(1)
    assert program.time_table({"full": result}).count("  unknown ") == 2
    lines = ["unknown operator: aten::erfinv", "unknown operator: aten::lgamma"]
    assert program.unknown_operators({"full": result}) == lines


def test_the_time_of_recording_is_subtracted_from_the_caller():
    def event(name, microseconds, children, parent=None):
        found = SimpleNamespace(name=name, self_cpu_time_total=microseconds, cpu_children=children, cpu_parent=parent)
        found.input_shapes = []
        return found

    part = event("encoder", 100, [None] * 10)
    events = [part, event("aten::add", 7, [], part), event("aten::view", 1, [None], part)]
    costs = bench_profile.operator_costs(events, VOCABULARY, FFN, recording=2e-6)
    seconds = {key: cost.seconds for key, cost in costs.items()}
    assert seconds == {
        ("encoder", "Python", "encoder"): pytest.approx(80e-6),
        ("encoder", "element-wise, sums", "aten::add"): pytest.approx(7e-6),
        ("encoder", "views, allocation", "aten::view"): 0,
    }


def test_functions_of_fairseq_are_wrapped_only_within_the_context():
    class Ensemble(torch.nn.Module):
        def forward_encoder(self):
            raise KeyError

        forward_decoder = reorder_incremental_state = reorder_encoder_out = forward_encoder

    ensemble, seen = Ensemble(), []

    def around(part):
        seen.append(part)
        return nullcontext()

    with pytest.raises(KeyError), bench_profile.around_parts(ensemble, around):
        ensemble.forward_encoder()
    with pytest.raises(KeyError):
        ensemble.forward_encoder()
    assert seen == ["encoder"]


@pytest.mark.skipif(IS_0_12_2, reason="fairseq 0.12.2 cannot generate from its own transformer")
def test_the_program_prints_its_tables_and_writes_its_figures(results, monkeypatch, capsys, tmp_path):
    out = tmp_path / "figures.json"
    arguments = f"{OPTIONS} --remove 0.5 --operators 3 --json {out}".split()
    monkeypatch.setattr(sys, "argv", ["profile_generation.py", *arguments])
    monkeypatch.setattr(profile_generation, "peak_flops", lambda: 1e12)
    monkeypatch.setattr(profile_generation, "copy_bandwidth", lambda: 1e10)
    monkeypatch.setattr(profile_generation, "measure", lambda _, works: {name: results[name] for name in works})
    profile_generation.main()
    printed = capsys.readouterr().out
    assert "1000.0 GFLOP/s, 10.0 GB/s" in printed and "unknown" not in printed
    for row in ("encoder, ms", "  feed-forward", "translation, ms", "  bound by memory, ms", "operator, ms x calls"):
        assert f"\n{row} " in printed
    figures = json.loads(out.read_text(encoding="utf-8"))["models"]
    assert list(figures) == ["stock", "full", "pruned 50%"]
    for model in figures.values():
        whole = sum(row["seconds"] * (1 if row["part"] == "encoder" else STEPS) for row in model["rows"])
        assert whole == pytest.approx(sum(model["seconds"].values()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--batch 0", "--batch is 0: it must be at least 1"),
        ("--threads 0", "--threads is 0: it must be at least 1"),
        ("--length 1001", "--length is 1001: it must be at most 1000"),
        ("--beam 9 --vocabulary 20", "--vocabulary is 20: with --beam 9 it must be at least 22"),
        ("--remove 0.5 1.5", "--remove has 1.5: a share of heads must be above 0 and at most 1"),
        ("--json /nowhere/at/all.json", "--json /nowhere/at/all.json: there is no such folder"),
    ],
)
def test_a_wrong_number_is_refused_in_one_line(capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        parsed(options)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"profile_generation.py: error: {message}\n"
