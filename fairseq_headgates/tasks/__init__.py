"""The registered tasks."""

from fairseq_headgates.tasks.device_search import DeviceSearchTask
from fairseq_headgates.tasks.segments import SegmentTask

__all__ = ["DeviceSearchTask", "SegmentTask"]
