"""Change one line of the mathematics at a time, and print the changes that no test notices.

    python tests/mutants.py [FILE...]

A line of mutants.tsv is a file of the package, one of its lines, and another line in its place. The tests of the file
run until one fails, or for five minutes: a change without end is noticed.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tests of each file, those first that find most.
TESTS = {
    "attention/cuts.py": ["attention/test_cuts.py", "attention/test_choice.py", "plugin/models/test_removed.py",
                          "checkpoints/test_optimizer.py", "compression/test_compress.py"],
    "gates/methods.py": ["gates/test_methods.py", "gates/test_gates.py"],
    "compression/refit.py": ["compression/test_repair.py"],
    "compression/search.py": ["compression/test_search.py"],
    "gates/distribution.py": ["gates/test_gates.py", "gates/test_reference.py", "gates/test_settling.py"],
}  # fmt: skip


def is_noticed(path: Path, line: str, other: str, tests: list[str]) -> bool:
    """Return whether a test fails with the other line."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    places = [number for number, each in enumerate(lines) if each.strip() == line]
    if len(places) != 1:
        sys.exit(f"{path} has this line {len(places)} times, not once: {line}")
    lines[places[0]] = lines[places[0]].replace(line, other)
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=ROOT / "tests", capture_output=True, timeout=300).returncode in (1, 2)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Try all changes, or those of the named files."""
    rows = [row.split("\t") for row in (ROOT / "tests" / "mutants.tsv").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if not sys.argv[1:] or row[0].endswith(tuple(sys.argv[1:]))]
    noticed = 0
    for name, line, other in rows:
        if is_noticed(ROOT / "fairseq_headgates" / name, line, other, TESTS[name]):
            noticed += 1
        else:
            print(f"{name}: no test fails\n- {line}\n+ {other}", flush=True)
    print(f"{noticed} of {len(rows)} changes are noticed")


if __name__ == "__main__":
    main()
