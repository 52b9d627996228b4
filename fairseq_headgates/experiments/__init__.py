"""Read what an experiment leaves behind: checkpoints, logs, and the result files of `headgates`."""
