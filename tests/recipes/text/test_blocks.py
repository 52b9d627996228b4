"""Text commands on blocks of lines, on all cores (recipes/lib/in_blocks.py)."""

import gzip
import subprocess
import sys

import pytest
from support.recipes import RECIPES

from text import in_blocks

PROGRAM = [sys.executable, str(RECIPES / "lib" / "in_blocks.py")]
TEXT = "".join(f"Line {n}, with \u00c4pfel & (more) words.\n" for n in range(1, 104))


@pytest.fixture
def blocks(capfdbinary):
    """blocks(FILE, COMMAND, ...): what in_blocks.py prints; with code=2 its line of error."""

    def blocks(file, command, *options, code=0):
        assert in_blocks.main([str(file), command, *options]) == code
        out, err = capfdbinary.readouterr()
        if code:
            [line] = err.decode().splitlines()
            assert line.startswith("in_blocks.py: ")
            return line
        return out

    return blocks


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "train.en"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("command", "lines", "packed"),
    [
        ("sacremoses -q -l en normalize tokenize | tr a-z A-Z", "52", True),
        (r"sed 's/&/\&amp;/' | tr a-z A-Z", "7", False),
        (r"sed 's/&/\&amp;/' | tr a-z A-Z", "103", True),
        (r"sed 's/&/\&amp;/' | tr a-z A-Z", "20000", False),
    ],
)
def test_the_output_is_that_of_the_command_on_the_whole_text(text, command, lines, packed, blocks):
    whole = subprocess.run(["bash", "-c", command], input=TEXT.encode(), capture_output=True, check=True).stdout
    if packed:
        text.with_suffix(".en.gz").write_bytes(gzip.compress(text.read_bytes()))
        text = text.with_suffix(".en.gz")
    assert blocks(text, command, "--lines", lines, "--processes", "3") == whole and "&AMP;" in whole.decode()


def test_the_order_is_that_of_the_text_although_early_blocks_take_longer(text, blocks):
    """The first block waits for a later one, which runs beside it."""
    wait = "for ((n = 0; n < 3000; n++)); do [[ ! -e later ]] || break; sleep 0.01; done; [[ -e later ]]"
    command = f'cd {text.parent}; read -r x; if [[ $x == "Line 1,"* ]]; then {wait}; else touch later; fi'
    assert blocks(text, f'{command}; echo "$x"; cat', "--lines", "10", "--processes", "2") == text.read_bytes()


def test_a_missing_final_newline_is_added(text, blocks):
    text.write_bytes(b"one\ntwo")
    assert blocks(text, "cat") == b"one\ntwo\n"
    text.write_bytes(b"")
    assert blocks(text, "cat") == b""


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
def test_a_command_that_fails_or_changes_the_number_of_lines_is_an_error(text, command, words, blocks):
    assert words in blocks(text, command, "--lines", "10", code=2)


def test_a_text_that_cannot_be_read_is_an_error(tmp_path, blocks):
    line = blocks(tmp_path / "none", "cat", code=2)
    assert "none cannot be read (" in line and "No such file" in line
    damaged = tmp_path / "train.en.gz"
    damaged.write_bytes(gzip.compress(TEXT.encode())[:-20])
    assert "train.en.gz cannot be read (" in blocks(damaged, "cat", code=2)


def test_only_blocks_being_processed_are_in_memory(tmp_path):
    """A text of 40 MB, with two blocks of 0.5 MB at a time."""
    file = tmp_path / "large"
    line = b"word " * 19 + b"word\n"
    with file.open("wb") as text:
        for _ in range(40):
            text.write(line * 10_000)
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, *PROGRAM, str(file), "cat", "--lines", "5000", "--processes", "2"]
    status, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert status == 0 and peak < 50_000  # KiB
