"""Numbers for people: ns, bytes, ratios and percentages as text. Nothing here rounds what is stored.

A column of a table shares one unit and one number of decimals (:func:`time_scale`, :func:`byte_scale`), so that its figures
can be compared by eye; a figure that stands alone picks its own (:func:`format_ns`, :func:`format_bytes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MISSING = "–"  # not measured; never "0"
MINUS = "−"

_TIME = (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9))
_TOO_LONG = 1e7  # a figure this large takes the next unit
_BYTES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))


@dataclass(frozen=True)
class Scale:
    """A unit that a column shares: ``format(value)`` divides, rounds to ``decimals`` and leaves the unit to the header."""

    unit: str
    divisor: float
    decimals: int

    def format(self, value: float | None) -> str:
        """The value in this unit without the unit's name; ``–`` for ``None`` and NaN."""
        if value is None or math.isnan(value):
            return MISSING
        return _signed(f"{value / self.divisor:.{self.decimals}f}")

    def difference(self, value: float | None) -> str:
        """:meth:`format` with a sign always; what is zero, or rounds to it, has none."""
        text = self.format(value)
        if text == MISSING or not text.strip("0.−"):
            return text.lstrip(MINUS)
        return text if text.startswith(MINUS) else f"+{text}"


def time_scale(values: Iterable[float | None]) -> Scale:
    """The scale for a column of ns: the smallest figure's unit, with four digits of it while the largest fits."""
    return _scale(values, _TIME)


def byte_scale(values: Iterable[float | None]) -> Scale:
    """The scale for a column of bytes."""
    return _scale(values, _BYTES)


def format_ns(value: float | None) -> str:
    """``482.1 us``, ``1.03 ms``, ``3 ns``; ``–`` where not measured."""
    return _alone(value, _TIME)


def format_bytes(value: float | None) -> str:
    """``512 MiB``, ``1.5 GiB``, ``12 B``; ``–`` where not measured."""
    return _alone(value, _BYTES)


LARGEST = 100.0  # more than +10000 % is noise: its digits say nothing


def format_percent(fraction: float | None, *, decimals: int = 1, sign: bool = True) -> str:
    """A fraction as a percentage: 0.123 is ``+12.3 %``, 1.234 is ``+123 %``; what rounds to zero has no sign."""
    number = percent_number(fraction, decimals=decimals, sign=sign)
    return number if number == MISSING else f"{number} %"


def percent_number(fraction: float | None, *, decimals: int = 1, sign: bool = True) -> str:
    """:func:`format_percent` without the ``%``, for columns whose header carries it."""
    if fraction is None or math.isnan(fraction):
        return MISSING
    if fraction >= LARGEST:
        return f"over {'+' if sign else ''}{LARGEST * 100:.0f}"
    text = f"{fraction * 100:{'+' if sign else ''}.{decimals if abs(fraction) < 1 else 0}f}"
    return _signed(text.lstrip("+-") if float(text) == 0 else text)


def format_limit(fraction: float | None) -> str:
    """A budget's overhead: 0.15 is ``+15 %``, -0.5 is ``−50 %``, 0.0125 is ``+1.25 %``, 0 is ``0 %``."""
    if fraction is None:
        return MISSING
    text = f"{fraction * 100:+.4g}"
    return _signed(text.lstrip("+-") if float(text) == 0 else text) + " %"


def format_ratio(ratio: float | None) -> str:
    """``1.123×``; three decimals."""
    return MISSING if ratio is None or math.isnan(ratio) else f"{ratio:.3f}×"


def overhead(ratio: float | None) -> float | None:
    """The overhead of a ratio deterministic / default: 1.15 is 0.15."""
    return None if ratio is None else ratio - 1.0


def _scale(values: Iterable[float | None], ladder: tuple[tuple[str, float], ...]) -> Scale:
    present = sorted(abs(value) for value in values if value is not None and not math.isnan(value) and value != 0)
    if not present:
        return Scale(*ladder[0], 0)
    fitting = [rung for rung in ladder if present[-1] / rung[1] < _TOO_LONG] or [ladder[-1]]
    unit, divisor = max(fitting[0], _rung(present[0], ladder), key=lambda rung: rung[1])
    room = max(0, 6 - len(f"{present[-1] / divisor:.0f}"))  # 15859.9, not 15859.988
    decimals = 0 if divisor == 1.0 else min(3, room, _decimals(present[0] / divisor, digits=4))
    return Scale(unit, divisor, decimals)


def _alone(value: float | None, ladder: tuple[tuple[str, float], ...]) -> str:
    if value is None or math.isnan(value):
        return MISSING
    unit, divisor = _rung(abs(value), ladder)
    scaled = value / divisor
    if divisor == 1.0 or (scaled.is_integer() and ladder is _BYTES):
        return _signed(f"{scaled:.0f} {unit}")
    return _signed(f"{scaled:.{_decimals(abs(scaled))}f} {unit}")


def _rung(size: float, ladder: tuple[tuple[str, float], ...]) -> tuple[str, float]:
    """The largest unit of which there is at least one whole (after rounding to three digits)."""
    chosen = ladder[0]
    for rung in ladder:
        if float(f"{size / rung[1]:.3g}") >= 1.0:
            chosen = rung
    return chosen


def _decimals(size: float, digits: int = 3) -> int:
    """Decimals that show ``digits`` digits, and always one of what is between a hundred and a thousand: 482.1, 48.2, 3.55."""
    rounded = float(f"{size:.{digits}g}")
    whole = len(f"{rounded:.0f}") if rounded >= 1 else 0
    return max(digits - whole, 1 if whole == 3 else 0)


def _signed(text: str) -> str:
    return text.replace("-", MINUS)
