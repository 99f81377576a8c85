"""Budgets proposed from what a run measured: cost + 3 × minimum detectable effect, for a person to fill in the rest. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from perfgate.checks import MEMORY_FLOOR_BYTES
from perfgate.model import Comparison, GateResult
from perfgate.timing import SPARE_MDE
from perfgate.units import format_bytes, format_percent

MEMORY_SPARE = 1.10


def suggest(result: GateResult) -> str:
    """``[[budget]]`` entries as TOML for every judged range of ``result`` that was measured, the rest as comments.

    ``reason``, ``owner`` and ``expires`` are left empty, which ``budget check`` and ``run`` refuse until they are filled in.
    """
    gpu = result.environment.get("gpu") or {}
    card = gpu.get("name") or result.run.device
    head = f"# measured on {card}, {result.run.started[:10]}, run {result.run.id}: {result.run.command}"
    judged = [one for one in result.comparisons if one.judged]
    return "\n".join([_comment(head[2:]), "", *(line for one in judged for line in _entry(one))])


def overhead(one: Comparison) -> float | None:
    """The proposed overhead, rounded up to 0.1 %: measured + 3 × MDE; ``None`` where there is no interval."""
    if one.ratio is None or one.mde is None:
        return None
    return math.ceil(round((one.ratio - 1 + SPARE_MDE * one.mde) * 1000, 6)) / 1000


def _entry(one: Comparison) -> Iterator[str]:
    proposed = overhead(one)
    if proposed is None or one.status in ("error", "skipped") or proposed <= -1:
        why = one.reasons[0].text if one.reasons else "no interval was measured"
        yield from (_comment(f"{one.name}: nothing to propose: {why}"), "")
        return
    measured = format_percent((one.ratio or 1) - 1)
    yield _comment(
        f"{one.implementation}: {one.metric} {measured}, detectable {format_percent(one.mde, sign=False)}, {one.status}"
    )
    yield "[[budget]]"
    yield f"range = {json.dumps(one.op if one.range.endswith('::') else one.range)}"
    yield f"metric = {json.dumps(one.metric)}"
    yield f'overhead = "{proposed * 100:.1f}%"'
    yield from _memory(one)
    yield from ('reason = ""', 'owner = ""', 'expires = ""', "")


def _memory(one: Comparison) -> Iterator[str]:
    default, own = one.memory.default_bytes, one.memory.deterministic_bytes
    if default is None or own is None:
        return
    extra = max(0, own - default)
    mebibytes = math.ceil(max(extra * MEMORY_SPARE, MEMORY_FLOOR_BYTES) / 2**20)
    yield f'memory = "{mebibytes}MiB"  # measured: {format_bytes(default)} -> {format_bytes(own)}'


def _comment(text: str) -> str:
    return "# " + "".join(letter if letter.isprintable() else " " for letter in text)
