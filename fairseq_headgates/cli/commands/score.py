"""`headgates score`: compute importance scores of all heads."""

import shlex
from typing import Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import CHOOSING, Output, Scores, Text
from fairseq_headgates.cli.parser import Once
from fairseq_headgates.drawing.figures import heat_maps
from fairseq_headgates.drawing.tables import score_tables, text_of
from fairseq_headgates.heads import scores_to_json
from fairseq_headgates.scores.options import SCORES, parse_methods


@command(
    "score",
    "headgates score data-bin --path baseline/checkpoint_best.pt --gen-subset valid --method gradient "
    "--out scores.json",
    "headgates score data-bin --path baseline/checkpoint_best.pt --gen-subset valid --method confidence,ablation "
    "--out two.json --plot two.svg",
)
class Score(Text, Scores, Output):
    """Compute importance scores of all heads."""

    subset = CHOOSING

    method: str = option(
        metavar="M[,M...]",
        action=Once,
        required=True,
        help="scores to compute, or all. " + "; ".join(f"{name}: {score.text}" for name, score in SCORES.items()),
    )
    plot: str | None = option(metavar="FILE", writes=True, help="draw heat maps: .png, .pdf, .svg (needs matplotlib)")
    out: str | None = option(metavar="FILE", writes=True, help="write a score file for prune, curve and correlate")
    json: bool = option(default=False, help="print the content of the score file instead of tables")

    def check(self) -> None:
        """Raise ValueError for unknown methods."""
        self.methods = parse_methods(self.method)

    def needs_target(self) -> bool:
        """Return whether one of the scores needs data."""
        return any(SCORES[name].needs_data for name in self.methods)

    def run(self, session: Any) -> Answer:
        """Compute the scores."""
        path = session.only_path()
        loaded = session.load(path)
        tables = [session.scores(loaded, method, self) for method in self.methods]
        content = scores_to_json(tables)
        words = ["--path", path, "--scores", self.out or "", "--keep", "0.5"]
        words += ["--method", self.methods[0]] if len(tables) > 1 else []
        words += ["--out", "OUT"]
        return Answer(
            text="\n\n".join(f"{text_of(*score_tables(table))}\n{table.signature}" for table in tables),
            json=content.rstrip("\n"),
            files={"out": content},
            figure=lambda: heat_maps(tables),
            next_command=shlex.join(["headgates", "prune", *words]) if self.out else "",
        )
