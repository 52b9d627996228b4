"""The recipes of full size, rehearsed on miniature mirrors from archives to tables; killed, stopped and spread out."""

import fcntl
import json
import random
import re
import shutil
import signal
import subprocess
import tarfile
import time

import pytest
from support import mirror as mirrors
from support.recipes import (
    RECIPES,
    environment,
    fingerprints,
    make_corpus,
    random_moments,
    refused,
    run,
    run_killed,
)

pytest_plugins = ["support.machines"]
TINY = {"CPU": 1, "DISK_GB": 1, "BPE": 200, "EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "WARMUP": 2, "LR": 0.01}
SHORT = TINY | {"TOKENS_PER_UPDATE": 600, "MAX_TOKENS": 400, "UPDATES": 8, "SAVE_EVERY": 4, "AVERAGE": 2}
SHORT |= {"PRUNE_UPDATES": 4, "PRUNE_WARMUP": 1, "PRUNE_LR": 0.01}


def long(test):
    return pytest.mark.rehearsal(pytest.mark.release(test))


def long_case(value):
    return pytest.param(value, marks=[pytest.mark.rehearsal, pytest.mark.release])


def of_wmt(test):
    return pytest.mark.xdist_group("wmt")(long(test))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of artificial English and Russian, {train,valid,test}.{en,ru}."""
    return make_corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def pairs(text):
    return {split: mirrors.read_pairs(text, split) for split in ("train", "valid", "test")}


@pytest.fixture
def wmt(pairs, made_once):
    """The WMT recipe, run to its end: (its folder, what it printed, the size of each corpus, its settings)."""

    def make(folder):
        truth = mirrors.make_wmt_mirror(folder / mirror, pairs["train"], pairs["valid"], pairs["test"])
        result = run("wmt_en_ru.sh", folder / "out", **settings, DATA_DIR=folder / mirror)
        assert result.returncode == 0, result.stdout + result.stderr
        (folder / "printed.txt").write_text(result.stdout)
        (folder / "sizes.json").write_text(json.dumps({corpus: len(its_pairs) for corpus, its_pairs in truth.items()}))

    mirror, settings = "mirror with blanks", SHORT | {"RUNS": "enc-self:0.05 all:0.05", "EXPECTED_PAIRS": 290}
    folder = made_once("wmt", make)
    printed, sizes = (folder / "printed.txt").read_text(), json.loads((folder / "sizes.json").read_text())
    return folder / "out", printed, sizes, settings | {"DATA_DIR": folder / mirror}


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


# --- from archives to tables ----------------------------------------------------------------------------------------


@of_wmt
def test_wmt_goes_from_archives_to_the_papers_table(wmt, pairs):
    out, printed, sizes, _ = wmt
    for corpus, size in sizes.items():
        assert f"{corpus}: {size} pairs" in printed
    for i, language in enumerate(("en", "ru")):
        assert lines(out / "raw" / f"train.{language}") == [pair[i] for pair in pairs["train"]]
        assert lines(out / "raw" / f"test.{language}") == [pair[i] for pair in pairs["test"]]
    assert len(lines(out / "downloads" / "SHA256SUMS")) == 6
    rows = [line.split() for line in lines(out / "results.txt")]
    table = {row[0]: row for row in rows if row and "/" in " ".join(row[1:2])}
    names = ["baseline", "baseline+", "all_lambda0.05", "all_lambda0.05_scratch", "baseline+frozen"]
    names += ["enc-self_lambda0.05"]
    assert set(names) <= table.keys()
    assert table["baseline"][4:] == ["48/48/48", "29.6", "-"]  # the last table wins: the paper's
    assert table["enc-self_lambda0.05"][4:6] == ["10/48/48", "-0.15"] and table["all_lambda0.05"][5] == "29.62"
    values = [line.split("\t") for line in lines(out / "results.tsv")]
    assert [row[0] for row in values[1:]] == names
    controls = [row[values[0].index("control")] for row in values[1:]]
    assert controls == ["baseline+"] * 4 + ["baseline+frozen"] * 2
    assert "case:lc" in values[1][values[0].index("BLEU signature")]
    by_name = {row[0]: row for row in values}
    assert by_name["all_lambda0.05_scratch"][-1] == "29.47" and by_name["all_lambda0.05"][-1] == "29.62"


@long
def test_opensubtitles_killed_and_rerun_gives_the_same_results(pairs, tmp_path):
    """Killed again and again with everything it has started, then run to its end: the same files and table."""
    place = tmp_path / "mirror"
    mirrors.make_subtitles_mirror(place, [*pairs["train"], *pairs["valid"]])
    settings = SHORT | {"DATA_DIR": place, "HELD_OUT": 9, "RUNS": "all:0.05", "SCRATCH": ""}
    begun = time.time()
    result = run("opensubtitles_en_ru.sh", tmp_path / "whole", **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "of at least 0.9" in result.stdout and "9 valid, 9 test" in result.stdout
    assert "32.24" in result.stdout  # of the paper
    moments = random_moments(random.Random(), time.time() - begun, kills=2)
    run_killed("opensubtitles_en_ru.sh", tmp_path / "killed", moments=moments, **settings)
    whole, killed = fingerprints(tmp_path / "whole"), fingerprints(tmp_path / "killed")
    assert len(whole) > 40 and whole == killed, moments


@long
def test_iwslt14_measures_every_epoch(pairs, tmp_path):
    place = tmp_path / "mirror"
    german = [(target, source) for source, target in pairs["train"]]
    mirrors.make_iwslt_mirror(place, german, test=[(target, source) for source, target in pairs["test"]])
    settings = TINY | {"DATA_DIR": place, "MAX_TOKENS": 2000, "MEASURED": "1 3", "STEPS": "0,50", "BEAM": 1}
    result = run("iwslt14_de_en.sh", tmp_path / "out", **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[-2:]]
    assert [(row[0], row[-1]) for row in rows] == [("1", "3.0"), ("3", "18.1")]
    both = [lines(tmp_path / "out" / "raw" / f"train.{language}") for language in ("de", "en")]
    kept = [lines(tmp_path / "out" / "raw" / f"valid.{language}") for language in ("de", "en")]
    assert len(both[0]) == len(both[1]) and len(kept[0]) == len(kept[1]) == (len(both[0]) + len(kept[0])) // 23
    assert set(zip(*kept, strict=True)) | set(zip(*both, strict=True)) >= set(german)


@of_wmt
def test_a_finished_recipe_runs_nothing_again(wmt):
    out, printed, _, settings = wmt
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    dry = run("wmt_en_ru.sh", "--dry-run", out, **settings).stdout.splitlines()
    programs = [line.split("/recipes/lib ")[1].split()[0] for line in dry if line[0] != "#"]
    assert programs == ["corpora.get", "text.batches", "results.table"]
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    again = run("wmt_en_ru.sh", out, **settings)
    assert again.stdout.splitlines()[-6:] == printed.splitlines()[-6:] and "training" not in again.stdout
    changed = {path.name for path, then in before.items() if path.exists() and path.stat().st_mtime_ns != then}
    assert changed <= {"results.txt", "results.tsv", "results.json", ".lock"}
    refused(run("wmt_en_ru.sh", out, **settings | {"BPE": 300}), "was made with other settings", "BPE=200")
    for expected in (270, 340):
        other = run("wmt_en_ru.sh", out, **settings | {"EXPECTED_PAIRS": expected})
        refused(other, "train.en has 300 pairs", f"EXPECTED_PAIRS={expected}", "EXPECTED_PAIRS=0")
        assert f"300 pairs before cleaning; in the paper {expected}" in other.stdout


@of_wmt
def test_a_downloaded_model_is_pruned(wmt, text, tmp_path):
    """The archive of a trained model of fairseq, as its users download it, through every stage."""
    out = wmt[0]
    place = tmp_path / "mirror" / "dl.fbaipublicfiles.com" / "fairseq" / "models"
    inside = tmp_path / "wmt14.en-fr.joined-dict.transformer"
    inside.mkdir()
    place.mkdir(parents=True)
    shutil.copy(out / "baseline" / "averaged.pt", inside / "model.pt")
    shutil.copy(out / "text" / "codes.en", inside / "bpecodes")
    for language in ("en", "ru"):
        shutil.copy(out / "data-bin" / f"dict.{language}.txt", inside)
    with tarfile.open(place / "wmt14.en-fr.joined-dict.transformer.tar.bz2", "w:bz2") as archive:
        archive.add(inside, inside.name)
    settings = {"DATA_DIR": tmp_path / "mirror", "TGT": "ru", "STEPS": "0,50", "KEEP": 0.5, "BEAM": 1}
    result = run("prune_pretrained.sh", "transformer.wmt14.en-fr", text, tmp_path / "out", **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[-2:]]
    assert [row[0] for row in rows] == ["gradient", "ablation"] and rows[0][1] == rows[1][1]
    assert (tmp_path / "out" / "pruned.pt").exists()


# --- where it runs ---------------------------------------------------------------------------------------------


def wait_for(condition, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, "it did not come to that"
        time.sleep(0.1)


@long
def test_a_preempted_slurm_job_is_requeued_and_resumes(text, tmp_path, program):
    """SLURM's signal: a checkpoint is saved and the job requeued; the requeued job ends as an undisturbed one does."""
    tasks = 'for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=0 "$@" & tasks+=($!); done'
    program("srun", f'{tasks}\nfor task in "${{tasks[@]}}"; do wait "$task" || exit; done')
    program("scontrol", f'if [[ $1 == show ]]; then echo 127.0.0.1; else echo "$@" >>{tmp_path}/scontrol.log; fi')
    settings = SHORT | {"PRETOKENIZED": 1, "RUNS": "", "UPDATES": 300, "SAVE_EVERY": 150, "PORT": 29541}
    job_of_slurm = {"SLURM_JOB_ID": 7, "SLURM_NTASKS": 2, "SLURM_NNODES": 1, "SLURM_JOB_NODELIST": "here"}
    env = environment(settings | job_of_slurm)

    def command(out):
        return [*map(str, ["bash", RECIPES / "slurm.sh", RECIPES / "translation.sh", text, tmp_path / out, "en", "ru"])]

    job = subprocess.Popen(command("out"), env=env, stdout=subprocess.PIPE, text=True)
    log = tmp_path / "out" / "baseline" / "train.log"
    wait_for(lambda: log.exists() and "train_inner" in log.read_text())
    job.send_signal(signal.SIGUSR1)
    printed = job.communicate(timeout=120)[0]
    assert job.returncode == 0 and "has saved a checkpoint" in printed, printed
    assert (tmp_path / "scontrol.log").read_text() == "requeue 7\n"
    assert not (tmp_path / "out" / "baseline" / "finished").exists()
    for out in ("out", "whole"):  # requeued, and undisturbed
        done = subprocess.run(command(out), env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "training on 2 devices" in log.read_text()
    assert fingerprints(tmp_path / "out") == fingerprints(tmp_path / "whole")
    assert len((tmp_path / "scontrol.log").read_text().splitlines()) == 1


# --- what is refused before it begins --------------------------------------------------------------------------------


def test_missing_requirements_are_reported_before_anything_is_written(tmp_path):
    out = tmp_path / "out"
    if shutil.which("nvidia-smi") is None:
        refused(run("wmt_en_ru.sh", out, CPU=0), "no GPU", "CPU=1")
    refused(run("wmt_en_ru.sh", out, CPU=1, DISK_GB=10**9), "GB are free", "DISK_GB")
    refused(run("wmt_en_ru.sh", out, **TINY, DATA_DIR=tmp_path / "nowhere"), "DATA_DIR", "nowhere")
    assert not out.exists()


@pytest.mark.parametrize("recipe", ["wmt_en_ru.sh", *map(long_case, ("opensubtitles_en_ru.sh", "iwslt14_de_en.sh"))])
def test_a_dry_run_prints_every_command_and_writes_nothing(recipe, tmp_path):
    """It warns of a disk that is too small for the run."""
    result = run(recipe, "--dry-run", tmp_path / "out", RUNS="enc-self:0.01 all:0.02", DISK_GB=10**9)
    assert result.returncode == 0 and list(tmp_path.iterdir()) == []
    (warning,) = result.stderr.splitlines()
    assert warning.startswith(f"{recipe}: warning: ") and "this recipe needs about 1000000000 GB" in warning
    assert "# no run at this size has been made" in result.stdout
    for program in (
        "corpora.get fetch",
        "sacremoses",
        "subword-nmt learn-bpe",
        "fairseq-preprocess",
        "headgates evaluate",
    ):
        assert program in result.stdout
    assert "--eval-bleu" not in result.stdout  # at full size no translations during training
    trainings = [line for line in result.stdout.splitlines() if "train.py" in line]
    assert all("--encoder-normalize-before" in line and "--share" not in line for line in trainings)
    assert "--joined-dictionary" not in result.stdout
    if recipe == "iwslt14_de_en.sh":
        assert len(trainings) == 1
        return
    assert all(re.findall(r"--clip-norm (\S+)", line)[-1] == "0" for line in trainings)
    assert all("--max-update" in line and "--adam-betas \\(0.9\\,0.998\\)" in line for line in trainings)
    plus, frozen, encoder = trainings[1:4]
    assert len(trainings) == 7 and "--remove-heads" in trainings[5]
    assert "--gate-heads" not in plus + frozen and "--finetune-from-model" in plus
    assert ["--freeze-params" in line for line in (plus, frozen, encoder)] == [False, True, True]


@pytest.mark.rehearsal
def test_two_runs_in_one_folder_are_refused(text, tmp_path):
    """A program `flock` that does not wait makes the test short."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flock").write_text(f'#!/usr/bin/env bash\nexec {shutil.which("flock")} "${{@/#15/0}}"\n')
    (tmp_path / "bin" / "flock").chmod(0o755)
    command = ("translation.sh", text, tmp_path, "en", "ru")
    impatient = {"PATH": f"{tmp_path}/bin:{environment({})['PATH']}"}
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(run(*command, **impatient), "another run uses")
        refused(run(*command, SHARE="1/2", **impatient), "another run uses")
        fcntl.flock(lock, fcntl.LOCK_SH)  # as a share does
        refused(run(*command, **impatient), "another run uses")
