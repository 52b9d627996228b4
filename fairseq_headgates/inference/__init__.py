"""Fast inference: packed linear layers in single precision or in 8 bits, and the caches of beam search."""
