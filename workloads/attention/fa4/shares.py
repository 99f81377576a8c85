"""Which blocks of queries survey which keys and values while flash-attn-4's forward runs. Integers, or the kernel's own.

A forward's CTA holds one block of query rows of one kv head (with grouped heads the rows of the whole group, packed), walks the
keys that it sees, and has three warps that do nothing: those of all blocks share the head's keys evenly. There are as many
extents as there are shares, and every program of the kernel behind reads them: where a head has many blocks, the last ones
alone survey. They see most keys under a causal mask, and so live long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TILES = {64: 192, 128: 128}  # query rows of a block, by head dimension, as flash-attn-4 chooses them on Hopper
WARPS = 3  # of the four that fetch: those that do nothing
MOST = 64  # blocks of a head that survey


def parts(rows: int, group: int, dim: int) -> int:
    """How many parts of a kv head's rows are surveyed each by itself: one per warp and share."""
    return WARPS * shares(rows, group, TILES[dim])


def shares(rows: int, group: int, tile: int) -> int:
    """How many blocks, the last ones, survey, of those of ``tile`` rows that hold ``rows`` of each of a kv head's ``group``."""
    return min(-(-rows * group // tile), MOST)


def share_rows(share: Any, count: Any, kv_rows: Any, smaller: Callable[..., Any] = min) -> tuple[Any, Any]:
    """First and end of the kv rows that share ``share`` of ``count`` surveys; none where the first is not below the end."""
    each = (kv_rows + count - 1) // count
    first = share * each
    return first, smaller(first + each, kv_rows)
