"""Text commands on blocks of lines, on all cores (recipes/lib/in_blocks.py)."""

import gzip
import subprocess
import sys

import pytest
from support.recipes import RECIPES

PROGRAM = [sys.executable, str(RECIPES / "lib" / "in_blocks.py")]
TEXT = "".join(f"Line {n}, with \u00c4pfel & (more) words.\n" for n in range(1, 104))


def blocks(file, command, *options):
    return subprocess.run([*PROGRAM, str(file), command, *options], capture_output=True, check=False)


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "train.en"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.mark.parametrize("lines", ["7", "103", "20000"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_output_is_that_of_the_command_on_the_whole_text(text, lines, packed):
    command = "sacremoses -q -l en normalize tokenize | tr a-z A-Z"
    whole = subprocess.run(["bash", "-c", command], input=TEXT.encode(), capture_output=True, check=True).stdout
    if packed:
        text.with_suffix(".en.gz").write_bytes(gzip.compress(text.read_bytes()))
        text = text.with_suffix(".en.gz")
    done = blocks(text, command, "--lines", lines, "--processes", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole and "&AMP;" in whole.decode()


def test_the_order_is_that_of_the_text_although_early_blocks_take_longer(text):
    done = blocks(text, 'read -r x && { [[ $x != "Line 1,"* ]] || sleep 1; echo "$x"; cat; }', "--lines", "10")
    assert done.stdout == text.read_bytes()


def test_the_last_line_gets_an_end(text):
    text.write_bytes(b"one\ntwo")
    assert blocks(text, "cat").stdout == b"one\ntwo\n"
    text.write_bytes(b"")
    assert blocks(text, "cat").stdout == b""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("false", "'false' in lines 1 to 10 failed: exit code 1"),
        ("echo no model >&2; exit 3", "in lines 1 to 10 failed: no model"),
        ("false | cat", "failed"),
        ("grep -v 'Line 24,'", "in lines 21 to 30 printed 9 lines"),
        (r"sed 's/Line 24,/\n/'", "in lines 21 to 30 printed 11 lines: a line contains the end of a line"),
    ],
)
def test_a_command_that_fails_or_changes_the_number_of_lines_is_an_error(text, command, words):
    done = blocks(text, command, "--lines", "10")
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("in_blocks.py: ") and words in line


def test_a_text_that_cannot_be_read_is_an_error(tmp_path):
    [line] = blocks(tmp_path / "none", "cat").stderr.decode().splitlines()
    assert "none cannot be read (" in line and "No such file" in line
    damaged = tmp_path / "train.en.gz"
    damaged.write_bytes(gzip.compress(TEXT.encode())[:-20])
    [line] = blocks(damaged, "cat").stderr.decode().splitlines()
    assert "train.en.gz cannot be read (" in line


def test_only_the_blocks_in_work_are_in_memory(tmp_path):
    """A text of 200 MB, with two blocks of 2 MB at a time."""
    file = tmp_path / "large"
    line = b"word " * 19 + b"word\n"
    with file.open("wb") as text:
        for _ in range(200):
            text.write(line * 10_000)
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, *PROGRAM, str(file), "cat", "--processes", "2"]
    status, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert status == 0 and peak < 120_000  # KiB
