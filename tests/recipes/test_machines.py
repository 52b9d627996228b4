"""Where a recipe runs: machines with several GPUs, pretended by programs on the PATH and by variables."""

import gzip
import os
import subprocess
import sys

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from support.recipes import RECIPES, environment, refused, run, shell

import train

pytest_plugins = ["support.machines"]
pytestmark = pytest.mark.usefixtures("no_other_machine")

TINY = {"BPE": 200, "EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "DISK_GB": 0}


def found_devices(**settings):
    """What find_devices sets, by name."""
    names = "gpus launcher workers device distributed CUDA_VISIBLE_DEVICES"
    show = f'for name in {names}; do declare -n value=$name; echo "$name=${{value[*]}}"; done'
    result = shell(f'source "$recipes/lib/devices.sh"; find_devices; {show}', **settings)
    return dict(line.split("=", 1) for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("settings", "gpus", "workers", "options", "visible"),
    [
        ({}, 8, 8, "", ""),
        ({"GPUS": 3}, 3, 3, "", "0,1,2"),
        ({"CUDA_VISIBLE_DEVICES": "5,2,7"}, 3, 3, "", "5,2,7"),
        ({"GPUS": 2, "CUDA_VISIBLE_DEVICES": "5,2,7"}, 2, 2, "", "5,2"),
        ({"GPUS": 1, "CUDA_VISIBLE_DEVICES": "GPU-a1,GPU-b2"}, 1, 1, "", "GPU-a1"),
        ({"CUDA_VISIBLE_DEVICES": "3,-1,4"}, 1, 1, "", "3,-1,4"),  # CUDA ignores what follows an invalid number
        ({"GPUS": 0}, 0, 1, " --cpu", ""),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, 1, " --cpu", "-1"),
        ({"GPUS": 1, "LAUNCHER": "mpirun python3", "WORKERS": 4}, 1, 4, "", ""),  # it sees all GPUs
        ({"LAUNCHER": "srun python3", "WORKERS": 16, "SLURM_JOB_ID": 7}, 8, 16, " --distributed-port 29500", ""),
        ({"HOSTS": "a b", "GPUS": 4}, 4, 8, "", "0,1,2,3"),
    ],
)
def test_a_recipe_uses_the_gpus_of_its_settings(settings, gpus, workers, options, visible, program, eight_gpus):
    for name in ("mpirun", "srun"):
        program(name, "")
    found = found_devices(**settings)
    torchrun = f"torchrun --standalone --nproc_per_node {workers}"
    launcher = f"{RECIPES}/lib/on_hosts.sh a b --" if "HOSTS" in settings else "python3" if workers == 1 else torchrun
    assert found == {
        "gpus": str(gpus),
        "launcher": settings.get("LAUNCHER", launcher),
        "workers": str(workers),
        "device": "--distributed-world-size 1" + " --cpu" * (gpus == 0),
        "distributed": f"--distributed-world-size {workers}{options}",
        "CUDA_VISIBLE_DEVICES": visible,
    }


def test_more_gpus_than_the_machine_shows_are_refused(eight_gpus):
    result = shell('source "$recipes/lib/devices.sh"; find_devices', check=False, GPUS=9)
    refused(result, "GPUS=9 must be at most 8")


def test_mig_instances_count_as_one_gpu(program):
    instances = "\n".join(f"  MIG 3g.40gb Device {n}: (UUID: MIG-{n + 1})" for n in range(2))
    program("nvidia-smi", f"echo 'GPU 0: Some\n{instances}'")
    assert found_devices()["gpus"] == found_devices(CUDA_VISIBLE_DEVICES="MIG-1,MIG-2")["gpus"] == "1"


