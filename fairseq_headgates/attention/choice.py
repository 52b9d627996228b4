"""Choose which heads to keep by their scores (no torch)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable

from fairseq_headgates.heads import HeadId, HeadTable, check_shape, count_of


def check_scored(scores: HeadTable, alive: HeadTable, types: Collection[str]) -> list[HeadId]:
    """Return the heads of `alive` of these types.

    Raises:
        ValueError: if `scores` does not fit `alive`, or one of these heads has no score
    """
    for attention_type in types:
        if attention_type not in scores.layers:
            raise ValueError(f"there are no scores of {attention_type}: choose types from {', '.join(scores.types)}")
    check_shape(scores, {each: (len(rows), len(rows[0])) for each, rows in alive.layers.items()}, "the score file")
    candidates = [head for head, present in alive.items() if present and head.attention_type in types]
    for head in candidates:
        if math.isnan(scores[head]):
            raise ValueError(
                f"{head.attention_type} layer {head.layer} head {head.head} has no score: the scores are of a model "
                "without it, compute those of this model"
            )
    return candidates


def best_heads(
    scores: HeadTable,
    keep: int | float,
    alive: HeadTable | None = None,
    types: Iterable[str] = (),
    min_per_layer: int = 0,
) -> HeadTable:
    """Return the mask that keeps the heads with the highest scores. Of equal scores, the earlier head is kept.

    For 2 layers of 2 heads, ``best_heads(HeadTable({"dec-enc": [[3, 1], [2, 4]]}), 2)`` is
    ``HeadTable({"dec-enc": [[1, 0], [0, 1]]}, "alive")``.

    Args:
        scores: a score for every head of `alive`, [L, H] for each attention type
        keep: how many heads to keep of those that `alive` has of `types`: a number (int) or a fraction (float, 0 to 1)
        alive: a mask of the heads that the model has (default: all that have a score, not NaN)
        types: attention types to prune (default: all that have scores); heads of other types are kept
        min_per_layer: keep at least the best `min_per_layer` heads of every layer

    Raises:
        ValueError: if the scores do not fit `alive`, or the numbers contradict each other
    """
    chosen = tuple(types) or scores.types
    if alive is None:
        alive = scores.map(lambda score: int(not math.isnan(score)))
    candidates = check_scored(scores, alive, chosen)
    number = count_of(keep, len(candidates))
    if not 0 <= number <= len(candidates):
        raise ValueError(
            f"keep is {keep}: it must be from 0 to {len(candidates)}, the number of heads of {', '.join(chosen)}, or a "
            "fraction of them with a decimal point"
        )
    kept = _best(candidates, scores, number, min_per_layer)
    mask = alive.map(int)
    for attention_type, layer, head in {*candidates} - kept:
        mask.layers[attention_type][layer][head] = 0
    return HeadTable(mask.layers, "alive", scores.signature)


def _best(candidates: list[HeadId], scores: HeadTable, number: int, min_per_layer: int) -> set[HeadId]:
    ranked = sorted(candidates, key=lambda head: -scores[head])  # sorting is stable: equal scores stay in order
    seen: Counter[tuple[str, int]] = Counter()
    reserved: list[HeadId] = []
    others: list[HeadId] = []
    for head in ranked:
        (reserved if seen[head.attention_type, head.layer] < min_per_layer else others).append(head)
        seen[head.attention_type, head.layer] += 1
    if len(reserved) > number:
        raise ValueError(
            f"min-per-layer is {min_per_layer}, which keeps {len(reserved)} heads, but keep is {number}: "
            "lower min-per-layer or raise keep"
        )
    return {*reserved, *others[: number - len(reserved)]}
