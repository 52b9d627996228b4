"""Tables and figures for people (no torch)."""
