"""The public name of this extension, `fairseq_headgates.compress`."""

from fairseq_headgates.extensions.compress.model import compress

__all__ = ["compress"]
