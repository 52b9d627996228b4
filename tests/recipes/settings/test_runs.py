"""The setting RUNS: entries, names of folders, controls, the steps of each run, several families."""

import pytest
from support.settings import read

from fairseq_headgates.gates import parse_target
from settings.runs import Run, parse

ALL = "enc-self,dec-self,dec-enc"


def planned(runs, recipe="translation.sh", **given):
    """{name: (method, control, types, value, steps)} in the order of the plan."""
    lines = [line.split() for line in read(recipe, RUNS=runs, **given).plan()]
    return {name: (method, control, types, value, steps) for name, method, control, types, value, *steps in lines}


@pytest.mark.parametrize(
    ("text", "run", "method", "name"),
    [
        ("all:0.02", Run("all", "0.02", "l0"), "lagrangian", "all_lambda0.02"),
        (":1e-5", Run("all", "1e-5", "l0"), "lagrangian", "all_lambda1e-5"),
        ("enc-self,dec-enc:.50", Run("enc-self,dec-enc", ".50", "l0"), "subset", "enc-self+dec-enc_lambda.50"),
        ("all:0.02@10", Run("all", "0.02", "l0", "10"), "lagrangian", "all_lambda0.02_rate10"),
        ("all=36", Run("all", "36"), "lagrangian", "all_heads36"),
        ("=36", Run("all", "36"), "subset", "all_heads36_subset"),
        ("all=36@lagrangian", Run("all", "36", "lagrangian"), "subset", "all_heads36"),
        ("enc-self=0.25@subset", Run("enc-self", "0.25", "subset"), "lagrangian", "enc-self_heads0.25_subset"),
        ("all=36@gradient", Run("all", "36", "gradient"), "subset", "all_heads36_gradient"),
        ("all=36@ablation-only", Run("all", "36", "ablation-only"), "lagrangian", "all_heads36_ablation-only"),
    ],
)
def test_an_entry_and_the_name_of_its_folder(text, run, method, name):
    assert parse(text) == run and str(run).removeprefix("all") == text.removeprefix("all")
    assert name in planned(text, SPARSITY_METHOD=method)


def test_controls_are_only_those_that_a_run_needs():
    assert planned("") == {}
    assert [*planned("enc-self:0.1")] == ["baseline+frozen", "enc-self_lambda0.1"]
    assert [*planned("enc-self,dec-enc:0.1")] == ["baseline+", "enc-self+dec-enc_lambda0.1"]
    assert [*planned("enc-self=6@gradient-only")] == ["baseline+", "enc-self_heads6_gradient-only"]
    both = planned("enc-self=6 all=36")
    assert [*both] == ["baseline+", "baseline+frozen", "enc-self_heads6", "all_heads36"]
    assert both["baseline+frozen"][:2] == ("control", "baseline+frozen")
    assert both["enc-self_heads6"][1] == "baseline+frozen" and both["all_heads36"][1] == "baseline+"


def test_models_from_scratch_need_no_frozen_decoder():
    found = planned("enc-self=6@random all:0.1", SCRATCH="enc-self")
    scratch = "enc-self_heads6_random_scratch"
    assert [*found] == ["baseline+", "baseline+frozen", "enc-self_heads6_random", scratch, "all_lambda0.1"]
    method, control, _, pruned, _ = found[scratch]
    assert (method, control, pruned) == ("scratch", "baseline+", "enc-self_heads6_random")


def test_gated_runs_have_the_types_and_the_value_of_the_options():
    found = planned("all:0.02 all:0.02@7.5 enc-self=0.25 all=36@subset")
    assert found["all_lambda0.02"] == ("l0", "baseline+", ALL, "0.02", [])
    assert found["all_lambda0.02_rate7.5"] == ("l0", "baseline+", ALL, "0.02", ["7.5"])
    assert found["enc-self_heads0.25"] == ("lagrangian", "baseline+frozen", "enc-self", "0.25", [])
    assert found["all_heads36_subset"] == ("subset", "baseline+", ALL, "36", [])


@pytest.mark.parametrize(
    ("text", "scores", "steps"),
    [
        ("all=36@gradient", "gradient", "36"),
        ("all=36@ablation", "ablation", "36"),
        ("all=36@random", "random", "36"),
        ("all=36@iterative", "gradient", "63 54 45 36"),
        ("enc-self=0.25@iterative", "gradient", "20 15 11 6"),  # 24 heads: 4.5 at each step
        ("dec-enc,enc-self=0.5@ablation-only", "ablation", "24"),
    ],
)
def test_scored_runs_have_a_number_of_heads_for_each_step(text, scores, steps):
    [(_, _, _, value, found)] = [row for name, row in planned(text).items() if "heads" in name]
    assert (value, " ".join(found)) == (scores, steps)


def test_a_fraction_is_of_the_heads_of_its_types_and_rounded_as_the_commands_round_it():
    found = planned("all=0.5@gradient enc-self=0.5@gradient dec-enc=0.5@gradient", DECODER_LAYERS="1")
    assert [steps for *_, steps in found.values() if steps] == [["20"], ["12"], ["4"]]
    for share in ("0.0", "0.1", "0.25", "0.3", "0.77", "1.0"):
        *_, [kept] = planned(f"enc-self={share}@gradient")[f"enc-self_heads{share}_gradient"]
        assert parse_target(share).counts({"enc-self": 24}) == {("enc-self",): int(kept)}


@pytest.mark.parametrize(("recipe", "kind"), [("language_model.sh", "dec-self"), ("classification.sh", "enc-self")])
def test_names_have_no_types_where_a_model_has_one(recipe, kind):
    """Nothing is frozen in such a model."""
    found = planned(f"=0.5@subset {kind}:0.02 =0.25@iterative =3", recipe, LAYERS="2", HEADS="8")
    assert found == {
        "baseline+": ("control", "baseline+", "-", "-", []),
        "heads0.5_subset": ("subset", "baseline+", kind, "0.5", []),
        "lambda0.02": ("l0", "baseline+", kind, "0.02", []),
        "heads0.25_iterative": ("iterative", "baseline+", kind, "gradient", ["13", "10", "7", "4"]),
        "heads3": ("lagrangian", "baseline+", kind, "3", []),
    }


def test_a_sweep_has_a_run_for_each_combination():
    given = {
        "TYPES": "all enc-self,dec-enc",
        "LAMBDAS": "1e-5 0.12345678",
        "TARGETS": "0.5 12",
        "METHODS": "random subset",
    }
    expected = [
        f"{types}{end}"
        for types in ("all", "enc-self,dec-enc")
        for end in (":1e-5", ":0.12345678", "=0.5@random", "=0.5@subset", "=12@random", "=12@subset")
    ]
    assert read("sweep.sh", **given).texts["RUNS"].split() == expected
    assert read("sweep.sh", **given, RUNS="=7").texts["RUNS"] == "=7"
