"""How many heads to keep: a number (12), or a fraction of them with a decimal point (0.5)."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal


def parse_count(text: str) -> int | float:
    """Parse a number, an int, or a finite fraction, a float. Raise ValueError, without a message for the user."""
    value = float(text) if "." in text else int(text)
    if abs(value) == math.inf:
        raise ValueError
    return value


def count_of(number: int | float, total: int) -> int:
    """Return how many of `total` heads a number, an int, or a fraction, a float, is."""
    return number_of_heads(number, total) if isinstance(number, float) else number


def number_of_heads(fraction: float | Decimal, total: int) -> int:
    """Return how many of `total` heads a fraction is. Halves are rounded up: of 5 heads, 0.5 is 3."""
    return int((Decimal(str(fraction)) * total).to_integral_value(ROUND_HALF_UP))  # of 0.1 as it is written
