"""Who owns which slice: the order of every addition, fixed by the numbers of the CTAs alone; no torch here.

The grid of the stock kernel is one CTA per (query, tile of heads), numbered query · tiles + tile. CTA c adds to slice c mod
slices, after the CTA of the same slice before it has left. So each slice receives its CTAs in ascending order, and the slices
are folded in ascending order at the end. A slice is as large as the whole accumulator: their number follows the CTAs that can
run at once (one per SM), cut to ``max_workspace``, never from the number of kv rows.
"""

from __future__ import annotations

from . import shape


def slices_of(ctas: int, concurrent: int, keys: int, dim: int, max_workspace: int) -> int:
    """Slices for a grid of ``ctas`` of which ``concurrent`` run at once. Raises :class:`MemoryError` if not even one fits."""
    each = shape.sums_bytes(keys, dim)
    fitting = max_workspace // each
    if fitting < 1:
        raise MemoryError(
            f"one slice is {shape.rows(keys)} rows x {dim} columns x 4 bytes = {each}, max_workspace is {max_workspace} bytes"
        )
    return max(1, min(ctas, concurrent, fitting))


def slice_of(cta: int, slices: int) -> int:
    """The slice that a CTA adds to."""
    return cta % slices


def before(cta: int, slices: int, empty: frozenset[int] = frozenset()) -> int:
    """The CTA whose additions go before those of ``cta``: the last one before it in its slice that adds; −1 if none does."""
    earlier = cta - slices
    while earlier >= 0 and earlier in empty:
        earlier -= slices
    return max(earlier, -1)


def split_bytes(queries: int, keys: int, heads: int, dim: int, slices: int) -> int:
    """Statistics, slices, and per CTA a count of threads that have left and whom to wait for (4 bytes each)."""
    ctas = queries * shape.tiles_of(heads)
    return shape.stats_bytes(queries, heads) + slices * shape.sums_bytes(keys, dim) + heads * 4 + shape.round_up(ctas, 64) * 8
