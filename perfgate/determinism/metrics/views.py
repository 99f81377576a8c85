"""The outcome of ``perfgate verify`` for people and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from perfgate.determinism.metrics.comparison import Difference, Verification, growth

SCHEMA_VERSION = 1
TAGS_SHOWN = 20
WIDTH = 60
_BARS = "▁▂▃▄▅▆▇█"


def as_text(seen: Verification, first: str, second: str) -> str:
    """The verdict with its counts first, then the first difference, its growth, the tags, what was left out."""
    counts = f"{seen.values} values, {seen.tags} tags, {seen.steps} steps, {seen.ranks} ranks"
    verdict = "EQUAL" if seen.equal else "DIFFERENT"
    lines = [f"{verdict}: {len(seen.differences)} of {counts} differ", f"  first run   {first}", f"  second run  {second}"]
    if seen.differences:
        lines += _differences(seen)
    lines += [f"missing: {name}" for name in (*seen.missing_ranks, *seen.missing_tags)]
    lines += [f"warning: {text}" for text in seen.warnings]
    for what, tags in (("left out (time, speed, memory, or as asked)", seen.excluded), ("not scalars", seen.not_scalars)):
        if tags:
            lines.append(f"{what}: {', '.join(tags)}")
    return "\n".join(lines)


def _differences(seen: Verification) -> list[str]:
    first = seen.differences[0]
    lines = [f"first difference: step {first.step}, rank {first.rank}, {first.tag}: {_told(first)}"]
    course = [(step, delta) for step, delta in growth(seen.differences, first.tag) if math.isfinite(delta) and delta > 0]
    if course:
        lines += [f"growth of |delta| in {first.tag}, steps {course[0][0]} to {course[-1][0]}, log scale {_range(course)}:"]
        lines += [f"  {plot([delta for _, delta in course])}"]
    by_tag: dict[str, list[Difference]] = {}
    for one in seen.differences:
        by_tag.setdefault(one.tag, []).append(one)
    lines.append("tag: first step, differing values, largest |delta|")
    for tag, found in list(by_tag.items())[:TAGS_SHOWN]:
        lines.append(f"  {tag}: {found[0].step}, {len(found)}, {max(one.delta for one in found):.3g}")
    if len(by_tag) > TAGS_SHOWN:
        lines.append(f"  and {len(by_tag) - TAGS_SHOWN} tags more (--format json has all)")
    return lines


def _told(one: Difference) -> str:
    if one.first is None or one.second is None:
        return f"only in the {'second' if one.first is None else 'first'} run: {one.first or one.second}"
    kinds = f", {one.first.dtype} against {one.second.dtype}" if one.first.dtype != one.second.dtype else ""
    return f"{one.first} against {one.second}, |delta| {one.delta:.3g}{kinds}"


def _range(course: Sequence[tuple[int, float]]) -> str:
    deltas = [delta for _, delta in course]
    return f"{min(deltas):.3g} to {max(deltas):.3g}"


def plot(values: Sequence[float], width: int = WIDTH) -> str:
    """Positive values as at most ``width`` bars on a logarithmic scale; several steps in one bar show the largest."""
    size = math.ceil(len(values) / width)
    logs = [math.log10(max(values[at : at + size])) for at in range(0, len(values), size)]
    low, high = min(logs), max(logs)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in logs)


def as_json(seen: Verification, first: str, second: str) -> str:
    """Everything; numbers that JSON lacks (NaN, infinity) as text beside the bit patterns."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "equal": seen.equal,
        "runs": [first, second],
        "counts": {
            "values": seen.values,
            "differing": len(seen.differences),
            "tags": seen.tags,
            "steps": seen.steps,
            "ranks": seen.ranks,
        },
        "differences": [_as_dict(one) for one in seen.differences],
        "missing_ranks": seen.missing_ranks,
        "missing_tags": seen.missing_tags,
        "excluded": seen.excluded,
        "not_scalars": seen.not_scalars,
        "warnings": seen.warnings,
    }
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)


def _as_dict(one: Difference) -> dict[str, object]:
    return {
        "step": one.step,
        "rank": one.rank,
        "tag": one.tag,
        "first": None if one.first is None else str(one.first),
        "second": None if one.second is None else str(one.second),
        "delta": one.delta if math.isfinite(one.delta) else None,
    }
