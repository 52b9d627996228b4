"""Where a recipe runs: machines with several GPUs and SLURM, pretended by programs on the PATH and by variables."""

import gzip
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from support.recipes import RECIPES, environment, refused, run

pytestmark = pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning")  # of hydra

CLUSTER = ("CUDA_VISIBLE_DEVICES", "GPUS", "HOSTS", "LAUNCHER", "WORKERS", "CPU", "PORT")
TINY = {"BPE": 200, "EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "DISK_GB": 0}


@pytest.fixture(autouse=True)
def no_other_machine(monkeypatch):
    for name in [*CLUSTER, *(name for name in os.environ if name.startswith(("SLURM_", "SRUN_")))]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(NAME, TEXT): a shell script that comes first on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def program(name, text):
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    return program


@pytest.fixture
def eight_gpus(program):
    program("nvidia-smi", 'for gpu in {0..7}; do echo "GPU $gpu: Some"; done')


# --- GPUs of one machine ---------------------------------------------------------------------------------------------


def found_devices(**settings):
    """What find_devices sets, by name."""
    names = "gpus launcher workers device distributed CUDA_VISIBLE_DEVICES"
    shell = f"""
        recipes={RECIPES}; source $recipes/lib/common.sh; source $recipes/lib/devices.sh; find_devices
        for name in {names}; do declare -n value=$name; echo "$name=${{value[*]}}"; done"""
    result = subprocess.run(
        ["bash", "-c", shell], env=environment(settings), capture_output=True, text=True, check=True
    )
    return dict(line.split("=", 1) for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("settings", "workers", "visible"),
    [
        ({}, 8, "0,1,2,3,4,5,6,7"),
        ({"GPUS": 1}, 1, "0"),
        ({"GPUS": 3}, 3, "0,1,2"),
        ({"CUDA_VISIBLE_DEVICES": "5,2,7"}, 3, "5,2,7"),
        ({"GPUS": 2, "CUDA_VISIBLE_DEVICES": "5,2,7"}, 2, "5,2"),
        ({"GPUS": 1, "CUDA_VISIBLE_DEVICES": "GPU-a1,GPU-b2"}, 1, "GPU-a1"),
    ],
)
def test_a_recipe_uses_the_gpus_that_it_is_told(settings, workers, visible, eight_gpus):
    found = found_devices(**settings)
    assert found["gpus"] == found["workers"] == str(workers) and found["CUDA_VISIBLE_DEVICES"] == visible
    launcher = "python3" if workers == 1 else f"torchrun --standalone --nproc_per_node {workers}"
    assert (found["launcher"], found["distributed"]) == (launcher, f"--distributed-world-size {workers}")
    assert found["device"] == "--distributed-world-size 1"


def test_without_gpus_or_with_gpus_0_a_recipe_uses_the_cpu(eight_gpus):
    found = found_devices(GPUS=0)
    assert found["device"] == found["distributed"] == "--distributed-world-size 1 --cpu"
    assert (found["launcher"], found["workers"], found["CUDA_VISIBLE_DEVICES"]) == ("python3", "1", "")


def test_the_number_of_processes_of_a_launcher_or_of_hosts_reaches_fairseq(program, eight_gpus):
    for name in ("mpirun", "srun"):
        program(name, "")
    assert found_devices(LAUNCHER="mpirun python3", WORKERS=16)["distributed"] == "--distributed-world-size 16"
    assert found_devices(HOSTS="a b", GPUS=4)["distributed"] == "--distributed-world-size 8"
    in_slurm = found_devices(LAUNCHER="srun python3", WORKERS=16, SLURM_JOB_ID=7, PORT=29600)
    assert in_slurm["distributed"] == "--distributed-world-size 16 --distributed-port 29600"


@pytest.mark.parametrize("gpus", [1, 8])
def test_every_training_and_evaluation_names_its_number_of_processes(gpus, raw, tmp_path, eight_gpus):
    """fairseq's default is the number of visible GPUs, in fairseq-eval-lm too, which would evaluate a part each."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a line of text\n")
    out = tmp_path / "out"
    commands = run("translation.sh", "--dry-run", raw, out, "en", "de", GPUS=gpus, **TINY).stdout
    commands += run("language_model.sh", "--dry-run", tmp_path, out, GPUS=gpus, **TINY).stdout
    trainings = [line for line in commands.splitlines() if "train.py" in line]
    evaluations = [line for line in commands.splitlines() if line.startswith(("fairseq-eval-lm", "fairseq-validate"))]
    assert len(trainings) >= 8 and len(evaluations) >= 8
    assert all(f"--distributed-world-size {gpus} " in line for line in trainings)
    assert all(line.startswith("torchrun" if gpus > 1 else "python3") for line in trainings)
    assert all("--distributed-world-size 1 " in line + " " for line in evaluations)


@pytest.mark.parametrize("recipe", ["wmt_en_ru.sh", "opensubtitles_en_ru.sh"])
def test_text_of_ones_own_is_trained_on_without_a_download(recipe, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for name in ("train.en", "train.ru", "valid.en", "valid.ru.gz", "test.en"):
        (own / name).write_text("a word\n")
    (own / "valid.ru.gz").write_bytes(gzip.compress(b"a word\n"))
    settings = TINY | {"RAW_DIR": own, "PRETOKENIZED": 1, "RUNS": ""}
    refused(run(recipe, "--dry-run", tmp_path / "out", **settings), f"{own}/test.ru[.gz] is missing")
    (own / "test.ru").write_text("a word\n")
    result = run(recipe, "--dry-run", tmp_path / "out", **settings)
    assert result.returncode == 0, result.stderr
    assert "corpora.py" not in result.stdout and "tokenize" not in result.stdout.replace("detokenize", "")
    assert str(own / "train.en") in result.stdout and "--finetune-from-model" not in result.stdout


# Settings of a machine, its processes and the GPUs that each machine shows.
SLURM = {"SLURM_JOB_ID": 7, "SLURM_NNODES": 2, "SLURM_GPUS_ON_NODE": 8}
MACHINES = {
    "1 GPU": ({"CUDA_VISIBLE_DEVICES": 0}, 1, "0"),
    "1 of 8": ({"GPUS": 1}, 1, "0"),
    "8": ({"GPUS": 8}, 8, "0,1,2,3,4,5,6,7"),
    "2 x 8 by ssh": ({"HOSTS": "a b", "GPUS": 8}, 16, "0,1,2,3,4,5,6,7"),
    "SLURM, 2 x 8 tasks": (SLURM | {"SLURM_NTASKS": 16, "GPUS": 8}, 16, "0,1,2,3,4,5,6,7"),
    "SLURM, 2 x 1 task": (SLURM | {"SLURM_NTASKS": 2, "GPUS": 8}, 16, "0,1,2,3,4,5,6,7"),
}
# The arguments and settings of a recipe, and what an update has: (tokens or sentences, how they are counted).
UPDATES = {
    "translation.sh": (["RAW", "OUT", "en", "ru"], {"TOKENS_PER_UPDATE": 16000}, (16000, "counted")),
    "wmt_en_ru.sh": (["OUT"], {}, (16000, "counted")),
    "opensubtitles_en_ru.sh": (["OUT"], {}, (16000, "counted")),
    "iwslt14_de_en.sh": (["OUT"], {"TOKENS_PER_UPDATE": 4000}, (4000, "counted")),
    "language_model.sh": (["RAW", "OUT"], {"TOKENS_PER_UPDATE": 16384}, (16384, "--max-tokens")),
    "wikitext103.sh": (["OUT"], {}, (192 * 192, "--max-tokens")),
    "classification.sh": (["RAW", "OUT"], {"PRETRAINED": "roberta.pt", "FINETUNE": 1}, (32, "--batch-size")),
    "mnli.sh": (["OUT"], {}, (32, "--batch-size")),
}


def value_after(option, line):
    return int(line.split(f" {option} ")[1].split()[0])


@pytest.mark.parametrize("recipe", UPDATES)
def test_a_dry_run_shows_processes_batches_and_gpus_of_a_machine(recipe, tmp_path, eight_gpus):
    arguments, settings, (wanted, counting) = UPDATES[recipe]
    folders = {"RAW": tmp_path / "raw", "OUT": tmp_path / "out"}
    arguments = [str(folders.get(argument, argument)) for argument in arguments]
    for machine, (variables, workers, gpus) in MACHINES.items():
        command = [RECIPES / recipe, "--dry-run", *arguments]
        if "SLURM" in machine:
            command.insert(0, RECIPES / "slurm.sh")
        env = environment({"DISK_GB": 0} | settings | variables)
        result = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{machine}: {result.stderr}"
        printed = result.stdout.splitlines()
        trainings = [line for line in printed if "/train.py " in line]
        assert trainings
        for line in trainings:
            assert value_after("--distributed-world-size", line) == workers, f"{machine}: {line}"
            if counting != "counted":
                batches = workers * value_after("--update-freq", line)
                per_batch, rest = divmod(wanted, batches)
                step = value_after("--tokens-per-sample", line) if counting == "--max-tokens" else 1
                assert 0 <= value_after(counting, line) - per_batch - (rest > 0) < step, f"{machine}: {line}"
        if counting == "counted":
            [plan] = [line for line in printed if "/batches.py " in line]
            assert (value_after("--workers", plan), value_after("--tokens", plan)) == (workers, wanted)
        exported = [line for line in printed if "CUDA_VISIBLE_DEVICES" in line]
        assert exported == ([] if "CUDA_VISIBLE_DEVICES" in variables else [f"export CUDA_VISIBLE_DEVICES={gpus}"])


def test_iwslt_trains_on_one_gpu_unless_the_size_of_an_update_is_given(tmp_path, eight_gpus):
    command = ["iwslt14_de_en.sh", "--dry-run", tmp_path / "out"]
    one = run(*command, **TINY)
    assert one.returncode == 0 and "torchrun" not in one.stdout and "--distributed-world-size 1 " in one.stdout
    refused(run(*command, GPUS=2, **TINY), "2 processes", "2 times 4000 tokens", "TOKENS_PER_UPDATE")
    refused(run(*command, HOSTS="a b", **TINY), "2 processes", "TOKENS_PER_UPDATE")
    several = run(*command, GPUS=2, TOKENS_PER_UPDATE=4000, **TINY)
    assert several.returncode == 0 and "--nproc_per_node 2 " in several.stdout


# --- the number of processes that fairseq makes of it ----------------------------------------------------------------


def numbered(monkeypatch, gpus, planned, **variables):
    """The number of processes for a machine with so many GPUs, after check_world_size."""
    import train

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    arguments = ["data", "--arch", "transformer", "--optimizer", "adam", "--distributed-port", "29500"]
    if planned:
        arguments += ["--distributed-world-size", str(planned)]
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
    train.find_rank(cfg)
    train.check_world_size(cfg, planned)
    return cfg.distributed_training.distributed_world_size


TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": 29500, "RANK": 0, "LOCAL_RANK": 0}
TASK = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": 2, "SLURM_NODEID": 0, "SLURM_PROCID": 0}
TASK["SLURM_LOCALID"] = 0


@pytest.mark.parametrize(
    ("gpus", "planned", "variables"),
    [
        (8, 1, {}),
        (0, 1, {}),
        (4, 4, TORCHRUN | {"WORLD_SIZE": 4}),
        (8, 16, TASK | {"SLURM_NTASKS": 16}),
        (8, 16, TASK | {"SLURM_NTASKS": 2}),  # a task for each machine: fairseq starts eight processes in it
    ],
)
def test_as_many_processes_train_as_were_planned(gpus, planned, variables, program, monkeypatch):
    program("scontrol", "printf 'a\\nb\\n'")
    assert numbered(monkeypatch, gpus, planned, **variables) == planned


@pytest.mark.parametrize(
    ("gpus", "planned", "variables", "found"),
    [
        (8, 2, TASK | {"SLURM_NTASKS": 2}, 16),
        (4, 8, TORCHRUN | {"WORLD_SIZE": 4}, 4),
    ],
)
def test_other_numbers_of_processes_are_refused(gpus, planned, variables, found, program, monkeypatch):
    program("scontrol", "printf 'a\\nb\\n'")
    with pytest.raises(ValueError, match=f"^{found} processes would train, but --distributed-world-size is {planned},"):
        numbered(monkeypatch, gpus, planned, **variables)


def test_a_training_that_was_not_planned_is_not_checked(program, monkeypatch):
    program("scontrol", "printf 'a\\nb\\n'")
    assert numbered(monkeypatch, 8, None, **TASK | {"SLURM_NTASKS": 2}) == 16


def test_train_py_refuses_in_one_line(tmp_path, program):
    command = [
        sys.executable,
        RECIPES / "train.py",
        "data",
        "--arch",
        "transformer",
        "--cpu",
        "--save-dir",
        tmp_path / "m",
    ]
    command += ["--distributed-world-size", "2"]
    env = environment(TORCHRUN | {"WORLD_SIZE": 3})
    result = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and not (tmp_path / "m").exists()
    assert result.stderr.splitlines()[-1].startswith("train.py: 3 processes would train, but"), result.stderr


# --- SLURM -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slurm(program, tmp_path):
    """slurm(RECIPE, **variables): start slurm.sh in a job with a recipe that is one line of bash."""
    program("scontrol", f'echo "$*" >>{tmp_path}/scontrol.log')

    def slurm(recipe, **variables):
        program("recipe", recipe)
        env = environment({"SLURM_JOB_ID": 7, "SLURM_NNODES": 2} | variables)
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
        ({"SLURM_NTASKS_PER_NODE": 1, "SLURM_GPUS_ON_NODE": 4}, 8),
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 1}, 2),
        ({"SLURM_NTASKS": 8, "SLURM_GPUS_ON_NODE": 8}, 8),  # half of the GPUs
        ({"SLURM_NTASKS": 4, "SLURM_GPUS_ON_NODE": 0}, 4),  # CPUs
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_ON_NODE": 8, "WORKERS": 5}, 5),
    ],
)
def test_slurm_counts_the_processes_as_fairseq_does(variables, workers, slurm):
    result = ended(slurm('echo "$WORKERS $LAUNCHER"', **variables))
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{workers} srun python3\n", "")


def test_slurm_counts_the_gpus_that_nvidia_smi_shows(slurm, eight_gpus):
    assert ended(slurm('echo "$WORKERS"', SLURM_NTASKS=2)).stdout == "16\n"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLURM_NTASKS": 3, "SLURM_GPUS_ON_NODE": 8}, "3 tasks on 2 machines"),
        ({"SLURM_NTASKS": 16, "SLURM_GPUS_ON_NODE": 4}, "8 tasks share 4 GPUs"),
        ({"SLURM_NTASKS": 2, "SLURM_GPUS_PER_TASK": 1}, "--gpus-per-node"),
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
        pytest.param("exec sleep 60", id="it ended by the signal"),
        pytest.param("trap 'exit 75' USR1; sleep 60 >/dev/null 2>&1 & wait", id="it stopped"),
        pytest.param("trap 'exit 2' USR1; sleep 60 >/dev/null 2>&1 & wait", id="the stage that was interrupted failed"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_job_that_was_asked_to_stop_is_requeued(recipe, number, slurm, tmp_path):
    job = begun(slurm, recipe, tmp_path)
    job.send_signal(number)
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
