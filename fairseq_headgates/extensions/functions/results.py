"""The functions of every head, from counts: rates, confidence intervals, and which of them make a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scipy.stats import binomtest, fisher_exact, mannwhitneyu
from torch import Tensor, nn

from fairseq_headgates.attention.modules import gate_values
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.extensions.functions.counting import (
    Annotations,
    FunctionCounts,
    HeadCounts,
    TypeCounts,
    count_functions,
)
from fairseq_headgates.extensions.functions.layout import STATISTICS
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.heads.functions import open_heads
from fairseq_headgates.messages import check_finite
from fairseq_headgates.scores.options import FunctionOptions

FORMAT = "headgates.functions/1"


def find(
    model: nn.Module,
    task: Any,
    batches: Sequence[Sample],
    annotations: Annotations = Annotations(),  # noqa: B008  (it cannot change)
    options: FunctionOptions = FunctionOptions(),  # noqa: B008
) -> dict[str, Any]:
    """Find the functions of all heads (Voita et al. 2019, section 5).

    Args:
        model: a fairseq transformer; its attention modules become `HeadAttention`
        task: the fairseq task of the model, which holds the dictionaries
        batches: samples of the task, those of this worker if several share the data
        annotations: trees and alignments of the sentences, by their number in the data set
        options: from which values on a head has a function

    Returns:
        The content of a functions file: `result["heads"][type][layer][head]`, None for a removed head, has the numbers
        of a head and its `functions`

    Raises:
        ValueError: if trees or alignments do not match the sentences, or a dictionary has no counts
    """
    counts = count_functions(model, Corpus(task, batches), annotations)
    return functions_of(counts, options, gate_values(model))


def functions_of(
    counts: FunctionCounts, options: FunctionOptions, gates: Mapping[str, Tensor], signature: str = ""
) -> dict[str, Any]:
    """Return the functions of all heads, as the JSON of `headgates functions`.

    A head has the function
    - `positional O` if its maximum is at the offset O from the query for at least `positional` percent of the queries
      with a key there
    - `REL to governor` or `REL to dependent` if its maximum is on the word in the relation for at least `margin`
      percentage points more of the pairs than the most frequent offset of the relation, and the confidence interval is
      above that baseline
    - `rare` if its maximum is on one of the two rarest tokens of the sentence for at least `rare` percent of the
      queries
    - `alignment`: as relations, for aligned words

    Args:
        counts: what the heads of a model attend to
        options: from which values on a head has a function
        gates: the evaluation gates of the model; see `gate_values`
        signature: describes the model and the data
    """
    relations = {each: _relations(of_type, counts.relations) for each, of_type in counts.type_counts.items()}
    heads: dict[str, list[list[dict | None]]] = {}
    for module, layer in counts.heads.items():
        attention_type = module.attention_type
        check_finite(f"the attention weights in {attention_type} layer {module.layer}", layer.sums)
        row: list[dict | None] = [None] * module.attention.heads
        for i, head in enumerate(module.attention.kept):
            entry = _head(
                layer, counts.type_counts[attention_type], counts.relations, relations[attention_type], i, options
            )
            row[head] = {"gate": float(gates[attention_type][module.layer, head]), **entry}
        heads.setdefault(attention_type, []).append(row)
    return {
        "format": FORMAT,
        "signature": signature,
        "options": asdict(options),
        "trees": {side: trees.numbers() for side, trees in counts.trees.items()},
        **({"alignments": counts.links.numbers()} if counts.links else {}),
        "relations": {attention_type: by_name for attention_type, by_name in relations.items() if by_name},
        "heads": heads,
    }


def _relations(counts: TypeCounts, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return, for each relation found, the number of pairs, and the most frequent offset as the baseline."""
    relations = {}
    for name, number, offsets in zip(names, counts.pairs.tolist(), counts.offsets, strict=True):
        if number:
            best = int(offsets.argmax())
            baseline = {"offset": best - len(offsets) // 2, "baseline": float(offsets[best]) / number}
            relations[name] = {"count": int(number), **baseline}
    return relations


def _head(
    counts: HeadCounts,
    of_type: TypeCounts,
    names: list[str],
    relations: dict[str, dict[str, Any]],
    head: int,
    options: FunctionOptions,
) -> dict[str, Any]:
    """Return the numbers of one head, and its functions by name."""
    entry: dict[str, Any] = {"functions": [], "positional": _positional(counts.offsets[head], of_type.exists)}
    for name, relation in relations.items():
        rate = _rate(float(counts.pairs[names.index(name), head]), relation["count"], options.confidence)
        entry.setdefault("words", {})[name] = rate
        if rate["rate"] >= relation["baseline"] + options.margin / 100 and rate["low"] > relation["baseline"]:
            entry["functions"].append(name)
    *statistics, rarest, rare = zip(STATISTICS, counts.sums[:, head].tolist(), of_type.statistics.tolist(), strict=True)
    if rare[2] > 0:
        entry["rare"] = {**_rate(rare[1], int(rare[2]), options.confidence), "rarest": rarest[1] / rarest[2]}
        if entry["rare"]["rate"] >= options.rare / 100:
            entry["functions"].append("rare")
    if entry["positional"]["rate"] >= options.positional / 100:
        entry["functions"].insert(0, f"positional {entry['positional']['offset']:+d}")
    entry["statistics"] = {name: total / number for name, total, number in statistics if number > 0}
    return entry


def _positional(offsets: Tensor, exists: Tensor) -> dict[str, Any]:
    """Return the most frequent offset of the maximum, its rate among the queries with a key there, and all offsets."""
    best, middle = int(offsets.argmax()), len(offsets) // 2
    count, total = int(exists[best]), float(offsets.sum())
    return {
        "offset": best - middle,
        "rate": float(offsets[best]) / max(count, 1),
        "count": count,
        "offsets": {str(i - middle): float(n) / total for i, n in enumerate(offsets) if n > 0},
    }


def _rate(hits: float, count: int, confidence: float) -> dict[str, Any]:
    """Return a rate with its Wilson confidence interval."""
    interval = binomtest(round(hits), count).proportion_ci(confidence / 100, method="wilson")
    return {"rate": hits / count, "low": float(interval.low), "high": float(interval.high), "count": count}


def kept_functions(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Test whether heads that had a function before pruning are kept more often than others.

    Args:
        before: result of `functions_of` before pruning
        after: the same after pruning

    Returns:
        {type: numbers}, and of all types as "all": the heads that were open before, with and without a function, and
        how many of them are still open; the p-value of Fisher's exact test, one-sided (None if one group is empty)
    """
    names = ("kept_with", "with", "kept_without", "without")
    numbers = {attention_type: dict.fromkeys(names, 0) for attention_type in (*before["heads"], "all")}
    still = {head for head, _ in open_heads(after)}
    for head, entry in open_heads(before):
        group = "with" if entry["functions"] else "without"
        for each in (numbers[head.attention_type], numbers["all"]):
            each[group] += 1
            each[f"kept_{group}"] += head in still
    return {attention_type: {**each, "p": _fisher(each)} for attention_type, each in numbers.items()}


def _fisher(numbers: Mapping[str, int]) -> float | None:
    """Return the p-value of Fisher's exact test, one-sided."""
    if not (numbers["with"] and numbers["without"]):
        return None
    table = [[numbers[f"kept_{group}"], numbers[group] - numbers[f"kept_{group}"]] for group in ("with", "without")]
    return float(fisher_exact(table, alternative="greater").pvalue)


def scored_functions(result: Mapping[str, Any], tables: Sequence[HeadTable]) -> list[dict[str, Any]]:
    """Compare the scores of open heads with and without a function.

    Args:
        result: result of `functions_of`
        tables: scores of the same heads

    Returns:
        A dict for each table and attention type: `method`, the name of the scores; `type`; `with` and `without`, the
        numbers of open heads with and without a function; `r`, the rank-biserial correlation, which is the probability
        that a head with a function has a higher score than one without, minus the probability that it has a lower one;
        `p`, the p-value of the two-sided Mann-Whitney U test. `r` and `p` are None if one of the numbers is 0.
    """
    tests = []
    for table in tables:
        for attention_type in (attention_type for attention_type in result["heads"] if attention_type in table.layers):
            groups: dict[bool, list[float]] = {True: [], False: []}
            for head, entry in open_heads(result, attention_type):
                groups[bool(entry["functions"])].append(table[head])
            scores, others = groups[True], groups[False]
            r = p = None
            if scores and others:
                test = mannwhitneyu(scores, others)
                r, p = 2 * float(test.statistic) / (len(scores) * len(others)) - 1, float(test.pvalue)
            numbers = {"with": len(scores), "without": len(others), "r": r, "p": p}
            tests.append({"method": table.name, "type": attention_type, **numbers})
    return tests
