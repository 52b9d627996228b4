"""Compute importance scores of all heads."""

from fairseq_headgates.analysis.options import SCORES, parse_methods
from fairseq_headgates.cli.commands.score import ScoreOptions
from fairseq_headgates.cli.session import session
from fairseq_headgates.heads import scores_to_json
from fairseq_headgates.report.figures import heat_maps
from fairseq_headgates.report.tables import score_table


def run(options: ScoreOptions) -> None:
    """Run `headgates score`."""
    methods = parse_methods(options.method)
    with session(options, needs_target=any(SCORES[name].needs_data for name in methods)) as work:
        loaded = work.load(work.only_path())
        tables = [work.scores(loaded, method, options) for method in methods]
        work.write(options.out, scores_to_json(tables))
        work.plot(options.plot, lambda: heat_maps(tables))
        if options.json:
            work.say(scores_to_json(tables).rstrip("\n"))
        else:
            work.say("\n\n".join(f"{score_table(table)}\n{table.signature}" for table in tables))
