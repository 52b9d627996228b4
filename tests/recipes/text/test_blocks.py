"""Text commands on blocks of lines, on all cores (text.in_blocks)."""

import gzip
import subprocess
import sys

import pytest
from support.recipes import RECIPES, call

pytest_plugins = ["support.recipes"]
TEXT = "".join(f"Line {n}, with Äpfel & (more) words.\n" for n in range(1, 104))


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "train.en"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def blocks(capfdbinary):
    """blocks(FILE, COMMAND, ...): what the program prints."""

    def blocks(*arguments):
        assert call("text.in_blocks", *arguments) == 0
        return capfdbinary.readouterr().out

    return blocks


@pytest.mark.parametrize(
    ("command", "lines", "packed"),
    [
        ("sacremoses -q -l en normalize tokenize | tr a-z A-Z", "52", True),
        (r"sed 's/&/\&amp;/' | tr a-z A-Z", "7", False),
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


@pytest.mark.parametrize(("written", "printed"), [(b"one\ntwo", b"one\ntwo\n"), (b"", b"")])
def test_a_missing_final_newline_is_added(written, printed, text, blocks):
    text.write_bytes(written)
    assert blocks(text, "cat") == printed


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo no model >&2; exit 3", "in lines 1 to 10 failed: no model"),
        ("false | cat", "'false | cat' in lines 1 to 10 failed: exit code 1"),
        (r"sed 's/Line 24,/\n/'", "in lines 21 to 30 printed 11 lines: a line contains the end of a line"),
    ],
)
def test_a_command_that_fails_or_changes_the_number_of_lines_is_an_error(text, command, words, capfdbinary):
    assert call("text.in_blocks", text, command, "--lines", "10") == 2
    [line] = capfdbinary.readouterr().err.decode().splitlines()
    assert line.startswith("text.in_blocks: ") and words in line


def test_a_text_that_cannot_be_read_is_an_error(tmp_path, refuses):
    refuses("text.in_blocks", tmp_path / "none", "cat", words=["none cannot be read (", "No such file"])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(TEXT.encode())[:-20])
    refuses("text.in_blocks", tmp_path / "cut.gz", "cat", words="cut.gz cannot be read (")


def test_only_blocks_being_processed_are_in_memory(tmp_path):
    """A text of 40 MB, with two blocks of 0.5 MB at a time."""
    (tmp_path / "large").write_bytes((b"word " * 19 + b"word\n") * 400_000)
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    program = [sys.executable, str(RECIPES / "lib"), "text.in_blocks", str(tmp_path / "large"), "cat"]
    command = [sys.executable, "-c", script, *program, "--lines", "5000", "--processes", "2"]
    status, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert status == 0 and peak < 50_000  # KiB
