"""Configurations: those of recipes/config are right, and a wrong key or value is one line."""

from copy import deepcopy

import pytest
import yaml
from support.workflows import FAMILIES, RECIPES, configuration, snakemake

from fairseq_headgates.scores.options import SCORES
from plan import check


@pytest.mark.parametrize("name", [file.stem for file in RECIPES.glob("config/*.yaml")])
def test_the_configurations_of_the_recipes_are_right(name):
    check(configuration(name), FAMILIES[name])


MISSING = object()


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("small", "nope", 1, "configuration: Additional properties are not allowed ('nope' was unexpected)"),
        ("small", "classes", 2, "'classes' was unexpected"),
        ("small", "out", MISSING, "'out' is a required property"),
        ("small", "out", "a:b", "configuration, out: 'a:b' does not match"),
        ("small", "bpe", 0, "configuration, bpe: 0 is less than the minimum of 1"),
        ("small", "bpe", "many", "configuration, bpe: 'many' is not of type 'integer'"),
        ("small", "src", "en us", "does not match"),
        ("small", "seeds", [], "[] should be non-empty"),
        ("small", "seeds", [1, 1], "has non-unique elements"),
        (
            "small",
            "seeds",
            ["x"],
            "configuration, seeds.0: mend one of: 'x' is not of type 'integer'; 'x' does not match",
        ),
        ("small", "model", [1], "is not of type 'object'"),
        ("small", "model.encoder-layers", MISSING, "configuration, model: 'encoder-layers' is a required property"),
        ("small", "baseline.max-update", MISSING, "configuration, baseline: 'max-update' is a required property"),
        ("small", "baseline.max-update", 0, "configuration, baseline.max-update: 0 is less than the minimum of 1"),
        ("small", "training.dropout", [0.1], "is not of type"),
        ("small", "result", "worst", "'worst' is not one of ['last', 'best']; 'worst' is not of type 'integer'"),
        ("small", "result", 0, "0 is less than the minimum of 1"),
        ("small", "sentences", 0, "less than the minimum"),
        ("small", "speed", "yes", "'yes' is not of type 'boolean'"),
        ("small", "metrics", ["a b"], "does not match"),
        ("small", "paper", "acl", "'acl' is not one of"),
        ("small", "runs.a b", {"params": 0.5}, "does not match"),
        ("small", "runs.x", {"gate": "all"}, "('gate' was unexpected)"),
        ("small", "runs.x", {"scores": "gradient"}, "'keep' is a dependency of 'scores'"),
        ("small", "runs.x", {"gates": "everything", "lambda": 1}, "'everything' does not match"),
        ("small", "runs.x", {"gates": "all", "lambda": -1}, "-1 is less than the minimum of 0"),
        ("small", "runs.x", {"gates": "all", "target": 1.5}, "1.5 is greater than the maximum of 1"),
        (
            "small",
            "runs.x",
            {"gates": "all", "target": 0.5, "method": "l1"},
            "'l1' is not one of ['lagrangian', 'subset']",
        ),
        ("small", "runs.x", {"params": 0.5, "steps": 2}, "'scores' is a dependency of 'steps'"),
        ("small", "runs.x", {"speedup": 1}, "1 is less than or equal to the minimum of 1"),
        ("small", "runs.x", {"scores": "gradent", "keep": 0.5}, "'gradent' is not one of ['confidence', "),
        ("language_model", "arch", "lstm", "'lstm' is not one of"),
        ("language_model", "src", "en", "'src' was unexpected"),
        ("classification", "classes", 1, "less than the minimum"),
        ("classification", "mlm", MISSING, "'mlm' is a required property; 'pretrained' is a required property"),
        ("classification", "pretrained", {"checkpoint": "x"}, "'dict' is a required property"),
        ("classification", "curves", ["gradient", "Gradient"], "does not match"),
    ],
)
def test_a_wrong_value_is_one_line(name, path, value, message):
    config = deepcopy(configuration(name))
    *places, key = path.split(".")
    inside = config
    for place in places:
        inside = inside[place]
    if value is MISSING:
        del inside[key]
    else:
        inside[key] = value
    with pytest.raises(SystemExit) as stop:
        check(config, FAMILIES[name])
    assert message in str(stop.value) and "\n" not in str(stop.value)


def test_scores_of_a_run_are_those_of_headgates_score():
    schema = yaml.safe_load((RECIPES / "workflow" / "config.schema.yaml").read_text())
    assert schema["$defs"]["method_of_scores"]["enum"] == list(SCORES)


def test_the_command_prints_the_line(tmp_path):
    printed = snakemake(tmp_path, "translation", configuration("small") | {"bpe": "many"}, "-n", code=1)
    assert printed.splitlines()[-1] == "configuration, bpe: 'many' is not of type 'integer'"
