"""Find positional, syntactic, rare-token and alignment heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import nn

from fairseq_headgates.attention.choice import check_scored
from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.attention.modules import gate_values, head_counts
from fairseq_headgates.cli.session import Loaded, Session, open_session
from fairseq_headgates.data.symbols import MARKS, subwords_of
from fairseq_headgates.drawing.tables import text_of
from fairseq_headgates.extensions.functions.aligning import Alignments, Weights, align, attention_of, contributions_by
from fairseq_headgates.extensions.functions.command import FunctionsOptions
from fairseq_headgates.extensions.functions.counting import Annotations, check_annotations, count_functions
from fairseq_headgates.extensions.functions.drawing import (
    alignment_line,
    annotation_lines,
    drift_table,
    function_tables,
    scored_table,
    statistics_table,
)
from fairseq_headgates.extensions.functions.results import functions_of, kept_functions, scored_functions
from fairseq_headgates.extensions.functions.trees import parse_relations, read_alignments, read_trees
from fairseq_headgates.heads import HeadTable, Signature, parse_heads, read_scores
from fairseq_headgates.heads.functions import best_head
from fairseq_headgates.scores.options import EXPLANATIONS, FunctionOptions


def run(options: FunctionsOptions) -> None:
    """Run `headgates functions`."""
    if options.relations is not None and options.conllu is None and options.target_conllu is None:
        raise ValueError("--relations needs trees: add --conllu FILE or --target-conllu FILE")
    _check_align_by(options)
    scores = [] if options.scores is None else read_scores(options.scores)
    with open_session(options) as session:
        if options.write_alignments is not None:
            session.only_path()
        annotations = _annotations(session, options)
        results: dict[str, dict[str, Any]] = {}
        for path in session.paths:
            loaded = session.load(path)
            if not results:
                _check_scores(scores, loaded)
            results[session.name(path)] = _functions(session, options, loaded, annotations)
        first, *others = results.values()
        end = []
        if options.write_alignments:
            end.append(_write_alignments(session, options, loaded, first, annotations))
        if others:
            tests = {name: kept_functions(first, result) for name, result in results.items() if result is not first}
            end.append(drift_table(results, tests))
        if scores:
            end += [scored_table(scored_functions(first, scores)), *(table.signature for table in scores)]
        text = json.dumps([first, *others] if others else first, allow_nan=False)
        _warn_without_mark(session, options, annotations)
        session.write(options.out, text + "\n")
        tables = []
        for name, result in results.items():
            tables += [name] * bool(others) + [text_of(*function_tables(result)), *annotation_lines(result)]
            tables += [statistics_table(result)] * options.statistics + [result["signature"]]
        session.say(text if options.json else "\n\n".join([*tables, *end]))


def _check_align_by(options: FunctionsOptions) -> None:
    by = options.align_by
    if by is None:
        return
    if options.write_alignments is None:
        raise ValueError("--align-by needs a file to write: add --write-alignments FILE")
    if by == "best" and options.alignment is None:
        raise ValueError("--align-by best compares heads with word alignments: add --alignment FILE")
    if by != "best" and by not in EXPLANATIONS and ":" not in by:
        raise ValueError(
            f"--align-by is {by!r}: it must be heads such as dec-enc:1.3, best, or one of {', '.join(EXPLANATIONS)}"
        )


def _annotations(session: Session, options: FunctionsOptions) -> Annotations:
    files = {"source": options.conllu, "target": options.target_conllu}
    trees = {side: read_trees(path) for side, path in files.items() if path is not None}
    relations = parse_relations(options.relations, [tree for each in trees.values() for tree in each]) if trees else ()
    links = None if options.alignment is None else read_alignments(options.alignment)
    joined = {"none": "none", **{value: kind for kind, mark in MARKS.items() for value in mark.post_process}}
    subwords = joined.get(session.fairseq.post_process or "", "")
    return Annotations(trees, relations, links, not options.no_rare, subwords)


def _check_scores(scores: Sequence[HeadTable], loaded: Loaded) -> None:
    """Raise ValueError unless the scores are of the heads of this model, after as many updates."""
    updates = loaded.signature.parts["updates"]
    for table in scores:
        scored = Signature.parse(table.signature).parts.get("updates", updates)
        if scored != updates:
            raise ValueError(
                f"the scores of {table.name} are of a model after {scored} updates, and the checkpoint had {updates}: "
                "run `headgates score` on this checkpoint"
            )
        check_scored(table, open_mask(loaded.model), table.types)


def _functions(session: Session, options: FunctionsOptions, loaded: Loaded, annotations: Annotations) -> dict[str, Any]:
    check_annotations(annotations, len(session.task.dataset(loaded.corpus.subset)))
    counts = count_functions(loaded.model, loaded.corpus, annotations, session.progress("functions"))
    thresholds = FunctionOptions(options.positional, options.margin, options.rare)
    return functions_of(counts, thresholds, gate_values(loaded.model), str(loaded.signature))


def _write_alignments(
    session: Session, options: FunctionsOptions, loaded: Loaded, result: dict[str, Any], annotations: Annotations
) -> str:
    """Write the alignments. Add what they are to the result, and return it as a line of text."""
    corpus = loaded.corpus
    by, weights = _weights(options.align_by or "alti", loaded.model, result)
    progress = session.progress("alignments")
    found = align(loaded.model, corpus.task, corpus.batches, weights, annotations.subwords, progress)
    found = Alignments({i: found.of.get(i) for i in range(corpus.lines)})  # some may be too long for the model
    session.write(options.write_alignments, found.lines())
    result["written_alignments"] = {"by": by, "left_out": sum(links is None for links in found.of.values())}
    return alignment_line(result["written_alignments"], len(found.of))


def _weights(by: str, model: nn.Module, result: dict[str, Any]) -> tuple[str, Weights]:
    """Return what the weights of alignments are, and the function that computes them."""
    sizes = head_counts(model)
    if "dec-enc" not in sizes:
        raise ValueError("the model has no decoder-encoder attention: --write-alignments needs a translation model")
    if by in EXPLANATIONS:
        return by, contributions_by(model, by)
    heads = [best_head(result)] if by == "best" else []
    for part in by.split(",") if by != "best" else ():  # of an asterisk, the heads that are left
        named = parse_heads(part, {"dec-enc": sizes["dec-enc"]}, "--align-by")
        left = [head for head in named if result["heads"]["dec-enc"][head.layer][head.head] is not None]
        if not left:
            raise ValueError(f"--align-by has {part}, which is removed: name heads that are left")
        heads += [head for head in left if head not in heads]
    return ",".join(f"dec-enc:{head.layer}.{head.head}" for head in heads), attention_of(model, heads)


def _warn_without_mark(session: Session, options: FunctionsOptions, annotations: Annotations) -> None:
    """Warn of sides whose words are needed, and whose dictionary has no known mark of subwords."""
    aligned = annotations.links is not None or options.write_alignments is not None
    needed = ("source", "target") if aligned else annotations.trees
    whole = [side for side in needed if subwords_of(getattr(session.task, f"{side}_dictionary").symbols) == "none"]
    if whole and not annotations.subwords:
        marks = " ".join(mark.text for mark in MARKS.values())
        session.warn_once(
            f"the dictionary of the {' and the '.join(whole)} has none of the marks of subwords {marks}: each token "
            "counts as a word; if that is right, pass --post-process none; for the numbers of GPT-2's BPE, --bpe gpt2",
        )
