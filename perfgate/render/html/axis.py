"""Positions on a page in percent: a logarithmic axis of ratios that all rows share, and linear axes of ns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from perfgate import units

_RATIO_TICKS = (0.1, 0.2, 0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_WIDEST = (1 / 12, 12.0)  # one absurd ratio must not flatten all others
_NARROWEST = (0.94, 1.06)
_STRETCH = 0.1  # overheads within about ± 10 % get most of the room: that is where budgets are missed or kept


@dataclass(frozen=True)
class Tick:
    at: float  # percent of the width
    text: str


@dataclass(frozen=True)
class RatioAxis:
    """Maps a ratio to 0..100 between ``low`` and ``high``, what lies outside to the edge.

    Linear in asinh(log(ratio) / 0.1): nearly linear around no overhead, logarithmic far from it.
    """

    low: float
    high: float

    def at(self, ratio: float) -> float:
        """The position in percent, between 0 and 100."""
        if ratio <= 0:
            return 0.0
        low, high = _stretched(self.low), _stretched(self.high)
        return 100.0 * min(max((_stretched(ratio) - low) / (high - low), 0.0), 1.0)

    def holds(self, ratio: float) -> bool:
        """Whether the ratio lies on the axis."""
        return self.low <= ratio <= self.high

    @property
    def ticks(self) -> list[Tick]:
        """No overhead (1×) first, then as many round overheads as have room, in the order of their places."""
        chosen = [Tick(self.at(1.0), "0")]
        for ratio in sorted(_RATIO_TICKS, key=lambda r: -abs(math.log(r))):
            place = self.at(ratio)
            inside = self.low < ratio < self.high and 7 < place < 93
            if inside and all(abs(place - tick.at) > 28 for tick in chosen):
                chosen.append(Tick(place, units.format_limit(ratio - 1)))
        return sorted(chosen, key=lambda tick: tick.at)


def ratio_axis(ratios: Iterable[float | None]) -> RatioAxis:
    """An axis that holds all ratios and 1, with a little room at its ends."""
    present = [ratio for ratio in ratios if ratio is not None and math.isfinite(ratio) and ratio > 0]
    low = min([*present, _NARROWEST[0]])
    high = max([*present, _NARROWEST[1]])
    room = (high / low) ** 0.04
    return RatioAxis(max(low / room, _WIDEST[0]), min(high * room, _WIDEST[1]))


def _stretched(ratio: float) -> float:
    return math.asinh(math.log(ratio) / _STRETCH)


@dataclass(frozen=True)
class LinearAxis:
    """Maps ns between ``low`` and ``high`` to 0..100."""

    low: float
    high: float

    def at(self, ns: float) -> float:
        """The position in percent, between 0 and 100."""
        share = (ns - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return 100.0 * min(max(share, 0.0), 1.0)

    def ticks(self, most: int = 5) -> list[Tick]:
        """Round values inside the axis, one unit for all, which the last one names."""
        step = _round_step((self.high - self.low) / most) if self.high > self.low else 0.0
        if not step:
            return [Tick(50.0, units.format_ns(self.low))]
        values = [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        values = [value for value in values if 3 <= self.at(value) <= 96] or values[:1]  # a label must not leave the page
        scale = units.time_scale([self.high])
        decimals = max(0, -math.floor(math.log10(step / scale.divisor) + 1e-9))
        return [
            Tick(self.at(value), f"{value / scale.divisor:.{decimals}f}{f' {scale.unit}' if value == values[-1] else ''}")
            for value in values
        ]


def _round_step(raw: float) -> float:
    """The next of 1, 2, 5, 10 × 10ⁿ."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
