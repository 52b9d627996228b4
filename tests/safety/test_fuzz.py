"""Mutated checkpoints, given to the commands that read them: one line or a result, never anything else.

Of each kind three run; in rehearsals as many as HEADGATES_FUZZ_SECONDS allow (default 10). A file that fails is kept,
and its path is shown.
"""

import contextlib
import copy
import os
import time
import zipfile

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairseq_headgates.safety.options import EVALUATED

SECONDS = float(os.environ.get("HEADGATES_FUZZ_SECONDS", "10"))
LEAST = 3

# (where, as a share of the file; what; with which bytes)
edits = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["replace", "insert", "delete", "cut", "repeat"]),
        st.binary(min_size=1, max_size=8) | st.sampled_from([bytes(4), b"\xff" * 4]),
    ),
    min_size=1,
    max_size=6,
)
odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=30)
    | st.binary(max_size=30)
    | st.sampled_from(["/dev/zero", "../x", "-1", "nan", "1e999", "x" * 10_000, "[1] * 9", "print(1)", "é", "\0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
# (the number of a place, what is put there)
changes = st.lists(st.tuples(st.integers(0, 10**6), odd), min_size=1, max_size=3)
evaluated_options = st.dictionaries(st.sampled_from(sorted(EVALUATED)), odd, max_size=1)


def mutated(data, changes):
    for share, what, other in changes:
        at = int(share * len(data))
        size = len(other)
        data = {
            "replace": data[:at] + other + data[at + size :],
            "insert": data[:at] + other + data[at:],
            "delete": data[:at] + data[at + size :],
            "cut": data[:at],
            "repeat": data[: at + size] + data[at:],
        }[what]
    return data


def places(value, path=()):
    """Every place in nested dictionaries, lists and namespaces."""
    found = [path] if path else []
    inner = vars(value) if hasattr(value, "__dict__") and not torch.is_tensor(value) else value
    items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
    for key, element in items:
        found += places(element, (*path, key))
    return found


def put(state, path, value):
    """Sets a place, unless what it was in has been replaced."""
    with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
        for key in path[:-1]:
            state = vars(state)[key] if hasattr(state, "__dict__") else state[key]
        if hasattr(state, "__dict__"):
            setattr(state, path[-1], value)
        else:
            state[path[-1]] = value


@pytest.fixture(params=[pytest.param(0, id="short"), pytest.param(SECONDS, id="long", marks=pytest.mark.rehearsal)])
def fuzz(attempts, tmp_path, request):
    """fuzz(write, command, *strategies): runs the command on what `write` makes of each example."""
    path = tmp_path / "x.pt"

    def fuzz(write, command, *strategies):
        begun, cases = time.monotonic(), []

        @settings(
            database=None,
            max_examples=int(10 * request.param) + LEAST,
            phases=[Phase.generate],  # making a failing file smaller would take longer than the time given
            suppress_health_check=list(HealthCheck),
        )
        @given(st.tuples(*strategies))
        def run(example):
            if len(cases) >= LEAST and time.monotonic() > begun + request.param:
                return
            cases.append(example)
            write(path, *example)
            ended = attempts.run("headgates", command[0], path, *command[1:], seconds=30)
            assert ended.orderly, f"{path}: ended with {ended.code}: {ended.err.strip().splitlines()[-3:]}"

        run()
        assert len(cases) >= LEAST

    return fuzz


def test_changed_bytes_of_checkpoints_never_crash(fuzz, gated_checkpoint):
    whole = gated_checkpoint.read_bytes()
    fuzz(lambda path, changes: path.write_bytes(mutated(whole, changes)), ["show"], edits)


def test_changed_pickle_instructions_never_crash(fuzz, gated_checkpoint):
    """The pickle inside of the archive is changed, the archive is whole."""
    with zipfile.ZipFile(gated_checkpoint) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}

    def write(path, changes):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in entries.items():
                archive.writestr(name, mutated(data, changes) if name.endswith("data.pkl") else data)

    fuzz(write, ["prune", "out.pt"], edits)


@pytest.mark.parametrize("kind", ["gated", "fixed"])
def test_changed_values_of_checkpoints_never_crash(kind, fuzz, checkpoints):
    whole = torch.load(checkpoints[kind], weights_only=True)
    known = places(whole)

    def write(path, values, evaluated):
        state = copy.deepcopy(whole)
        for place, value in values:
            put(state, known[place % len(known)], value)
        for name, value in evaluated.items():
            put(state, ("cfg", "model", name), value)
        torch.save(state, path)

    fuzz(write, ["prune", "out.pt", *["--stock"] * (kind == "gated")], changes, evaluated_options)
