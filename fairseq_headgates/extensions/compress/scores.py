"""The importance score `refit`."""

from fairseq_headgates.analysis.options import SCORES, Score

SCORES["refit"] = Score(
    "estimated increase of the loss when this head and all with lower scores are removed, and the output projections "
    "of their layers are refitted (Optimal Brain Surgeon, Hassibi & Stork 1993); for prune --refit, with --gen-subset "
    "train",
    "extensions.compress.refit_score.refit_scores",
)
