"""Two runs compared value by value, bit for bit; what is missing on one side is a difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfgate.determinism.metrics.runs import Run, paired
from perfgate.determinism.metrics.timing_tags import excluded
from perfgate.determinism.metrics.values import Scalar, Stream
from perfgate.errors import UsageError

TRUSTED_DIGITS = 9  # significant decimal digits that tell every float32 apart (IEEE 754)


@dataclass(frozen=True)
class Difference:
    """One value that is not the same in both runs; ``None`` where a run lacks it."""

    step: int
    rank: str
    tag: str
    first: Scalar | None
    second: Scalar | None

    @property
    def delta(self) -> float:
        """|first − second|; infinite where one is missing or only one is NaN; 0 where they differ only in bits."""
        if self.first is None or self.second is None:
            return math.inf
        a, b = self.first.value, self.second.value
        if a == b or (math.isnan(a) and math.isnan(b)):
            return 0.0
        return math.inf if math.isnan(a - b) else abs(a - b)


@dataclass(frozen=True)
class Verification:
    """The outcome for two runs. ``differences`` are in order of step, rank and tag."""

    values: int  # compared or missing on one side
    tags: int
    steps: int
    ranks: int
    differences: tuple[Difference, ...]
    missing_ranks: tuple[str, ...]  # "rank3 (only in the first run)"
    missing_tags: tuple[str, ...]
    excluded: tuple[str, ...]  # tags left out: time, speed, memory, or as asked
    not_scalars: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def compare_runs(first: Run, second: Run, *, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> Verification:
    """Compares every scalar of both runs that is not excluded.

    Raises :class:`UsageError` where nothing would be compared.
    """
    left_out: set[str] = set()
    keyed = [_keyed(streams, exclude, include, left_out) for streams in paired(first, second)]
    keys = sorted(keyed[0].keys() | keyed[1].keys(), key=lambda key: (key[2], key[0], key[1], key[3]))
    if not keys:
        raise UsageError(f"every tag is excluded: {', '.join(sorted(left_out))}", "bring one back with --include PATTERN")
    differences = [
        Difference(step, rank, tag, keyed[0].get((rank, tag, step, n)), keyed[1].get((rank, tag, step, n)))
        for rank, tag, step, n in keys
        if keyed[0].get((rank, tag, step, n)) != keyed[1].get((rank, tag, step, n))
    ]
    sides = [{rank for rank, _, _, _ in side} for side in keyed]
    tags = [{tag for _, tag, _, _ in side} for side in keyed]
    return Verification(
        len(keys),
        len(tags[0] | tags[1]),
        len({step for _, _, step, _ in keys}),
        len(sides[0] | sides[1]),
        tuple(differences),
        _one_sided(sides),
        _one_sided(tags),
        tuple(sorted(left_out)),
        tuple(sorted({tag for run in (first, second) for stream in run.streams.values() for tag in stream.not_scalars})),
        tuple(_rounded(first, second)),
    )


def _keyed(
    streams: Mapping[str, Stream], exclude: Sequence[str], include: Sequence[str], left_out: set[str]
) -> dict[tuple[str, str, int, int], Scalar]:
    found: dict[tuple[str, str, int, int], Scalar] = {}
    for rank, stream in streams.items():
        dropped = {tag for tag in stream.tags() if excluded(tag, exclude, include)}
        left_out |= dropped
        found |= {(rank, tag, step, n): scalar for (tag, step, n), scalar in stream.scalars.items() if tag not in dropped}
    return found


def _one_sided(sides: Sequence[set[str]]) -> tuple[str, ...]:
    first, second = sides
    found = [f"{name} (only in the first run)" for name in sorted(first - second)]
    return (*found, *(f"{name} (only in the second run)" for name in sorted(second - first)))


def _rounded(first: Run, second: Run) -> list[str]:
    digits = max(stream.most_digits for run in (first, second) for stream in run.streams.values())
    if digits == 0 or digits >= TRUSTED_DIGITS:
        return []
    return [
        f"no value has more than {digits} significant digits: these logs look rounded, so equal text does not show equal "
        f"bits; write at least {TRUSTED_DIGITS} digits for float32, 17 for float64"
    ]


def growth(differences: Sequence[Difference], tag: str) -> list[tuple[int, float]]:
    """Per step the largest |delta| of ``tag`` over ranks, for the steps where it differs."""
    largest: dict[int, float] = {}
    for one in differences:
        if one.tag == tag:
            largest[one.step] = max(largest.get(one.step, 0.0), one.delta)
    return sorted(largest.items())
