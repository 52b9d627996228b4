"""`headgates functions`: find positional, syntactic, rare-token and alignment heads."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import FirstSentences, Output
from fairseq_headgates.cli.parser import filled
from fairseq_headgates.drawing.tables import text_of
from fairseq_headgates.extensions.functions.drawing import (
    alignment_line,
    annotation_lines,
    drift_table,
    function_tables,
    scored_table,
    statistics_table,
)
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import HeadTable, Signature, read_scores
from fairseq_headgates.scores.options import EXPLANATIONS, FunctionOptions

if TYPE_CHECKING:
    from fairseq_headgates.cli.session import Loaded, Session
    from fairseq_headgates.extensions.functions.counting import Annotations

DEFAULTS = FunctionOptions()


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


@command(
    "functions",
    "headgates functions data-bin --path baseline/checkpoint_best.pt --gen-subset valid --statistics "
    "--out functions.json",
    "headgates functions data-bin --path baseline/checkpoint_best.pt --gen-subset valid "
    "--write-alignments model.align --align-by dec-enc:0.1",
)
class Functions(FirstSentences, Output):
    """Find positional, syntactic, rare-token and alignment heads.

    Find the functions of heads by where their largest attention weight is: at a fixed offset (positional), on a word in
    a syntactic relation, on a rare token, on the aligned word. The decoder reads the reference; options of the search
    have no effect. With --path A:B, A is the model before pruning and B was trained from it: show which functions
    remain.
    """

    shows_tokens = True

    conllu: str | None = option(
        metavar="FILE",
        reads="the trees",
        help="dependency trees of the source: CoNLL-U, also as .gz, with one tree for every sentence of --gen-subset",
    )
    target_conllu: str | None = option(
        metavar="FILE", reads="the trees", help="dependency trees of the target, for decoder self-attention"
    )
    relations: str | None = option(
        metavar="R[,R...]",
        help="relations of the trees to look for, subtypes included (default: nsubj, obj or dobj, iobj, amod, advmod, "
        "det and case, those that the trees have)",
    )
    alignment: str | None = option(
        metavar="FILE",
        reads="the word alignments",
        help="word alignments for cross-attention: a line for every sentence with pairs source-target of "
        "words counted from 0, as fast_align and eflomal write them (Pharaoh format)",
    )
    write_alignments: str | None = option(
        metavar="FILE",
        writes=True,
        help="write word alignments of source and reference in the Pharaoh format, a line for every sentence of "
        "--gen-subset: each target word is linked to the source word with the largest weight",
    )
    align_by: str | None = option(
        metavar="WHAT",
        help="weights of --write-alignments: the mean attention weights of heads (dec-enc:1.3,dec-enc:2.*; * is all "
        "remaining heads); best: those of the head with the highest alignment rate, with --alignment; or contributions "
        f"of tokens ({', '.join(EXPLANATIONS)}) as in `headgates explain` (default: alti)",
    )
    no_rare: bool = option(default=False, help="do not look for heads that attend to rare tokens")
    positional: float = option(
        metavar="PERCENT",
        type=_percent,
        default=DEFAULTS.positional,
        help="a head is positional if its maximum has the same offset for at least PERCENT of the tokens for which "
        "this offset exists (default: %(default)g)",
    )
    margin: float = option(
        metavar="POINTS",
        type=_percent,
        default=DEFAULTS.margin,
        help="for relations and alignments: by how much the rate of a head must exceed the baseline, the rate of the "
        "most frequent offset. The 95%% confidence interval must also be above the baseline (default: %(default)g)",
    )
    rare: float = option(
        metavar="PERCENT",
        type=_percent,
        default=DEFAULTS.rare,
        help="a head attends to rare tokens if its maximum is on one of the two rarest tokens of the sentence for at "
        "least PERCENT of the tokens (default: %(default)g)",
    )
    statistics: bool = option(
        default=False,
        help="also print for every head: the most frequent offset; entropy; confidence; the weight on EOS, on the "
        "first token, on the token itself and on the last earlier token of the same form; how monotonic dec-enc "
        "attention is",
    )
    scores: str | None = option(
        metavar="FILE",
        type=filled,
        reads="the score file",
        help="score file of the checkpoint (of the first one, if there are several): also print a table that compares "
        "the scores of heads with and without a function (not in the JSON)",
    )

    def check(self) -> None:
        """Raise ValueError for options that need another one."""
        if self.relations is not None and self.conllu is None and self.target_conllu is None:
            raise ValueError("--relations needs trees: add --conllu FILE or --target-conllu FILE")
        by = self.align_by
        if by is None:
            return
        if self.write_alignments is None:
            raise ValueError("--align-by needs a file to write: add --write-alignments FILE")
        if by == "best" and self.alignment is None:
            raise ValueError("--align-by best compares heads with word alignments: add --alignment FILE")
        if by != "best" and by not in EXPLANATIONS and ":" not in by:
            raise ValueError(
                f"--align-by is {by!r}: it must be heads such as dec-enc:1.3, best, or one of {', '.join(EXPLANATIONS)}"
            )

    def run(self, session: Session) -> Answer:
        """Find the functions of the heads of all checkpoints."""
        from fairseq_headgates.extensions.functions.results import kept_functions, scored_functions

        scores = [] if self.scores is None else read_scores(self.scores)
        if self.write_alignments is not None:
            session.only_path()
        annotations = self._annotations(session)
        results: dict[str, dict[str, Any]] = {}
        for path in session.paths:
            loaded = session.load(path)
            if not results:
                _check_scores(scores, loaded)
            results[session.name(path)] = self._functions(session, loaded, annotations)
        first, *others = results.values()
        end, alignments = [], ""
        if self.write_alignments:
            line, alignments = self._alignments(session, loaded, first, annotations)
            end.append(line)
        if others:
            tests = {name: kept_functions(first, result) for name, result in results.items() if result is not first}
            end.append(drift_table(results, tests))
        if scores:
            end += [scored_table(scored_functions(first, scores)), *(table.signature for table in scores)]
        self._warn_without_mark(session, annotations)
        tables = []
        for name, result in results.items():
            tables += [name] * bool(others) + [text_of(*function_tables(result)), *annotation_lines(result)]
            tables += [statistics_table(result)] * self.statistics + [result["signature"]]
        content = to_json([first, *others] if others else first)
        return Answer(
            text="\n\n".join([*tables, *end]),
            json=content,
            files={"write_alignments": alignments, "out": content + "\n"},
        )

    def _annotations(self, session: Session) -> Annotations:
        from fairseq_headgates.data.symbols import MARKS
        from fairseq_headgates.extensions.functions.counting import Annotations
        from fairseq_headgates.extensions.functions.trees import parse_relations, read_alignments, read_trees

        files = {"source": self.conllu, "target": self.target_conllu}
        trees = {side: read_trees(path) for side, path in files.items() if path is not None}
        relations = parse_relations(self.relations, [tree for each in trees.values() for tree in each]) if trees else ()
        links = None if self.alignment is None else read_alignments(self.alignment)
        joined = {"none": "none", **{value: kind for kind, mark in MARKS.items() for value in mark.post_process}}
        subwords = joined.get(session.fairseq.post_process or "", "")
        return Annotations(trees, relations, links, not self.no_rare, subwords)

    def _functions(self, session: Session, loaded: Loaded, annotations: Annotations) -> dict[str, Any]:
        from fairseq_headgates.attention.modules import gate_values
        from fairseq_headgates.extensions.functions.counting import check_annotations, count_functions
        from fairseq_headgates.extensions.functions.results import functions_of

        check_annotations(annotations, len(session.task.dataset(loaded.corpus.subset)))
        counts = count_functions(loaded.model, loaded.corpus, annotations, session.progress("functions"))
        thresholds = FunctionOptions(self.positional, self.margin, self.rare)
        return functions_of(counts, thresholds, gate_values(loaded.model), str(loaded.signature))

    def _alignments(
        self, session: Session, loaded: Loaded, result: dict[str, Any], annotations: Annotations
    ) -> tuple[str, str]:
        """Align the words, and note in the result by what. Return this as a line of text, and the alignments."""
        from fairseq_headgates.extensions.functions.aligning import Alignments, align, weights_by

        corpus = loaded.corpus
        by, weights = weights_by(self.align_by or "alti", loaded.model, result)
        progress = session.progress("alignments")
        found = align(loaded.model, corpus.task, corpus.batches, weights, annotations.subwords, progress)
        found = Alignments({i: found.of.get(i) for i in range(corpus.lines)})  # some may be too long for the model
        result["written_alignments"] = {"by": by, "left_out": sum(links is None for links in found.of.values())}
        return alignment_line(result["written_alignments"], len(found.of)), found.lines()

    def _warn_without_mark(self, session: Session, annotations: Annotations) -> None:
        """Warn of sides whose words are needed, and whose dictionary has no known mark of subwords."""
        from fairseq_headgates.data.symbols import MARKS, subwords_of

        aligned = annotations.links is not None or self.write_alignments is not None
        needed = ("source", "target") if aligned else annotations.trees
        whole = [side for side in needed if subwords_of(getattr(session.task, f"{side}_dictionary").symbols) == "none"]
        if whole and not annotations.subwords:
            marks = " ".join(mark.text for mark in MARKS.values())
            session.warn_once(
                f"the dictionary of the {' and the '.join(whole)} has none of the marks of subwords {marks}: each "
                "token counts as a word; if that is right, pass --post-process none; for the numbers of GPT-2's BPE, "
                "--bpe gpt2",
            )


def _check_scores(scores: list[HeadTable], loaded: Loaded) -> None:
    """Raise ValueError unless the scores are of the heads of this model, after as many updates."""
    from fairseq_headgates.attention.choice import check_scored
    from fairseq_headgates.attention.cuts import open_mask

    updates = loaded.signature.parts["updates"]
    for table in scores:
        scored = Signature.parse(table.signature).parts.get("updates", updates)
        if scored != updates:
            raise ValueError(
                f"the scores of {table.name} are of a model after {scored} updates, and the checkpoint had {updates}: "
                "run `headgates score` on this checkpoint"
            )
        check_scored(table, open_mask(loaded.model), table.types)
