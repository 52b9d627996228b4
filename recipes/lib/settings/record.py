"""Record the settings that a folder of results was made with, and refuse others.

    python3 recipes/lib settings.record OUT_DIR NAME SETTINGS [NAME SETTINGS ...] [--check]

SETTINGS are words NAME=VALUE, recorded in OUT_DIR/NAME.txt. --check writes nothing.
"""

from __future__ import annotations

from pathlib import Path

from commands import Refused
from fairseq_headgates.files import write_whole


def others(current: str, recorded: str) -> str:
    """Return the recorded settings that differ, and the names of those that are not recorded."""
    now, then = (dict(word.partition("=")[::2] for word in text.split()) for text in (current, recorded))
    differ = [f"{name}={value}" for name, value in then.items() if now.get(name) != value]
    return " ".join([*differ, *(f"without {name}" for name in now if name not in then)])


def main(argv: list[str]) -> None:
    folder, *pairs = (word for word in argv if word != "--check")
    for name, current in zip(pairs[::2], pairs[1::2], strict=True):
        file = Path(folder, f"{name}.txt")
        if file.exists():
            if other := others(current, file.read_text(encoding="utf-8")):
                raise Refused(f"{folder} was made with other settings ({other}): take another folder or remove it")
        elif "--check" not in argv:
            write_whole(str(file), f"{current}\n", force=True)
