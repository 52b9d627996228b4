"""recipes/workflow/plan.py: from a configuration to models and the options of commands."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan import Family, command_line, cuts, models, sweep, trainings

FAMILY = Family(
    "transformer",
    "transformer_head_gates",
    "loss",
    {"task": "translation"},
    {"enc-self": 8, "dec-self": 4, "dec-enc": 4},
)


def configuration(**runs):
    length = {"lr": 0.1, "lr-scheduler": "polynomial_decay", "max-update": 40}
    return {
        "model": {"layers": 2},
        "training": {"cpu": True},
        "baseline": length,
        "further": length | {"max-update": 20},
        "gates": {"fix-gates-after": 6},
        "result": "last",
        "runs": runs,
    }


def words(options):
    """Return the options of a command line: {name: value}."""
    found, last = {}, ""
    for word in shlex.split(options):
        if word.startswith("--"):
            last = word[2:]
            found[last] = True
        else:
            found[last] = word
    return found


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,8}", fullmatch=True), st.text("a '\"$(){}\\\n,.1", min_size=1)))
def test_the_shell_reads_every_value_as_it_is_written(options):
    assert shlex.split(command_line(options)) == [
        word for name, text in options.items() for word in (f"--{name}", text)
    ]


def test_later_groups_replace_values_and_null_leaves_an_option_out():
    assert command_line({"a": 1, "b": True, "c": 2}, {"a": 3, "c": None, "d": False}) == "--a 3 --b"


def test_a_list_is_a_sweep_over_all_combinations():
    runs = dict(sweep("x", {"gates": "all", "target": [0.5, 3], "method": ["lagrangian", "subset"]}))
    assert list(runs) == ["x_0.5_lagrangian", "x_0.5_subset", "x_3_lagrangian", "x_3_subset"]
    assert runs["x_3_subset"] == {"gates": "all", "target": 3, "method": "subset"}


def test_only_trained_runs_of_encoder_heads_alone_have_the_frozen_control():
    config = configuration(
        alone={"gates": "enc-self", "lambda": 0.1},
        whole={"gates": "all", "lambda": 0.1},
        cut={"scores": "gradient", "keep": 3, "types": "enc-self", "train": False},
    )
    found = models(config, FAMILY)
    assert list(found) == ["baseline", "baseline+", "baseline+frozen", "alone", "whole", "cut"]
    assert [model.control for model in found.values()][3:] == ["baseline+frozen", "baseline+", "baseline+"]
    frozen = {
        name: words(training.options).get("freeze-params")
        for name, training in trainings(config, FAMILY, models(config, FAMILY)).items()
    }
    found = [name for name, pattern in frozen.items() if pattern == r"^decoder\."]
    assert found == ["baseline+frozen", "alone"]


def test_a_run_is_compared_with_a_control_that_is_trained_on_the_same_data():
    config = configuration(
        cut={"params": 0.5, "data": ["original", "both"]}, again={"scratch": "cut_both", "data": "distilled"}
    )
    found = models(config, FAMILY)
    controls = {"baseline": None, "baseline+": None, "baseline+distilled": "baseline+", "baseline+both": "baseline+"}
    runs = {"cut_original": "baseline+", "cut_both": "baseline+both", "again": "baseline+distilled"}
    assert {name: model.control for name, model in found.items()} == controls | runs
    trained = trainings(config, FAMILY, found)
    data = {name: training.data for name, training in trained.items() if training.data != "original"}
    assert data == {
        **dict.fromkeys(("baseline+distilled", "again/first", "again"), "distilled"),
        **dict.fromkeys(("baseline+both", "cut_both"), "both"),
    }
    assert trained["baseline+both"].options == trained["baseline+"].options


def test_runs_of_one_size_compress_the_baseline_once():
    config = configuration(
        cut={"params": [0.7, 0.5], "train": False}, trained={"params": 0.5, "data": ["original", "distilled"]}
    )
    found = models(config, FAMILY)
    assert list(cuts(FAMILY, found)) == ["compressed/params_0.7.pt", "compressed/params_0.5.pt"]
    assert found["cut_0.7"].checkpoint == "compressed/params_0.7.pt"
    starts = {name: each.start for name, each in trainings(config, FAMILY, found).items() if "trained_" in name}
    assert starts == dict.fromkeys(("trained_original", "trained_distilled"), found["cut_0.5"].checkpoint)


def test_further_trainings_differ_from_the_control_only_in_the_heads():
    config = configuration(gated={"gates": "dec-enc", "target": 0.5}, cut={"scores": "refit", "keep": 0.5})
    found = {
        name: words(training.options) for name, training in trainings(config, FAMILY, models(config, FAMILY)).items()
    }
    control, gated, cut = found["baseline+"], found["gated"], found["cut"]
    other = {"arch": "transformer_head_gates"}
    assert cut == control | other | {"remove-heads": True}
    own = {"gate-heads": "dec-enc", "target-heads": "0.5", "sparsity-method": "lagrangian", "fix-gates-after": "6"}
    assert gated == control | other | {"criterion": "loss_l0"} | own
    assert control["total-num-update"] == control["max-update"] == "20" and found["baseline"]["max-update"] == "40"


def test_steps_remove_equal_numbers_and_are_one_training():
    config = configuration(slow={"scores": "gradient", "keep": 0.25, "steps": 3})
    cut = cuts(FAMILY, models(config, FAMILY))
    assert [(path, each.source, words(each.options)["keep"]) for path, each in cut.items()] == [
        ("slow/step1/start.pt", "baseline/trained.pt", "12"),
        ("slow/step2/start.pt", "slow/step1/trained.pt", "8"),
        ("slow/start.pt", "slow/step2/trained.pt", "4"),
    ]
    assert [each.scores for each in cut.values()] == [
        f"{folder}/scores.gradient.json" for folder in ("baseline", "slow/step1", "slow/step2")
    ]
    found = {
        name: training
        for name, training in trainings(config, FAMILY, models(config, FAMILY)).items()
        if name.startswith("slow")
    }
    options = {name: words(training.options) for name, training in found.items()}
    assert [each["max-update"] for each in options.values()] == ["6", "13", "20"]
    assert {each["total-num-update"] for each in options.values()} == {"20"}  # one schedule
    assert [training.resumes for training in found.values()] == [False, True, True]


@pytest.mark.parametrize(
    ("result", "whole", "compared"), [("best", "best", "last"), (3, 3, 3), ("last", "last", "last")]
)
def test_a_step_counts_with_its_last_checkpoint_which_has_the_state_of_the_optimizer(result, whole, compared):
    config = configuration(slow={"scores": "gradient", "keep": 4, "steps": 2}, again={"scratch": "slow"})
    found = trainings(config | {"result": result}, FAMILY, models(config, FAMILY))
    counts = {"baseline": whole, "baseline+": compared, "slow/step1": "last", "slow": compared}
    assert {name: each.result for name, each in found.items()} == counts | {"again/first": whole, "again": compared}


def test_a_model_from_scratch_is_trained_as_long_as_the_pruned_one():
    config = configuration(half={"gates": "all", "target": 0.5}, again={"scratch": "half"})
    found = trainings(config, FAMILY, models(config, FAMILY))
    first, second = found["again/first"], found["again"]
    assert (first.start, second.start, second.heads) == (None, "again/first/trained.pt", "half/pruned.pt")
    assert [words(each.options)["max-update"] for each in (first, second)] == ["40", "20"]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({}, "must have one of gates, scores, params, speedup, scratch, has none"),
        ({"gates": "all", "lambda": 1, "params": 0.5}, "has gates and params"),
        ({"gates": "all"}, "gates need either lambda or target"),
        ({"gates": "all", "lambda": 1, "target": 2}, "gates need either lambda or target"),
        ({"scratch": "y"}, "scratch must be one of x"),
        ({"gates": "enc-self", "target": 9}, "target must be at most 8"),
        ({"scores": "gradient", "keep": 17}, "keep must be at most 16"),
        ({"scores": "gradient", "keep": 4, "steps": 21}, "steps must be at most max-update"),
        ({"params": 0.5, "train": False, "data": "both"}, "data is the text of the training"),
        ({"gates": "enc-self", "lambda": 1, "data": "both"}, "need the original data"),
    ],
)
def test_runs_without_meaning_are_refused(run, message):
    with pytest.raises(SystemExit, match=message):
        models(configuration(x=run), FAMILY)


@pytest.mark.parametrize("runs", [{"baseline": {"params": 0.5}}, {"a_1": {"params": 0.5}, "a": {"params": [1, 2]}}])
def test_a_name_is_taken_once(runs):
    with pytest.raises(SystemExit, match="the name is taken"):
        models(configuration(**runs), FAMILY)


def test_only_translation_models_have_distilled_data():
    language_model = Family("a", "b", "c", {"task": "language_modeling"}, {"dec-self": 4})
    with pytest.raises(SystemExit, match="only translation models have distilled data"):
        models(configuration(x={"params": 0.5, "data": "distilled"}), language_model)


def test_types_that_the_model_lacks_are_refused():
    with pytest.raises(SystemExit, match="no enc-self, only dec-self"):
        models(configuration(x={"gates": "enc-self", "lambda": 1}), Family("a", "b", "c", {}, {"dec-self": 4}))
