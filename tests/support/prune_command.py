"""A small gated checkpoint, and `headgates prune`."""

import json
from functools import partial

import pytest
import torch

from fairseq_headgates import head_sites
from fairseq_headgates.checkpoints import build_model
from support.models import make_gated

TYPES = ("enc-self", "dec-self", "dec-enc")

# Gates that are closed, open and between at evaluation: 0, 1, about 0.62.
C, O, F = -3.0, 3.0, 0.4  # noqa: E741
LOG_ALPHA = {
    "enc-self": [[C, O, F, O], [C, C, C, C]],
    "dec-self": [[O, C, C, F], [O, O, O, O]],
    "dec-enc": [[F, C, C, O], [F, C, O, C]],
}
OPEN = {attention_type: [[int(a != C) for a in row] for row in rows] for attention_type, rows in LOG_ALPHA.items()}


@pytest.fixture
def prune(run):
    """prune(*arguments, code=0) runs `headgates prune`."""
    return partial(run, "headgates", "prune")


@pytest.fixture
def refused(prune):
    """refused(*arguments, words): exit code 2, nothing printed but one line that holds these words."""

    def refused(*arguments, words):
        done = prune(*arguments, code=2)
        assert done.out == "" and done.err.count("\n") == 1, done
        assert done.err.startswith("headgates prune: error: ")
        assert [word for word in words if word not in done.err] == [], done.err
        return done

    return refused


def small_state(**options):
    """A checkpoint with the gates of `LOG_ALPHA`, and the optimiser of its training."""
    model = make_gated(gate_heads=",".join(TYPES), **options)
    model.args.arch = "transformer_head_gates"
    with torch.no_grad():
        for site in head_sites(model):
            site.attention.gate.theta.copy_(torch.tensor(LOG_ALPHA[site.attention_type][site.layer]) / 50)
    moments = {
        i: {"step": 5, "exp_avg": torch.randn_like(p), "exp_avg_sq": torch.rand_like(p)}
        for i, p in enumerate(model.parameters())
    }
    return {
        "args": None,
        "cfg": {"model": model.args},
        "model": model.state_dict(),
        "optimizer_history": [{"num_updates": 5, "criterion_name": "LabelSmoothedCrossEntropyL0Criterion"}],
        "extra_state": {},
        "last_optimizer_state": {"state": moments, "param_groups": [{"lr": 0.1, "params": list(moments)}]},
    }


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "gated.pt"
    torch.save(small_state(), path)
    return path


@pytest.fixture
def checkpoint(small_checkpoint, tmp_path):
    """In a folder of its own, where nothing but the outputs of the test may appear."""
    path = tmp_path / "gated.pt"
    path.write_bytes(small_checkpoint.read_bytes())
    return path


@pytest.fixture
def plan_of(checkpoint, prune):
    """plan_of(*options): the plan of `headgates prune` with these options, which writes nothing."""

    def plan_of(*options):
        return json.loads(prune(checkpoint, checkpoint.with_name("x.pt"), *options, "--dry-run", "--json").out)

    return plan_of


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def score_file(values, **more):
    return {"format": "headgates.scores/1", "method": "gradient", "signature": "gradient|x", "scores": values, **more}


def load(path):
    return build_model(torch.load(path))


SCORES = {
    "enc-self": [[9, 1, 2, 3], [9, 9, 9, 9]],
    "dec-self": [[4, 9, 9, 5], [6, 7, 8, 0.5]],
    "dec-enc": [[0.1, 9, 9, 0.2], [0.3, 9, 0.4, 9]],
}


def mask(**rows):
    return json.dumps({attention_type.replace("_", "-"): layers for attention_type, layers in rows.items()})
