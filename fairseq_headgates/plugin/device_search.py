"""`translation_device_search`: fairseq's `translation` with a beam search that stays on the device.

fairseq's commands take the search from the task alone. Training, data and checkpoints are those of `translation`.
"""

from __future__ import annotations

from typing import Any

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_headgates.inference.device_search import DeviceSearch


@register_task("translation_device_search", dataclass=TranslationConfig)
class DeviceSearchTask(TranslationTask):
    """fairseq's `translation`, whose generator is `DeviceSearch`."""

    def build_generator(self, models: Any, args: Any, seq_gen_cls: Any = None, **options: Any) -> Any:
        """Build the generator of translations; fairseq calls it."""
        if seq_gen_cls is None and not getattr(args, "print_alignment", False):
            seq_gen_cls = DeviceSearch
        return super().build_generator(models, args, seq_gen_cls, **options)
