"""Files and folders in the making, links, and what is not a file."""

import logging
import multiprocessing
import os

import pytest

from fairseq_headgates.files import check_writable, part_of, replacing, write_whole
from fairseq_headgates.files.journal import ResumeJournal

FORK = multiprocessing.get_context("fork")  # faster than to import all anew


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("folder", [False, True])
def test_a_part_is_removed_unless_it_was_renamed(folder, tmp_path):
    """It has the rights of a usual file, and a name that no other process has."""
    (tmp_path / "usual").touch()
    with part_of(tmp_path / "x", folder) as part, part_of(tmp_path / "x", folder) as other:
        assert part != other and part.parent == tmp_path and part.is_dir() == folder
        assert folder or part.stat().st_mode == (tmp_path / "usual").stat().st_mode
        part.rename(tmp_path / "x")
    assert names(tmp_path) == ["usual", "x"]
    with pytest.raises(KeyboardInterrupt), part_of(tmp_path / "x", folder):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["usual", "x"]


def test_outputs_are_named_and_partial_results_are_not(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    ResumeJournal(str(tmp_path / "x.part"), "work").discard()
    write_whole(tmp_path / "x", "text")
    with pytest.raises(ValueError, match="it was not written"), replacing(tmp_path / "y"):
        raise ValueError("it was not written")
    assert caplog.messages == [f"written: {tmp_path / 'x'}"]


# Links, and what is not a file


def test_a_link_is_kept_and_its_target_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "x.json", tmp_path / "link.json"
    link.symlink_to("folder/x.json")
    write_whole(link, "old")
    with pytest.raises(ValueError, match="link.json exists: .*--force"):
        write_whole(link, "new")
    write_whole(link, "new", force=True)
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


def test_a_link_to_a_pipe_or_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "link"
    for to in ("pipe", "."):
        link.symlink_to(to)
        with pytest.raises(ValueError, match="link exists and is not a file"), replacing(link, force=True):
            pytest.fail("it should not begin")
        link.unlink()


def print_and_write(out, path):
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
    os.write(1, b"first\n")
    try:
        write_whole(path, "x", force=True)
    except ValueError as error:
        os.write(1, str(error).encode())


def test_the_file_behind_standard_output_is_not_replaced(tmp_path):
    """`--out /dev/stdout > out.txt`: here by a link of its own, for a mistake must not cost the real one."""
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    process = FORK.Process(target=print_and_write, args=(tmp_path / "out.txt", tmp_path / "link"))
    process.start()
    process.join()
    first, second = (tmp_path / "out.txt").read_text().splitlines()
    assert first == "first" and second.endswith("is the standard output or error of this command: choose another name")
    assert (tmp_path / "link").is_symlink()
