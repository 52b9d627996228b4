"""recipes/train.py: a run that was stopped, in any way, ends as fairseq-train does when nobody stops it.

Most runs are forked off a process that has imported fairseq, as those of support/commands.py are; torchrun and its
workers are started as a user starts them.
"""

import contextlib
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.commands import GATED, PRELOADED, train_arguments, worker_arguments
from support.models import assert_same
from support.recipes import RECIPES

from training import interrupted, stopping

SCRIPT = RECIPES / "train.py"

# Small batches, for many updates in an epoch.
SMALL = [*GATED, "--max-tokens", 100]
# A score that never gets better: training ends by --patience, after the seventh epoch.
PATIENCE = [*SMALL, "--patience", 6, "--best-checkpoint-metric", "num_updates"]
GLOO = ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
TWO = [*SMALL, *GLOO, "--update-freq", 2]


class Run:
    """A run of the script; `started` is its process."""

    def __init__(self, log, start):
        log.touch()
        self._log, self._before = log, log.stat().st_size
        self.started = start(log)

    @property
    def text(self):
        """What this run, and not those before it, has written to the log."""
        return self._log.read_text()[self._before :]

    def reach(self, more):
        """Waits until this run has made a number of updates."""
        deadline = time.monotonic() + 120
        while self.text.count("| train_inner |") < more:
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)
        return self

    def signal(self, number, whole_group=False):
        (os.killpg if whole_group else os.kill)(self.started.pid, number)
        return self

    def finish(self, code=0):
        """Waits for the end; gives what was written."""
        if isinstance(self.started, subprocess.Popen):
            ended = self.started.wait(120)
        else:
            self.started.join(120)
            ended = self.started.exitcode
        assert ended == code, self.text
        return self.text


@pytest.fixture
def launch(tmp_path):
    """launch(arguments, by=forked, log="log", ...) starts a run; what still runs after the test is killed."""
    runs = []

    def launch(arguments, by=forked, log="log", **options):
        runs.append(Run(tmp_path / log, by([str(SCRIPT), *map(str, arguments)], **options)))
        return runs[-1]

    yield launch
    for run in runs:
        with contextlib.suppress(ProcessLookupError):
            run.signal(signal.SIGKILL, whole_group=True)


def forked(argv, devices=None):
    """Starts the script in a process, and a process group, of its own; fairseq starts one process for each device."""

    def start(log):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=_run_script, args=(argv, str(log), devices))
        process.start()
        return process

    return start


def _run_script(argv, log, devices):
    os.setsid()
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # for the data loader, as in a process started by the shell
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if devices:
        torch.cuda.device_count = lambda: devices
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


def torchrun(argv):
    """Starts the script with two workers."""

    def start(log):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *argv]
        with open(log, "a") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    return start


def worker(run, rank):
    """The process of a worker of torchrun."""
    pid = run.started.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = [child for child in children if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text()]
    return int(found)


def stopped_at(text):
    """The update at which a run said that it stopped; there it saved a checkpoint, and it made no validation first."""
    (update,) = re.findall(r"train\.py \| stopped at update (\d+), saved: the same command resumes", text)
    end = text.rpartition("| train_inner |")[2]
    assert re.search(rf"Saved checkpoint \S+/checkpoint_last\.pt \(epoch \d+ @ {update} updates", end)
    assert "begin validation" not in end
    return int(update)


def assert_same_training(folder, reference):
    """Both came to the end of training, with the same weights in all checkpoints."""
    assert (folder / "finished").exists()
    assert {path.name for path in folder.glob("*.pt*")} == {path.name for path in reference.glob("*.pt*")}
    for path in folder.glob("*.pt"):
        ours, theirs = (torch.load(p, weights_only=False)["model"] for p in (path, reference / path.name))
        assert_same(ours, theirs, path.name)


@pytest.mark.rehearsal
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(tmp_path, toy, train, launch):
    """Stopped by a signal, by one to the data loader too, by a file; then its checkpoint is truncated."""
    reference, folder = tmp_path / "reference", tmp_path / "run"
    assert "early stop since valid performance" in train(reference, *PATIENCE, updates=500).text
    arguments = train_arguments(toy, folder, *PATIENCE, "--num-workers", 1, updates=500)

    first = stopped_at(launch(arguments).reach(17).signal(signal.SIGUSR1).finish())
    second = stopped_at(launch(arguments).reach(9).signal(signal.SIGTERM, whole_group=True).finish())
    stop = folder / "stop"
    stop.touch()  # of before: the next run has nothing to do with it
    run = launch(arguments).reach(8)
    assert not stop.exists()
    stop.touch()
    third = stopped_at(run.finish())
    assert 17 <= first < first + 9 <= second < second + 8 <= third
    assert not stop.exists() and not (folder / "finished").exists()

    last = folder / "checkpoint_last.pt"
    os.truncate(last, last.stat().st_size - 1000)
    (folder / "checkpoint7.pt.tmp").write_text("truncated, too")
    epochs = len(list(folder.glob("checkpoint[0-9].pt")))
    text = launch(arguments).finish()
    assert f"checkpoint_last.pt is truncated and replaced by checkpoint{epochs}.pt" in text
    assert f"checkpoint_last.pt (epoch {epochs + 1} @" in text
    assert_same_training(folder, reference)

    before = last.stat().st_mtime_ns
    text = launch(arguments).finish()
    assert "nothing to do: training has finished" in text and "train_inner" not in text
    assert last.stat().st_mtime_ns == before


