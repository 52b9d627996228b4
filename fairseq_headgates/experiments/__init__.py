"""Read what an experiment leaves behind: checkpoints, logs, and the result files of `headgates`."""

from fairseq_headgates.experiments.inputs import read_experiment

__all__ = ["read_experiment"]
