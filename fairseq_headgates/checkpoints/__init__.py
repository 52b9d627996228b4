"""Load, build, prune, convert and write checkpoints."""
