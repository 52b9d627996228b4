"""Fast inference: packed linear layers in single precision or in int8, and the caches of beam search."""
