"""Which blocks of queries survey which keys and values while flash-attn-4's forward runs. Integers, or the kernel's own.

A forward's CTA holds one block of query rows of one kv head (with grouped heads the rows of the whole group, packed), walks the
keys that it sees, and has three warps that do nothing. How long it lives follows from how many keys it sees, so those that see
few survey nothing: else they would end late, and they run last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TILES = {64: 192, 128: 128}  # query rows of a block, by head dimension, as flash-attn-4 chooses them on Hopper
WARPS = 3  # of the four that fetch: those that do nothing


def parts(rows: int, kv_rows: int, group: int, dim: int, causal: bool, window: int | None) -> int:
    """How many parts of a kv head's rows are surveyed each by itself: one per warp and share."""
    return WARPS * shares(rows, kv_rows, group, TILES[dim], causal, window)


def blocks(rows: int, group: int, tile: int) -> int:
    """Of queries: how many blocks of ``tile`` rows hold one kv head's ``rows`` of each of ``group`` heads."""
    return -(-rows * group // tile)


def shares(rows: int, kv_rows: int, group: int, tile: int, causal: bool, window: int | None) -> int:
    """How many blocks, the last ones, survey: those whose last row sees at least half the keys that the last row of all sees.

    At least one. Without a mask all blocks see all keys.
    """
    every = blocks(rows, group, tile)
    if not causal and window is None:
        return every
    seen = kv_rows if window is None else min(window, kv_rows)
    first_row = max(rows - kv_rows + -(-seen // 2) - 1, 0)  # that sees half of that
    return every - min(first_row * group // tile, every - 1)


def share_rows(share: Any, count: Any, kv_rows: Any, smaller: Callable[..., Any] = min) -> tuple[Any, Any]:
    """First and end of the kv rows that share ``share`` of ``count`` surveys; none where the first is not below the end."""
    each = (kv_rows + count - 1) // count
    first = share * each
    return first, smaller(first + each, kv_rows)