def test_ctrl_c_stops_it_with_a_checkpoint(tmp_path, toy, launch):
    """A terminal sends SIGINT to the whole group, the data loader's process included."""
    arguments = train_arguments(toy, tmp_path / "run", *SMALL, "--num-workers", 1, updates=500)
    run = launch(arguments).reach(3).signal(signal.SIGINT, whole_group=True)
    text = run.finish()
    assert stopped_at(text) >= 3 and "Traceback" not in text
    assert (tmp_path / "run" / "checkpoint_last.pt").exists()


@pytest.mark.rehearsal
@pytest.mark.parametrize("by", [forked, pytest.param(torchrun, marks=pytest.mark.release)])
def test_two_processes_stop_at_the_same_update(by, tmp_path, toy, start, launch):
    """Spawned by fairseq and stopped by their parent, or by torchrun and stopped by one of two; then by hand."""
    reference, folder = tmp_path / "reference", tmp_path / "run"
    arguments = train_arguments(toy, reference, *TWO, updates=90)
    for command in [start("fairseq-train", *arguments, *own) for own in worker_arguments(2)]:
        command.finish().expect(0)

    arguments = train_arguments(toy, folder, *TWO, updates=90)
    if by is torchrun:
        run = launch(arguments, by=by).reach(5)
        os.kill(worker(run, rank=1), signal.SIGUSR1)
    else:
        run = launch([*arguments, "--distributed-world-size", 2], devices=2).reach(5).signal(signal.SIGUSR1)
    stopped = stopped_at(run.finish())
    assert 5 <= stopped < 90 and not (folder / "finished").exists()
    runs = [launch([*arguments, *own], log=f"log{own[-1]}") for own in worker_arguments(2)]
    assert f" @ {stopped} updates" in "".join([run.finish() for run in runs])
    assert_same_training(folder, reference)


@pytest.mark.parametrize(
    ("updates", "end_of_epoch", "stops"),
    [(4, False, [True, True]), (4, True, [False, True]), (5, False, [False, True]), (20, False, [False, False])],
)
def test_a_stop_waits_for_at_most_one_validation(updates, end_of_epoch, stops):
    """5 is a multiple of --save-interval-updates; 20 is --max-update, where there is nothing left to stop."""
    cfg = SimpleNamespace(
        checkpoint=SimpleNamespace(save_interval_updates=5),
        dataset=SimpleNamespace(validate_interval_updates=0),
        optimization=SimpleNamespace(max_update=20),
    )
    from training.trainer import Trainer  # fairseq's modules take seconds to import

    trainer = object.__new__(Trainer)
    vars(trainer).update(cfg=cfg, _num_updates=updates, _postponed=False, _stop=stopping.Stop())
    trainer._batches = SimpleNamespace(end_of_epoch=lambda: end_of_epoch)
    for expected in stops:
        trainer._stop_soon()
        assert trainer._stop.agreed == expected


@pytest.mark.parametrize("lost", [1, 1000])
def test_a_truncated_checkpoint_is_detected(lost, tmp_path):
    checkpoint = tmp_path / "checkpoint_last.pt"
    torch.save({"model": torch.zeros(5000)}, checkpoint)
    assert interrupted.is_whole(checkpoint)
    os.truncate(checkpoint, checkpoint.stat().st_size - lost)
    assert not interrupted.is_whole(checkpoint)


def test_truncated_checkpoints_are_not_resumed_from(tmp_path):
    for name in ("checkpoint_last.pt", "checkpoint_best.pt", "checkpoint3.pt"):
        (tmp_path / name).write_bytes(b"PK\3\4")
    torch.save({}, tmp_path / "checkpoint_mine.pt")  # not one of fairseq's
    interrupted.replace_by_newest(tmp_path / "checkpoint_last.pt")
    assert not (tmp_path / "checkpoint_last.pt").exists()
