"""Print the table of the demo: what was removed from each model, what is left, and what that costs and saves.

    python3 recipes/scripts/demo_table.py EVALUATION

EVALUATION is a file of `headgates evaluate --path WHOLE:MODEL:... --speed --out EVALUATION`.
"""

import argparse

import headgates_start  # noqa: F401  (with it fairseq_headgates imports fairseq and torch only where they are needed)
from fairseq_headgates.data.results import differences, read_evaluations
from fairseq_headgates.drawing.evaluations import cells_of
from fairseq_headgates.drawing.tables import rounded, text_table

REMOVED = {
    "baseline+/checkpoint_last.pt": "nothing removed",
    "smaller/gradient.pt": "half of the heads, by gradient scores",
    "smaller/refit.pt": "half of the heads, by refit scores, refitted",
    "smaller/compressed.pt": "heads and neurons, refitted",
    "all_heads0.5/pruned.pt": "half of the heads, by training with gates",
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("evaluation", metavar="EVALUATION")
whole, *models = read_evaluations(parser.parse_args().evaluation)
changes = [found["BLEU"] for found in differences(whole, models)]
rows = []
for model, change in zip([whole, *models], [None, *changes], strict=True):
    cells = cells_of(model.as_json())
    size, bleu = f"{model.parameters / 1e6:.2f}M", f"{model.scores['BLEU'].score:.2f}"
    diff = rounded(change.value, "+.2f") if change else "-"
    p = f"{change.p:.3f}" if change and change.p is not None else "-"
    rows.append(
        [f"{model.checkpoint}: {REMOVED[model.checkpoint]}", cells["heads"], size, bleu, diff, p, cells["words/s"]]
    )
print(text_table(["model", "heads", "params", "BLEU", "diff", "p", "words/s"], rows))
print(f"diff, p: BLEU against {whole.checkpoint}, paired bootstrap; words/s: fastest round [slowest, fastest]")
