"""Remove heads and feed-forward neurons under one budget, and repair the model without training."""

from fairseq_headgates.compression import scores  # noqa: F401  (registers the score `refit`)
