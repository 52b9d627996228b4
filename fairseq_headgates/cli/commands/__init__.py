"""The options of the commands of the core: a file for each command (no torch)."""
