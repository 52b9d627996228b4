"""The setting RUNS: the plan of what is trained (names of folders, methods, controls, steps), of several families."""

import pytest
from support.settings import read

from fairseq_headgates.gates import parse_target
from runs import parse

MT, LM, LABELS, ALL = "translation.sh", "language_model.sh", "classification.sh", "enc-self,dec-self,dec-enc"
PLAIN, FROZEN = "baseline+ control baseline+ - -", "baseline+frozen control baseline+frozen - -"


@pytest.mark.parametrize(
    ("recipe", "runs", "given", "plan"),
    [
        (MT, "", {}, []),
        (MT, "all:0.02", {}, [PLAIN, f"all_lambda0.02 l0 baseline+ {ALL} 0.02"]),
        (MT, ":1e-5@7.50", {}, [PLAIN, f"all_lambda1e-5_rate7.50 l0 baseline+ {ALL} 1e-5 7.50"]),
        (MT, "dec-enc,enc-self:.50", {}, [PLAIN, "dec-enc+enc-self_lambda.50 l0 baseline+ dec-enc,enc-self .50"]),
        (MT, "all=36", {}, [PLAIN, f"all_heads36 lagrangian baseline+ {ALL} 36"]),
        (MT, "=36@lagrangian", {"SPARSITY_METHOD": "subset"}, [PLAIN, f"all_heads36 lagrangian baseline+ {ALL} 36"]),
        (MT, "=36", {"SPARSITY_METHOD": "subset"}, [PLAIN, f"all_heads36_subset subset baseline+ {ALL} 36"]),
        (MT, "=0.5@gradient", {}, [PLAIN, f"all_heads0.5_gradient gradient baseline+ {ALL} gradient 36"]),
        (MT, "=0.5@random", {"DECODER_LAYERS": "1"}, [PLAIN, f"all_heads0.5_random random baseline+ {ALL} random 20"]),
        (MT, "=36@ablation", {}, [PLAIN, f"all_heads36_ablation ablation baseline+ {ALL} ablation 36"]),
        (MT, "=36@iterative", {}, [PLAIN, f"all_heads36_iterative iterative baseline+ {ALL} gradient 63 54 45 36"]),
        # 24 heads: 4.5 at each step. With encoder heads alone the decoder is frozen in training.
        (
            MT,
            "enc-self=0.25@iterative enc-self:0.1 all=36",
            {},
            [
                PLAIN,
                FROZEN,
                "enc-self_heads0.25_iterative iterative baseline+frozen enc-self gradient 20 15 11 6",
                "enc-self_lambda0.1 l0 baseline+frozen enc-self 0.1",
                f"all_heads36 lagrangian baseline+ {ALL} 36",
            ],
        ),
        (MT, "enc-self:0.1", {}, [FROZEN, "enc-self_lambda0.1 l0 baseline+frozen enc-self 0.1"]),
        (
            MT,
            "enc-self=6@gradient-only dec-enc=4@ablation-only dec-enc=4@ablation-refit enc-self=6@refit",
            {"DECODER_LAYERS": "1"},
            [
                PLAIN,
                "enc-self_heads6_gradient-only gradient-only baseline+ enc-self gradient 6",
                "dec-enc_heads4_ablation-only ablation-only baseline+ dec-enc ablation 4",
                "dec-enc_heads4_ablation-refit ablation-refit baseline+ dec-enc ablation 4",
                "enc-self_heads6_refit refit baseline+ enc-self refit 6",
            ],
        ),
        (
            MT,
            "enc-self=6@subset all:0.1",
            {"SCRATCH": "enc-self"},
            [
                PLAIN,
                FROZEN,
                "enc-self_heads6_subset subset baseline+frozen enc-self 6",
                "enc-self_heads6_subset_scratch scratch baseline+ enc-self enc-self_heads6_subset",
                f"all_lambda0.1 l0 baseline+ {ALL} 0.1",
            ],
        ),
        (
            MT,
            "params=0.7 params=900000@only speed=1.5@only speed=2",
            {"SCRATCH": "params"},
            [
                PLAIN,
                f"params0.7 compress baseline+ {ALL} params 0.7",
                f"params0.7_scratch scratch baseline+ {ALL} params0.7",
                f"params900000_only compress-only baseline+ {ALL} params 900000",
                f"params900000_only_scratch scratch baseline+ {ALL} params900000_only",
                f"speed1.5_only compress-only baseline+ {ALL} speed 1.5",
                f"speed2 compress baseline+ {ALL} speed 2",
            ],
        ),
        # Names have no types where a model has one, and nothing is frozen.
        (LM, "=0.5@subset dec-self:0.02", {}, [PLAIN, *"heads0.5_subset subset B 0.5;lambda0.02 l0 B 0.02".split(";")]),
        (
            LABELS,
            "=0.25@iterative enc-self=3",
            {},
            [PLAIN, "heads0.25_iterative iterative B gradient 26 20 14 8", "heads3 lagrangian B 3"],
        ),
    ],
)
def test_the_plan(recipe, runs, given, plan):
    only = "baseline+ dec-self" if recipe == LM else "baseline+ enc-self"
    assert read(recipe, RUNS=runs, **given).plan() == [line.replace(" B ", f" {only} ") for line in plan]
    assert [str(parse(word)).removeprefix("all") for word in runs.split()] == [
        w.removeprefix("all") for w in runs.split()
    ]


def test_a_fraction_is_rounded_as_the_commands_round_it():
    for share in ("0.0", "0.1", "0.25", "0.3", "0.77", "1.0"):
        line = read(MT, RUNS=f"enc-self={share}@gradient").plan()[-1]
        assert parse_target(share).counts({"enc-self": 24}) == {("enc-self",): int(line.split()[-1])}


def test_a_sweep_has_a_run_for_each_combination():
    given = {"TYPES": "all dec-enc", "LAMBDAS": "1e-5 0.12345678", "TARGETS": "0.5 12", "METHODS": "random subset"}
    ends = (":1e-5", ":0.12345678", "=0.5@random", "=0.5@subset", "=12@random", "=12@subset")
    expected = [types + end for types in ("all", "dec-enc") for end in ends]
    assert read("sweep.sh", **given).texts["RUNS"].split() == expected
    assert read("sweep.sh", **given, RUNS="=7").texts["RUNS"] == "=7"
