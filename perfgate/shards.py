"""``--shard i/n``: which (op, case) pairs of a plan one of n CI jobs measures. Pure.

The split depends on the plan alone, so every job works it out for itself: pairs with the most variants first, each to the job
that has the fewest variants so far. What is compared with each other stays together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from perfgate.errors import UsageError
from perfgate.model import Variant

_SHARD = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


def parse_shard(text: str) -> tuple[int, int]:
    """``"2/5"`` as (2, 5). Raises :class:`UsageError` for anything that is no i/n with 1 <= i <= n."""
    match = _SHARD.fullmatch(text)
    number, total = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"shard {text!r} is none", "write --shard 1/4 to --shard 4/4, a job each; `perfgate merge` joins them")
    return number, total


def of_shard(variants: Sequence[Variant], shard: str) -> tuple[Variant, ...]:
    """The variants of the shard ``"i/n"``, in the plan's order.

    Raises :class:`UsageError` where the plan has fewer than n (op, case) pairs: a job would have nothing to measure.
    """
    number, total = parse_shard(shard)
    weights = Counter((one.op, one.case) for one in variants)
    if total > len(weights):
        text = f"--shard {shard}: the plan has only {len(weights)} (op, case) pairs, so some job would measure nothing"
        raise UsageError(text, f"use at most {len(weights)} shards")
    loads = [0] * total
    mine = set()
    for pair, weight in sorted(weights.items(), key=lambda item: (-item[1], item[0])):
        lightest = loads.index(min(loads))
        loads[lightest] += weight
        if lightest == number - 1:
            mine.add(pair)
    return tuple(one for one in variants if (one.op, one.case) in mine)
