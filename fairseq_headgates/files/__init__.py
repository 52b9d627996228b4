"""Atomic file writes, and journals from which interrupted commands resume (no torch)."""

from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.files.parts import part_of, remove_dead_parts, replace_folder
from fairseq_headgates.files.writing import (
    LARGEST_TEXT,
    check_writable,
    read_text,
    refuse_existing,
    replacing,
    write_whole,
)

__all__ = [
    "LARGEST_TEXT",
    "ResumeJournal",
    "check_writable",
    "part_of",
    "read_text",
    "refuse_existing",
    "remove_dead_parts",
    "replace_folder",
    "replacing",
    "write_whole",
]
