"""Text in UTF-8, atomic file writes, and journals from which interrupted commands resume (no torch)."""

from fairseq_headgates.files.reading import (
    check_dictionary,
    decode,
    lines_of,
    read_standard_input,
    read_text,
)
from fairseq_headgates.files.records import parse_json, read_record, read_records, repeated, to_json
from fairseq_headgates.files.writing import (
    check_writable,
    part_of,
    replace_folder,
    replacing,
    write_whole,
)

__all__ = [
    "check_writable",
    "decode",
    "lines_of",
    "parse_json",
    "part_of",
    "read_record",
    "read_records",
    "read_standard_input",
    "read_text",
    "repeated",
    "check_dictionary",
    "replace_folder",
    "replacing",
    "to_json",
    "write_whole",
]
