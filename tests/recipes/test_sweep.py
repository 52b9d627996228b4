"""The sweep: shares of a recipe, settings."""

import os
import re
import subprocess

import pytest
from support.recipes import RECIPES


def dry_run(raw, out, recipe="translation.sh", **given):
    environment = {**os.environ, **given}
    command = [RECIPES / recipe, "--dry-run", raw, out, "en", "de"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def trained(text):
    """The models whose training a dry run prints."""
    found = re.findall(r"train\.py .*--save-dir \S*/out/(\S+) ", text)
    return [name for name in found if not name.endswith("/first")]  # the first part of a training from scratch


RUNS = "all:0.1 enc-self=2 all=4@random all=4@gradient-only"
NAMES = ["baseline", "baseline+", "baseline+frozen", "all_lambda0.1", "enc-self_heads2", "all_heads4_random"]


def test_shares_cover_all_models_once_with_their_baselines(raw, tmp_path):
    given = {"RUNS": RUNS, "SPARSITY_METHOD": "lagrangian", "SCRATCH": "enc-self"}
    whole = trained(dry_run(raw, tmp_path / "out", **given))
    assert sorted(whole) == sorted([*NAMES, "enc-self_heads2_scratch"])
    shares = [trained(dry_run(raw, tmp_path / "out", **given, SHARE=f"{i}/2")) for i in (1, 2)]
    assert all(len(set(share)) == len(share) and share[0] == "baseline" for share in shares)
    assert set().union(*shares) == set(whole)
    runs = [name for share in shares for name in share if not name.startswith("baseline")]
    assert (
        sorted(runs)
        in (  # the scratch model may need another share's run
            sorted([*NAMES[3:], "enc-self_heads2_scratch"]),
            sorted([*NAMES[3:], "enc-self_heads2_scratch", "enc-self_heads2"]),
        )
    )


@pytest.mark.rehearsal
@pytest.mark.release
def test_shares_begin_with_different_seeds(raw, tmp_path):
    given = {"RUNS": "all:0.1 all=4", "SEEDS": "1 2 3"}
    whole = trained(dry_run(raw, tmp_path / "out", **given))
    shares = [trained(dry_run(raw, tmp_path / "out", **given, SHARE=f"{i}/2")) for i in (1, 2)]
    assert [share[0] for share in shares] == ["seed1/baseline", "seed2/baseline"]
    runs = [name for name in shares[0] if "baseline" not in name]
    assert runs == ["seed1/all_heads4", "seed2/all_lambda0.1", "seed3/all_heads4"]
    assert set().union(*shares) == set(whole) and len(whole) == 12


@pytest.mark.rehearsal
@pytest.mark.release
def test_a_job_of_a_slurm_array_has_its_share(raw, tmp_path):
    """Also if an index of the array is missing: here there are 3 and 7, of 3, 5 and 7."""
    array = {"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "7", "SLURM_ARRAY_TASK_STEP": "2"}
    array |= {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": "7"}
    given = {"TYPES": "all", "LAMBDAS": "0.1", "TARGETS": "4 0.25", "METHODS": "lagrangian random"}
    found = trained(dry_run(raw, tmp_path / "out", "sweep.sh", **given))
    expected = ["baseline", "baseline+", "all_lambda0.1"]
    expected += [f"all_heads{target}{method}" for target in ("4", "0.25") for method in ("", "_random")]
    assert found == expected
    share = dry_run(raw, tmp_path / "out", "sweep.sh", **given, SHARE="3/3")
    assert dry_run(raw, tmp_path / "out", "sweep.sh", **given, **array) == share
    assert 0 < len(trained(share)) < len(expected)
