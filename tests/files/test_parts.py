"""Files and folders in the making, links, and what is not a file."""

import logging
import os

import pytest

from fairseq_headgates.files import check_writable, part_of, replacing, write_whole
from fairseq_headgates.files.journal import ResumeJournal


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


def test_a_link_without_a_writable_target_is_refused(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to("no/such/x.json")
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
