"""Mutated files of every kind, given to the commands that read them: one line or a result, never anything else.

For each kind of file a few commands run; in rehearsals as many as HEADGATES_FUZZ_SECONDS allow (default 10: 80
seconds in all). A file that fails is kept, and its path is shown.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.attempts import Attempts

from fairseq_headgates.safety.options import EVALUATED

SECONDS = float(os.environ.get("HEADGATES_FUZZ_SECONDS", "10"))
FUZZ = settings(
    database=None,
    phases=[Phase.generate],  # a failing file is kept as it is: making it smaller would take longer than the time given
    suppress_health_check=list(HealthCheck),
)

# --- mutations -------------------------------------------------------------------------------------------------------

# (where, as a share of the file; what; with which bytes)
edits = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["replace", "insert", "delete", "cut", "repeat", "zero", "ones"]),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=6,
)


def mutated(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for share, what, other in changes:
        at = int(share * len(data))
        size = len(other)
        data = {
            "replace": data[:at] + other + data[at + size :],
            "insert": data[:at] + other + data[at:],
            "delete": data[:at] + data[at + size :],
            "cut": data[:at],
            "repeat": data[: at + size] + data[at:],
            "zero": data[:at] + bytes(size) + data[at + size :],
            "ones": data[:at] + b"\xff" * size + data[at + size :],
        }[what]
    return data


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


# --- running ---------------------------------------------------------------------------------------------------------


class Budget:
    """Runs at least three commands, and more until the time of a test is spent; counts them."""

    least = 3

    def __init__(self, attempts: Attempts, kept: Path, seconds: float):
        self.attempts, self.kept, self.seconds, self.cases = attempts, kept, seconds, 0
        self.end = math.inf  # until the first case begins
        self.examples = settings(FUZZ, max_examples=int(10 * seconds) + self.least)

    def try_(self, prepare: Callable[[], None], *commands: list) -> None:
        if not self.cases:
            self.end = time.monotonic() + self.seconds
        if time.monotonic() > self.end and self.cases >= self.least:
            return
        prepare()
        for command in commands:
            self.cases += 1
            ended = self.attempts.run(*command, seconds=30)
            if not ended.orderly:
                last = ended.err.strip().splitlines()[-3:]
                pytest.fail(f"{' '.join(map(str, command))}\nended with {ended.code} ({self.kept}): {last}")


@pytest.fixture(params=[pytest.param(0, id="short"), pytest.param(SECONDS, id="long", marks=pytest.mark.rehearsal)])
def budget(attempts, tmp_path_factory, request):
    budget = Budget(attempts, tmp_path_factory.mktemp("fuzz"), request.param)
    yield budget
    print(f"{request.node.name}: {budget.cases} commands")
    assert budget.cases >= budget.least


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_changed_bytes_of_checkpoints_never_crash(budget, gated_checkpoint):
    whole, path, out = gated_checkpoint.read_bytes(), budget.kept / "x.pt", budget.kept / "out.pt"
    commands = [["headgates", "show", path], ["headgates", "prune", path, out, "--force"]]

    @budget.examples
    @given(edits)
    def run(changes):
        budget.try_(lambda: path.write_bytes(mutated(whole, changes)), *commands)

    run()


def test_changed_pickle_instructions_never_crash(budget, gated_checkpoint):
    """The pickle inside of the archive is changed, the archive is whole."""
    path, out = budget.kept / "x.pt", budget.kept / "out.pt"
    with zipfile.ZipFile(gated_checkpoint) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}

    def write(changes):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, data in entries.items():
                archive.writestr(name, mutated(data, changes) if name.endswith("data.pkl") else data)

    @budget.examples
    @given(edits)
    def run(changes):
        budget.try_(lambda: write(changes), ["headgates", "prune", path, out, "--force"])

    run()


evaluated_options = st.dictionaries(st.sampled_from(sorted(EVALUATED)), odd, max_size=1)


def test_changed_values_of_checkpoints_never_crash(budget, gated_checkpoint, checkpoints):
    path, out = budget.kept / "x.pt", budget.kept / "out.pt"
    states = [torch.load(checkpoint, weights_only=True) for checkpoint in (gated_checkpoint, checkpoints["fixed"])]
    known = [places(state) for state in states]
    commands = [
        ["headgates", "prune", path, out, "--force", *more] for more in ([], ["--stock"], ["--no-optimizer", "--json"])
    ]

    def write(number, values, evaluated):
        state = copy.deepcopy(states[number])
        for place, value in values:
            put(state, known[number][place % len(known[number])], value)
        for name, value in evaluated.items():
            put(state, ("cfg", "model", name), value)
        torch.save(state, path)

    @budget.examples
    @given(
        st.integers(0, 1),
        changes,
        st.dictionaries(st.sampled_from(sorted(EVALUATED)), odd, max_size=1),
        st.integers(0, 2),
    )
    def run(number, values, evaluated, command):
        budget.try_(lambda: write(number, values, evaluated), commands[command])

    run()


# --- masks and scores ------------------------------------------------------------------------------------------------

MASK = {
    "format": "headgates.heads/1",
    "enc-self": [[1, 0, 1, 1], [1, 1, 1, 1]],
    "dec-enc": [[1, 1, 0, 1], [0, 1, 1, 1]],
}
SCORES = {
    "format": "headgates.scores/1",
    "method": "gradient",
    "signature": "gradient|data:x|ckpt:y",
    "scores": {kind: [[0.5, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]] for kind in ("enc-self", "dec-self", "dec-enc")},
}


@pytest.mark.parametrize("kind", ["mask", "scores"])
def test_changed_masks_and_scores_never_crash(kind, budget, gated_checkpoint):
    path, good, out = budget.kept / "x.json", budget.kept / "good.json", budget.kept / "out.pt"
    good.write_text(json.dumps(SCORES))
    valid = MASK if kind == "mask" else SCORES
    prune = ["headgates", "prune", gated_checkpoint, out, "--force", "--dry-run"]
    commands = [[*prune, "--alive", path]]
    if kind == "scores":
        commands = [[*prune, "--scores", path, "--keep", "0.5"], ["headgates", "correlate", path, good, "--any"]]
    text = json.dumps(valid).encode()
    known = places(valid)

    def write(binary, edited, values):
        changed = copy.deepcopy(valid)
        for place, value in values:
            put(changed, known[place % len(known)], value)
        path.write_bytes(mutated(text, edited) if binary else json.dumps(changed, default=str).encode())

    @budget.examples
    @given(st.booleans(), edits, changes)
    def run(binary, edited, values):
        budget.try_(lambda: write(binary, edited, values), *commands)

    run()


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dict.src.txt", "test.src-tgt.src.idx", "test.src-tgt.tgt.bin"])
def test_changed_binarised_data_never_crashes(kind, budget, toy, gated_checkpoint):
    folder = budget.kept / "bin"
    shutil.copytree(toy.data, folder)
    whole = (folder / kind).read_bytes()
    command = ["headgates", "score", folder, "--path", gated_checkpoint, "--gen-subset", "test", "--cpu"]
    command += ["--num-workers", "0", "--method", "confidence,gradient", "--source-lang", "src", "--target-lang", "tgt"]

    @budget.examples
    @given(edits)
    def run(changes):
        budget.try_(lambda: (folder / kind).write_bytes(mutated(whole, changes)), command)

    run()
