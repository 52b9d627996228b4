"""`headgates prune` on a small gated checkpoint."""

import json

import pytest


@pytest.fixture
def prune(run):
    """prune(path, out, *options, code=0) runs `headgates prune`."""

    def prune(path, out, *options, code=0):
        return run("headgates", "prune", "--path", path, "--out", out, *options, code=code)

    return prune


@pytest.fixture
def refused(prune):
    """refused(*arguments, words): exit code 2, nothing printed but one line that holds these words."""

    def refused(*arguments, words):
        done = prune(*arguments, code=2)
        assert done.out == "" and done.err.count("\n") == 1, done
        assert done.err.startswith("headgates prune: error: ")
        assert [word for word in words if word not in done.err] == [], done.err

    return refused


@pytest.fixture
def checkpoint(gated, tmp_path):
    """In a folder of its own, where nothing but the outputs of the test may appear."""
    path = tmp_path / "gated.pt"
    path.write_bytes(gated.read_bytes())
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


SCORES = {
    "enc-self": [[9, 1, 2, 3], [9, 9, 9, 9]],
    "dec-self": [[4, 9, 9, 5], [6, 7, 8, 0.5]],
    "dec-enc": [[9, 9, 9, 9], [0.3, 9, 0.4, 9]],
}
