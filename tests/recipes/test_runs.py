"""The setting RUNS: what it may say, names, controls, and the steps of each run (recipes/lib/runs.py)."""

import pytest
import runs
from runs import Run

import settings

LINES = {"RUNS": "", "SCRATCH": "", "SPARSITY_METHOD": "lagrangian", "LAYERS": "3", "HEADS": "8", "ITERATIONS": "4"}


def planned(text, **settings):
    """{name: (method, control, types, value, steps)} in the order of the plan."""
    lines = [line.split() for line in runs.plan(LINES | {"RUNS": text} | settings)]
    return {name: (method, control, types, value, steps) for name, method, control, types, value, *steps in lines}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all:0.02", Run("all", "0.02", "l0")),
        ("enc-self,dec-enc:1e-2", Run("enc-self,dec-enc", "1e-2", "l0")),
        ("all:0.02@10", Run("all", "0.02", "l0", "10")),
        ("all=36", Run("all", "36", "")),
        ("enc-self=0.25@subset", Run("enc-self", "0.25", "subset")),
        ("all=36@gradient-only", Run("all", "36", "gradient-only")),
    ],
)
def test_a_run_is_parsed(text, expected):
    assert runs.runs(text) == [expected]
    assert str(expected) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("all", "'all' has no colon and no equals sign"),
        ("all=", "N '' must be a number of heads (12) or a fraction of them with a decimal point, from 0.0 to 1.0"),
        ("all=-1", "N '-1' must be"),
        ("all=1.5", "N '1.5' must be"),
        ("all=5%", "N '5%' must be"),
        ("all=36@", "method '' must be lagrangian, subset, gradient, ablation, random, iterative, gradient-only"),
        ("all=36@magic", "method 'magic' must be"),
        ("all=36@l0", "method 'l0' must be"),
        ("enc=6", "'enc' is not an attention type"),
        ("all:0.1@gradient", "scale 'gradient' must be a finite number, above 0"),
        ("all:0.1@0", "scale '0' must be a finite number, above 0"),
        ("all:0.1@", "scale '' must be a finite number"),
        ("all:@10", "lambda '' must be a finite number"),
        ("all=36 all=36", "must not name 'all=36' twice"),
    ],
)
def test_an_invalid_run_is_refused(text, words):
    with pytest.raises(ValueError) as error:
        runs.runs(text)
    assert words in str(error.value) and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "method", "name"),
    [
        ("all:0.02", "lagrangian", "all_lambda0.02"),
        ("enc-self,dec-enc:0.02", "subset", "enc-self+dec-enc_lambda0.02"),
        ("all:0.02@10", "lagrangian", "all_lambda0.02_rate10"),
        ("all=36", "lagrangian", "all_heads36"),
        ("all=36", "subset", "all_heads36_subset"),
        ("all=36@lagrangian", "subset", "all_heads36"),
        ("enc-self=0.25@subset", "lagrangian", "enc-self_heads0.25_subset"),
        ("all=36@gradient", "subset", "all_heads36_gradient"),
        ("all=36@ablation-only", "lagrangian", "all_heads36_ablation-only"),
    ],
)
def test_runs_have_the_names_of_their_folders(text, method, name):
    assert name in planned(text, SPARSITY_METHOD=method)


def test_without_runs_there_are_no_controls():
    assert planned("") == {}


def test_controls_are_only_those_that_a_run_needs():
    assert [*planned("enc-self:0.1")] == ["baseline+frozen", "enc-self_lambda0.1"]
    assert [*planned("enc-self,dec-enc:0.1")] == ["baseline+", "enc-self+dec-enc_lambda0.1"]
    both = planned("enc-self=6 all=36")
    assert [*both] == ["baseline+", "baseline+frozen", "enc-self_heads6", "all_heads36"]
    assert both["baseline+frozen"][:2] == ("control", "baseline+frozen")
    assert both["enc-self_heads6"][1] == "baseline+frozen" and both["all_heads36"][1] == "baseline+"


def test_untrained_and_scratch_runs_need_no_frozen_decoder():
    assert [*planned("enc-self=6@gradient-only")] == ["baseline+", "enc-self_heads6_gradient-only"]
    scratch = planned("enc-self=6@random", SCRATCH="enc-self")
    assert [*scratch] == ["baseline+", "baseline+frozen", "enc-self_heads6_random", "enc-self_heads6_random_scratch"]
    method, control, _, pruned, _ = scratch["enc-self_heads6_random_scratch"]
    assert (method, control, pruned) == ("scratch", "baseline+", "enc-self_heads6_random")


def test_gated_runs_have_the_types_and_the_value_of_the_options():
    found = planned("all:0.02 all:0.02@7.5 enc-self=0.25 all=36@subset")
    assert found["all_lambda0.02_rate7.5"][3:] == ("0.02", ["7.5"])
    assert found["all_lambda0.02"] == ("l0", "baseline+", "enc-self,dec-self,dec-enc", "0.02", [])
    assert found["enc-self_heads0.25"] == ("lagrangian", "baseline+frozen", "enc-self", "0.25", [])
    assert found["all_heads36_subset"] == ("subset", "baseline+", "enc-self,dec-self,dec-enc", "36", [])


@pytest.mark.parametrize(
    ("text", "scores", "steps"),
    [
        ("all=36@gradient", "gradient", ["36"]),
        ("all=36@ablation", "ablation", ["36"]),
        ("all=36@random", "random", ["36"]),
        ("all=36@iterative", "gradient", ["63", "54", "45", "36"]),
        ("enc-self=0.25@iterative", "gradient", ["20", "15", "11", "6"]),  # 24 heads: 4.5 at each step
        ("dec-enc,enc-self=0.5@ablation-only", "ablation", ["24"]),
    ],
)
def test_scored_runs_have_a_number_of_heads_for_each_step(text, scores, steps):
    [(_, _, _, value, found)] = [row for name, row in planned(text).items() if "heads" in name]
    assert (value, found) == (scores, steps)


def test_the_decoder_may_have_fewer_layers():
    found = planned("all=0.5@gradient enc-self=0.5@gradient dec-enc=0.5@gradient", DECODER_LAYERS="1")
    assert [steps for *_, steps in found.values() if steps] == [["20"], ["12"], ["4"]]
    given = {"LAYERS": "3", "DECODER_LAYERS": "1", "HEADS": "8"}
    settings.check("translation.sh", {"RUNS": "all=40", **given})
    with pytest.raises(ValueError, match=r"at most 40 \(enc-self 24, dec-self 8, dec-enc 8\)"):
        settings.check("translation.sh", {"RUNS": "all=41", **given})


def test_a_share_is_rounded_as_the_commands_round_it():
    from fairseq_headgates.gates import parse_target

    for share in ("0.0", "0.1", "0.25", "0.3", "0.77", "1.0"):
        [(*_, steps)] = [row for name, row in planned(f"enc-self={share}@gradient").items() if "heads" in name]
        assert parse_target(share).counts({"enc-self": 24}) == {("enc-self",): int(steps[0])}
