"""Files and folders in the making: dead ones go, others stay, links and what is not a file are left as they are."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from fairseq_headgates.files import check_writable, part_of, remove_dead_parts, replace_folder, replacing, write_whole

FORK = multiprocessing.get_context("fork")  # faster than to import all anew


def write_for_ever(target, folder, told):
    with part_of(target, folder) as part:
        (part / "model.bin" if folder else part).write_text("half")
        told.send(part.name)
        time.sleep(600)


def replace_until_killed(part, target):
    rename = Path.rename

    def rename_once(source, to):
        if source == part:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(source, to)

    Path.rename = rename_once
    replace_folder(part, target)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def writer():
    """writer(target, folder=False) starts a process that writes for ever; it gives it and the name of its part."""
    started = []

    def writer(target, folder=False):
        here, there = FORK.Pipe()
        started.append(FORK.Process(target=write_for_ever, args=(target, folder, there)))
        started[-1].start()
        return started[-1], here.recv()

    yield writer
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize("folder", [False, True])
def test_only_partial_files_of_dead_processes_are_removed(folder, writer, tmp_path):
    (killed, dead), (_, living) = (writer(tmp_path / "x.pt", folder) for _ in range(2))
    killed.kill()
    killed.join()
    assert names(tmp_path) == sorted([dead, living])
    with part_of(tmp_path / "x.pt", folder) as part:
        assert names(tmp_path) == sorted([living, part.name])
    assert names(tmp_path) == [living]


def test_writing_an_output_removes_its_own_stale_partial_files(writer, tmp_path):
    killed, dead = writer(tmp_path / "x.json")
    killed.kill()
    killed.join()
    write_whole(tmp_path / "y.json", "other")
    assert names(tmp_path) == sorted([dead, "y.json"])  # of another output
    write_whole(tmp_path / "x.json", "whole")
    assert names(tmp_path) == ["x.json", "y.json"]


def test_files_with_names_like_partial_files_are_kept(tmp_path):
    """`x.2024.part` is the journal of the output `x.2024`."""
    others = ["x.2024.part", "x.part", "x.12~.parts", "x.a~.part", "y.12~.part", "x.y.12~.part", "x.12~", "old"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "x.7~.part").symlink_to(tmp_path / "old")
    os.mkfifo(tmp_path / "x.8~.part")
    write_whole(tmp_path / "x", "new")
    assert names(tmp_path) == sorted([*others, "x", "x.7~.part", "x.8~.part"])
    assert all((tmp_path / name).read_text() == "mine" for name in others)


def test_a_partial_file_with_the_same_process_id_is_kept(writer, tmp_path, monkeypatch):
    """As on a file system that several machines share."""
    process, living = writer(tmp_path / "x")
    monkeypatch.setattr(os, "getpid", lambda: process.pid)
    write_whole(tmp_path / "x", "mine")
    assert (tmp_path / "x").read_text() == "mine" and (tmp_path / living).read_text() == "half"


def test_partial_files_are_kept_without_file_locks(tmp_path, monkeypatch):
    import fcntl

    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    (tmp_path / "x.7~.part").write_text("another machine writes it")
    monkeypatch.setattr(fcntl, "flock", unsupported)
    write_whole(tmp_path / "x", "mine")
    assert (tmp_path / "x").read_text() == "mine" and names(tmp_path) == ["x", "x.7~.part"]


def test_an_interrupted_replacement_of_a_folder_is_recovered(tmp_path):
    """Killed when the old model was moved aside and the new one was not in its place: the old one comes back."""
    part, target = tmp_path / "part", tmp_path / "model"
    for folder, text in ((part, "new"), (target, "old")):
        folder.mkdir()
        (folder / "model.bin").write_text(text)
    killed = FORK.Process(target=replace_until_killed, args=(part, target))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and not target.exists()
    remove_dead_parts(target)
    assert (target / "model.bin").read_text() == "old" and names(tmp_path) == ["model", "part"]
    replace_folder(part, target)
    assert (target / "model.bin").read_text() == "new" and names(tmp_path) == ["model"]


# Links, and what is not a file


@pytest.mark.parametrize("existing", [True, False])
def test_a_link_is_kept_and_its_target_is_written(existing, tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "x.json", tmp_path / "link.json"
    link.symlink_to("folder/x.json")
    if existing:
        target.write_text("old")
        with pytest.raises(ValueError, match="link.json exists: .*--force"):
            write_whole(link, "new")
    write_whole(link, "new", force=existing)
    assert link.is_symlink() and target.read_text() == "new"
    assert names(tmp_path / "folder") == ["x.json"] and names(tmp_path) == ["folder", "link.json"]


@pytest.mark.parametrize("names_", ["no/such/x.json", "link.json"], ids=["into nowhere", "to itself"])
def test_a_link_without_a_writable_target_is_refused(names_, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(names_)
    for force in (False, True):
        with pytest.raises(ValueError, match="cannot write .*link.json .*: choose another place"):
            write_whole(link, "new", force)
        with pytest.raises(ValueError, match="cannot write .*link.json .*: choose another place"):
            check_writable(link, force)
    assert names(tmp_path) == ["link.json"] and link.is_symlink()


@pytest.mark.parametrize("to", ["/dev/null", "pipe", "folder"])
def test_a_link_to_a_pipe_or_folder_is_refused(to, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(to)
    for force in (False, True):
        with pytest.raises(ValueError, match="link exists and is not a file"), replacing(link, force):
            pytest.fail("it should not begin")
    assert link.is_symlink()


def print_and_write(out, path):
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
    os.write(1, b"first\n")
    try:
        write_whole(path, "x", force=True)
    except ValueError as error:
        os.write(1, str(error).encode())


@pytest.mark.parametrize("name", ["out.txt", "link"])
def test_the_file_behind_standard_output_is_not_replaced(name, tmp_path):
    """`--out /dev/stdout > out.txt`: here by a link of its own, for a mistake must not cost the real one."""
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    process = FORK.Process(target=print_and_write, args=(tmp_path / "out.txt", tmp_path / name))
    process.start()
    process.join()
    first, second = (tmp_path / "out.txt").read_text().splitlines()
    assert first == "first" and second.endswith("is the standard output or error of this command: choose another name")
    assert (tmp_path / "link").is_symlink()


def test_a_file_that_is_replaced_is_whole_at_any_time(tmp_path):
    """A reader that opened the old file keeps reading it."""
    path = tmp_path / "x.json"
    write_whole(path, json.dumps("old"))
    with path.open() as reader:
        write_whole(path, json.dumps("new"), force=True)
        assert json.load(reader) == "old"
    assert json.loads(path.read_text()) == "new"
