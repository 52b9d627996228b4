"""Text in UTF-8, atomic file writes, and journals from which interrupted commands resume (no torch)."""

from fairseq_headgates.files.reading import (
    check_dictionary,
    decode,
    lines_of,
    log_lines,
    read_standard_input,
    read_text,
)
from fairseq_headgates.files.writing import (
    check_writable,
    part_of,
    refuse_existing,
    replace_folder,
    replacing,
    write_whole,
)

__all__ = [
    "check_writable",
    "decode",
    "lines_of",
    "log_lines",
    "part_of",
    "read_standard_input",
    "read_text",
    "refuse_existing",
    "check_dictionary",
    "replace_folder",
    "replacing",
    "write_whole",
]
