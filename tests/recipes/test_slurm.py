"""Recipes as jobs of SLURM (recipes/slurm.sh), pretended by programs on the PATH and by variables."""

import signal
import subprocess
import time

import pytest
from support.recipes import RECIPES, environment, refused

pytest_plugins = ["support.machines"]
pytestmark = pytest.mark.usefixtures("no_other_machine")


@pytest.fixture
def slurm(program, tmp_path):
    """slurm(RECIPE, **variables): start slurm.sh in a job with a recipe that is one line of bash."""
    program("scontrol", f'echo "$*" >>{tmp_path}/scontrol.log')

    def slurm(recipe, **variables):
        program("recipe", recipe)
        env = environment({"SLURM_JOB_ID": 7, "SLURM_NNODES": 2, "SLURM_GPUS_ON_NODE": 8} | variables)
        command = ["bash", str(RECIPES / "slurm.sh"), "recipe"]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return slurm


def ended(process):
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess("slurm.sh", process.returncode, output, errors)


@pytest.mark.parametrize(
    ("variables", "workers"),
    [
        ({"SLURM_NTASKS": 16, "SLURM_GPUS_ON_NODE": 8}, 16),
        ({"SLURM_NTASKS_PER_NODE": 8, "SLURM_GPUS_ON_NODE": 8}, 16),
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 8}, 16),  # fairseq starts a process for each GPU
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 4, "SLURM_GPUS_PER_TASK": 4}, 8),
        ({"SLURM_NTASKS": 1, "SLURM_NNODES": 1, "SLURM_GPUS_ON_NODE": 0}, 1),
        ({"SLURM_NTASKS": 4, "SLURM_GPUS_ON_NODE": 0}, 4),  # CPUs
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 8, "WORKERS": 5}, 5),
    ],
)
def test_slurm_counts_the_processes_as_fairseq_does(variables, workers, slurm):
    result = ended(slurm('echo "$WORKERS $LAUNCHER"', **variables))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{workers} srun python3\n", "")


def test_slurm_counts_the_gpus_that_nvidia_smi_shows(slurm, eight_gpus):
    assert ended(slurm('echo "$WORKERS"', SLURM_NTASKS=2, SLURM_GPUS_ON_NODE="")).stdout == "16\n"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_NTASKS": 3, "SLURM_GPUS_ON_NODE": 8}, "3 tasks on 2 machines"),
        ({"SLURM_NTASKS": 16, "SLURM_GPUS_ON_NODE": 4}, "8 tasks share 4 GPUs"),
        ({"SLURM_NTASKS": 16, "SLURM_GPUS_ON_NODE": 8, "SLURM_GPUS_PER_TASK": 1}, "--gpus-per-node"),
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 0}, "one task on each of 2 machines without GPUs"),
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 8, "GPUS": 4}, "GPUS=4"),
        ({"SLURM_JOB_ID": ""}, "run it with sbatch"),
    ],
)
def test_slurm_refuses_tasks_that_fairseq_cannot_use(variables, words, slurm, tmp_path):
    refused(ended(slurm(f"touch {tmp_path}/ran", **variables)), "slurm.sh:", words)
    assert not (tmp_path / "ran").exists()


def test_steps_have_as_many_cpus_as_the_job_asked_for(slurm):
    job = {"SLURM_NTASKS": 2, "SLURM_CPUS_PER_TASK": 4}
    assert ended(slurm('echo "$SRUN_CPUS_PER_TASK"', **job)).stdout == "4\n"
    assert ended(slurm('echo "$SRUN_CPUS_PER_TASK"', **job, SRUN_CPUS_PER_TASK=2)).stdout == "2\n"
    assert ended(slurm('echo "${SRUN_CPUS_PER_TASK-unset}"', SLURM_NTASKS=2)).stdout == "unset\n"


def begun(slurm, recipe, folder):
    """A job whose recipe runs."""
    job = slurm(f"touch {folder}/began; {recipe}", SLURM_NTASKS=2)
    deadline = time.monotonic() + 30
    while not (folder / "began").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)  # its trap is set after the file
    return job


# The child of a recipe closes its output: the test waits until nobody writes there.
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param("trap 'exit 75' USR1; sleep 60 >/dev/null 2>&1 & wait", id="it stopped"),
        pytest.param("trap 'exit 2' USR1; sleep 60 >/dev/null 2>&1 & wait", id="the stage that was interrupted failed"),
    ],
)
def test_a_job_that_was_asked_to_stop_is_requeued(recipe, slurm, tmp_path):
    job = begun(slurm, recipe, tmp_path)
    job.send_signal(signal.SIGUSR1)
    result = ended(job)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "scontrol.log").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("recipe", "code"), [("true", 0), ("exit 2", 2), ("trap 'exit 0' USR1; sleep 60 >/dev/null 2>&1 & wait", 0)]
)
def test_a_job_that_ended_by_itself_is_not_requeued(recipe, code, slurm, tmp_path):
    job = begun(slurm, recipe, tmp_path)
    if "sleep" in recipe:
        job.send_signal(signal.SIGUSR1)
    assert ended(job).returncode == code and not (tmp_path / "scontrol.log").exists()


def test_a_job_whose_recipe_can_be_resumed_is_requeued(slurm, tmp_path):
    assert ended(slurm("exit 75", SLURM_NTASKS=2)).returncode == 0
    assert (tmp_path / "scontrol.log").read_text() == "requeue 7\n"