@pytest.mark.parametrize("visible", [None, "2,3"])
def test_other_hosts_show_the_same_gpus(visible, program, tmp_path):
    program("torchrun", f'echo "$2 $4 ${{CUDA_VISIBLE_DEVICES-unset}}" >>{tmp_path}/started')
    program("ssh", 'shift; exec env -u CUDA_VISIBLE_DEVICES bash -c "$*"')
    env = environment({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    env["PATH"] = os.environ["PATH"]  # the programs of this test first
    command = [str(RECIPES / "lib" / "on_hosts.sh"), "a", "b", "--", "train.py"]
    subprocess.run(command, env=env, check=True, timeout=60)
    started = sorted((tmp_path / "started").read_text().splitlines())
    assert started == [f"{hosts} {rank} {visible or 'unset'}" for hosts, rank in (("2", 0), ("2", 1))]


def test_with_raw_dir_a_recipe_downloads_nothing(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for name in ("train.en", "train.ru", "valid.en", "test.en"):
        (own / name).write_text("a word\n")
    (own / "valid.ru.gz").write_bytes(gzip.compress(b"a word\n"))
    settings = TINY | {"RAW_DIR": own, "PRETOKENIZED": 1, "RUNS": ""}
    refused(run("wmt_en_ru.sh", "--dry-run", tmp_path / "out", **settings), f"{own}/test.ru[.gz] is missing")
    (own / "test.ru").write_text("a word\n")
    result = run("wmt_en_ru.sh", "--dry-run", tmp_path / "out", **settings)
    assert result.returncode == 0, result.stderr
    assert "corpora.get" not in result.stdout and "\\ tokenize" not in result.stdout
    assert str(own / "train.en") in result.stdout and "--finetune-from-model" not in result.stdout


# Settings of a machine, its processes, and the GPUs that are left when the recipe hides the others.
SLURM = {"SLURM_JOB_ID": 7, "SLURM_NNODES": 2, "SLURM_GPUS_ON_NODE": 8}
MACHINES = {
    "1 GPU": ({"CUDA_VISIBLE_DEVICES": 0}, 1, None),
    "1 of 8": ({"GPUS": 1}, 1, "0"),
    "8": ({"GPUS": 8}, 8, None),
    "2 x 8 by ssh": ({"HOSTS": "a b", "GPUS": 8}, 16, None),
    "SLURM, 2 x 8 tasks": (SLURM | {"SLURM_NTASKS": 16}, 16, None),
    "SLURM, 2 x 1 task": (SLURM | {"SLURM_NTASKS": 2}, 16, None),
}
# The arguments and settings of a recipe, what an update has (tokens or sentences, how they are counted), and machines:
# all for the recipe that the others are made like, and such as it takes to try each recipe and each way to count. In
# every change one recipe for each way to count and for each way to start processes.
UPDATES = {
    "translation.sh": (["RAW", "OUT", "en", "ru"], {"TOKENS_PER_UPDATE": 16000}, (16000, "counted"), [*MACHINES]),
    "wmt_en_ru.sh": (["OUT"], {}, (16000, "counted"), ["SLURM, 2 x 8 tasks"]),
    "iwslt14_de_en.sh": (["OUT"], {"TOKENS_PER_UPDATE": 4000}, (4000, "counted"), ["2 x 8 by ssh"]),
    "language_model.sh": (["RAW", "OUT"], {"TOKENS_PER_UPDATE": 16384}, (16384, "--max-tokens"), ["8"]),
    "wikitext103.sh": (["OUT"], {}, (192 * 192, "--max-tokens"), ["SLURM, 2 x 1 task"]),
    "classification.sh": (
        ["RAW", "OUT"],
        {"PRETRAINED": "roberta.pt"},
        (32, "--batch-size"),
        ["2 x 8 by ssh"],
    ),
    "mnli.sh": (["OUT"], {}, (32, "--batch-size"), ["SLURM, 2 x 8 tasks"]),
}


def value_after(option, line):
    return int(line.split(f" {option} ")[1].split()[0])


IN_EVERY_CHANGE = [("translation.sh", "SLURM, 2 x 8 tasks"), ("language_model.sh", "8")]
IN_EVERY_CHANGE += [("classification.sh", "2 x 8 by ssh")]
BEFORE_A_RELEASE = [pytest.mark.rehearsal, pytest.mark.release]


@pytest.mark.parametrize(
    ("recipe", "machine"),
    [
        pytest.param(recipe, machine, marks=[] if (recipe, machine) in IN_EVERY_CHANGE else BEFORE_A_RELEASE)
        for recipe, (*_, machines) in UPDATES.items()
        for machine in machines
    ],
)
def test_a_dry_run_shows_processes_batches_and_gpus_of_a_machine(recipe, machine, tmp_path, eight_gpus):
    arguments, settings, (wanted, counting), _ = UPDATES[recipe]
    variables, workers, gpus = MACHINES[machine]
    folders = {"RAW": tmp_path / "raw", "OUT": tmp_path / "out"}
    command = [RECIPES / recipe, "--dry-run", *(folders.get(argument, argument) for argument in arguments)]
    if "SLURM" in machine:
        command.insert(0, RECIPES / "slurm.sh")
    env = environment({"DISK_GB": 0} | settings | variables)
    result = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    printed = result.stdout.splitlines()
    trainings = [line for line in printed if "/train.py " in line]
    evaluations = [line for line in printed if line.startswith("headgates ") and " --gen-subset " in line]
    assert len(trainings) >= 1 and len(evaluations) >= 1
    # fairseq's default is the number of visible GPUs: each process would evaluate a part of the data.
    assert all(value_after("--distributed-world-size", line) == 1 for line in evaluations)
    for line in trainings:
        assert value_after("--distributed-world-size", line) == workers, line
        assert line.startswith("python3") == (workers == 1), line
        if counting != "counted":
            batches = workers * value_after("--update-freq", line)
            per_batch, rest = divmod(wanted, batches)
            step = value_after("--tokens-per-sample", line) if counting == "--max-tokens" else 1
            assert 0 <= value_after(counting, line) - per_batch - (rest > 0) < step, line
    if counting == "counted":
        [plan] = [line for line in printed if " text.batches " in line]
        assert (value_after("--workers", plan), value_after("--tokens", plan)) == (workers, wanted)
    exported = [line for line in printed if "CUDA_VISIBLE_DEVICES" in line]
    assert exported == ([f"export CUDA_VISIBLE_DEVICES={gpus}"] if gpus else [])


@pytest.mark.rehearsal
@pytest.mark.release
def test_iwslt_trains_on_one_gpu_unless_the_size_of_an_update_is_given(tmp_path, eight_gpus):
    command = ["iwslt14_de_en.sh", "--dry-run", tmp_path / "out"]
    one = run(*command, **TINY)
    assert one.returncode == 0 and "torchrun" not in one.stdout and "--distributed-world-size 1 " in one.stdout
    refused(run(*command, HOSTS="a b", **TINY), "2 processes", "2 times 4000 tokens", "TOKENS_PER_UPDATE")


def numbered(monkeypatch, gpus, planned, **variables):
    """The number of processes for a machine with so many GPUs, after check_world_size."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.distributed_training.distributed_port = 29500
    cfg.distributed_training.distributed_world_size = planned or gpus  # fairseq's default
    train.find_rank(cfg)
    train.check_world_size(cfg, planned)
    return cfg.distributed_training.distributed_world_size


TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": 29500, "RANK": 0, "LOCAL_RANK": 0}
TASK = {"SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": 2, "SLURM_NODEID": 0, "SLURM_PROCID": 0}
TASK["SLURM_LOCALID"] = 0


@pytest.mark.parametrize(
    ("gpus", "planned", "variables", "found"),
    [
        (8, 1, {}, 1),
        (4, 4, TORCHRUN | {"WORLD_SIZE": 4}, 4),
        (8, 16, TASK | {"SLURM_NTASKS": 2}, 16),  # a task for each machine: fairseq starts eight processes in it
        (8, None, TASK | {"SLURM_NTASKS": 2}, 16),
        (8, 2, TASK | {"SLURM_NTASKS": 2}, 16),
        (4, 8, TORCHRUN | {"WORLD_SIZE": 4}, 4),
    ],
)
def test_other_numbers_of_processes_than_planned_are_refused(gpus, planned, variables, found, program, monkeypatch):
    program("scontrol", "printf 'a\\nb\\n'")
    if planned in (found, None):
        assert numbered(monkeypatch, gpus, planned, **variables) == found
        return
    with pytest.raises(ValueError, match=f"^{found} processes would train, but --distributed-world-size is {planned},"):
        numbered(monkeypatch, gpus, planned, **variables)


@pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning")  # of hydra
def test_train_py_refuses_in_one_line(tmp_path, program, monkeypatch, capsys):
    for name, value in (TORCHRUN | {"WORLD_SIZE": 3}).items():
        monkeypatch.setenv(name, str(value))
    arguments = ["data", "--arch", "transformer", "--cpu", "--save-dir", str(tmp_path / "m")]
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments, "--distributed-world-size", "2"])
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 2 and not (tmp_path / "m").exists()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("train.py: 3 processes would train, but")
