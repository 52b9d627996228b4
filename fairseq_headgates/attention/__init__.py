"""Change the heads of a model: find and replace attention, gate, mask, observe, remove; freeze parameters."""
