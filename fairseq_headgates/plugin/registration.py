"""Register the architectures, criterions and tasks of this package with fairseq, which their modules do on import."""

from fairseq_headgates.plugin import device_search  # noqa: F401
from fairseq_headgates.plugin.criterions import losses  # noqa: F401
from fairseq_headgates.plugin.models import families, language_model, roberta, transformer  # noqa: F401
