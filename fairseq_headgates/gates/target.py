"""Target numbers of heads: `--target-heads`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from fairseq_headgates.heads import number_of_heads
from fairseq_headgates.messages import shown

ALL = ""  # the group of all gated types together
FORMS = (
    "a number of heads (12), a fraction with a decimal point (0.25), or these by attention type (enc-self=6,dec-enc=12)"
)


@dataclass(frozen=True)
class Target:
    """How many heads to keep: of all gated attention types together, or of each of some types.

    Attributes:
        wanted: {attention type, or `ALL`: number (int) or fraction (float) of the heads to keep}
    """

    wanted: tuple[tuple[str, int | float], ...]

    def counts(self, heads: Mapping[str, int]) -> dict[tuple[str, ...], int]:
        """Return {attention types: number of heads to keep} for a model.

        Args:
            heads: {attention type: number of gates}

        Raises:
            ValueError: for a type without gates, for gates without a target, or a target above the number of gates
        """
        found: dict[tuple[str, ...], int] = {}
        for kind, number in self.wanted:
            kinds = tuple(heads) if kind == ALL else (kind,)
            if kind != ALL and kind not in heads:
                raise ValueError(f"the target names {kind}, which has no gates: gates are on {', '.join(heads)}")
            total = sum(heads[each] for each in kinds)
            count = number_of_heads(number, total) if isinstance(number, float) else number
            if count > total:
                raise ValueError(f"the target is {count} heads of {kind or ', '.join(kinds)}: there are {total}")
            found[kinds] = count
        missing = [kind for kind in heads if not any(kind in kinds for kinds in found)]
        if missing:
            raise ValueError(f"{', '.join(missing)} has gates but no target: add {missing[0]}=N")
        return found

    def of(self, heads: Mapping[str, int]) -> Target:
        """Return the target of keeping all of `heads`, {attention type: number}, for the same types as this one."""
        there = {**heads, ALL: sum(heads.values())}
        return Target(tuple((kind, there.get(kind, 0)) for kind, _ in self.wanted))

    def at_most(self, heads: Mapping[str, int]) -> Target:
        """Return this target with numbers that are not above those of `heads`."""
        pairs = zip(self.wanted, self.of(heads).wanted, strict=True)
        return Target(tuple((kind, n if isinstance(n, float) else min(n, most)) for (kind, n), (_, most) in pairs))

    def __str__(self) -> str:
        # Without an exponent, which `parse_target` does not read.
        numbers = [(kind, format(Decimal(str(number)), "f")) for kind, number in self.wanted]
        return ",".join(f"{kind}={number}" if kind else number for kind, number in numbers)


def parse_target(text: str) -> Target | None:
    """Parse a target: '12', '0.25' or 'enc-self=6,dec-enc=0.5'; None for an empty text. Raise ValueError."""
    if not text.strip():
        return None
    wanted: dict[str, int | float] = {}
    for part in text.split(","):
        kind, equals, number = part.rpartition("=")
        kind = kind.strip()
        if bool(equals) != bool(kind) or kind in wanted or (len(wanted) and ("" in wanted or not kind)):
            raise ValueError(f"the target is {shown(text)}: it must be {FORMS}")
        wanted[kind] = _number(number, text)
    return Target(tuple(wanted.items()))


def _number(number: str, text: str) -> int | float:
    try:
        value = float(number) if "." in number else int(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (isinstance(value, float) and value > 1):
        raise ValueError(f"the target is {shown(text)}: it must be {FORMS}")
    return value
