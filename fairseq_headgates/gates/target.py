"""Target numbers of heads: `--target-heads`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from fairseq_headgates.heads import count_of, parse_count
from fairseq_headgates.messages import quoted

ALL = ""  # the group of all gated types together
FORMS = (
    "a number of heads (12), a fraction with a decimal point (0.25), or these by attention type (enc-self=6,dec-enc=12)"
)


@dataclass(frozen=True)
class Target:
    """How many heads to keep: of all gated attention types together, or of each of some types.

    Attributes:
        numbers: {attention type, or `ALL`: number (int) or fraction (float) of the heads to keep}
    """

    numbers: tuple[tuple[str, int | float], ...]

    def counts(self, heads: Mapping[str, int]) -> dict[tuple[str, ...], int]:
        """Return {attention types: number of heads to keep} for a model.

        Args:
            heads: {attention type: number of gates}

        Raises:
            ValueError: for a type without gates, for gates without a target, or a target above the number of gates
        """
        counts: dict[tuple[str, ...], int] = {}
        for attention_type, number in self.numbers:
            attention_types = tuple(heads) if attention_type == ALL else (attention_type,)
            if attention_type != ALL and attention_type not in heads:
                raise ValueError(
                    f"the target names {attention_type}, which has no gates: gates are on {', '.join(heads)}"
                )
            total = sum(heads[each] for each in attention_types)
            count = count_of(number, total)
            if count > total:
                raise ValueError(
                    f"the target is {count} heads of {attention_type or ', '.join(attention_types)}: there are {total}"
                )
            counts[attention_types] = count
        missing = [each for each in heads if not any(each in group for group in counts)]
        if missing:
            raise ValueError(f"{', '.join(missing)} has gates but no target: add {missing[0]}=N")
        return counts

    def __str__(self) -> str:
        # Without an exponent, which `parse_target` does not read.
        texts = [(each, format(Decimal(str(number)), "f")) for each, number in self.numbers]
        return ",".join(f"{each}={text}" if each else text for each, text in texts)


def parse_target(text: str) -> Target | None:
    """Parse a target: '12', '0.25' or 'enc-self=6,dec-enc=0.5'; None for an empty text. Raise ValueError."""
    if not text.strip():
        return None
    numbers: dict[str, int | float] = {}
    for part in text.split(","):
        attention_type, equals, number = part.rpartition("=")
        attention_type = attention_type.strip()
        mixed = bool(numbers) and (ALL in numbers or not attention_type)
        try:
            value = parse_count(number)
        except ValueError:
            value = math.nan
        valid = value >= 0 and (isinstance(value, int) or value <= 1)
        if not valid or bool(equals) != bool(attention_type) or attention_type in numbers or mixed:
            raise ValueError(f"the target is {quoted(text)}: it must be {FORMS}")
        numbers[attention_type] = value
    return Target(tuple(numbers.items()))
