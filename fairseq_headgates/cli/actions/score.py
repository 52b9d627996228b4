"""Compute importance scores of all heads."""

import shlex

from fairseq_headgates.cli.commands.score import ScoreOptions
from fairseq_headgates.cli.session import open_session
from fairseq_headgates.drawing.figures import heat_maps
from fairseq_headgates.drawing.tables import score_tables, text_of
from fairseq_headgates.heads import scores_to_json
from fairseq_headgates.scores.options import SCORES, parse_methods


def run(options: ScoreOptions) -> str | None:
    """Run `headgates score`, and return the command that comes next."""
    methods = parse_methods(options.method)
    with open_session(options, needs_target=any(SCORES[name].needs_data for name in methods)) as session:
        loaded = session.load(session.only_path())
        tables = [session.scores(loaded, method, options) for method in methods]
        session.write(options.out, scores_to_json(tables))
        session.plot(options.plot, lambda: heat_maps(tables))
        if options.json:
            session.say(scores_to_json(tables).rstrip("\n"))
        else:
            session.say("\n\n".join(f"{text_of(*score_tables(table))}\n{table.signature}" for table in tables))
        words = [session.only_path(), "OUT", "--scores", options.out or "", "--keep", "0.5"]
        words += ["--method", methods[0]] if len(methods) > 1 else []
        return shlex.join(["headgates", "prune", *words]) if options.out and session.writes else None
