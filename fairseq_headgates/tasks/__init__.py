"""The registered tasks."""

from fairseq_headgates.tasks.segments import SegmentTask

__all__ = ["SegmentTask"]
