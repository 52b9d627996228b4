"""Load untrusted checkpoints: an allow-list of objects, checks of options, the form of a checkpoint."""
