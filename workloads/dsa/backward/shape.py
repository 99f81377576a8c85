"""How the backward cuts heads and queries, and what it allocates; no torch here, so that ops.py can declare its workspace."""

from __future__ import annotations

from ...blocks.segment.shape import workspace_bytes as partial_bytes
from ...blocks.sort.shape import workspace_bytes as sort_bytes

MOST_HEADS = 64  # that one program contracts at once
WORKSPACE = 5 * 2**29  # 2.5 GiB: what the sorted form may take by default


def tile_of(heads: int) -> int:
    """Heads that one program contracts: a power of two from 16 to 64; the last tile may have fewer."""
    return min(MOST_HEADS, max(16, 1 << (heads - 1).bit_length()))


def tiles_of(heads: int) -> int:
    """Tiles of heads of one query."""
    return -(-heads // tile_of(heads))


def sums_bytes(keys: int, dim: int) -> int:
    """The f32 sums of dkv."""
    return keys * dim * 4


def exact_bytes(keys: int, dim: int) -> int:
    """Sums and, per kv row: count, exponents, exponents of the second run and largest bound (4 each), units (8), failed (1)."""
    return sums_bytes(keys, dim) + 25 * keys


def sorted_bytes(at_a_time: int, queries: int, keys: int, chosen: int, dim: int, lengths: bool = True) -> int:
    """The peak beyond dq and dkv: staged contributions of ``at_a_time`` queries, f32 sums, and the most of what is beside them.

    Beside them: the sort's own, or sorted keys and rows, the fold's parts and its f32 result (of one chunk: that is the sums).
    Ids are copied where ``lengths`` cut them. dkv is allocated after all that, beside the sums alone.
    """
    entries = at_a_time * chosen
    running = sums_bytes(keys, dim) if at_a_time < queries else 0
    fold = entries * 8 + keys + 1 + partial_bytes(entries, dim) + sums_bytes(keys, dim)
    copied = queries * chosen * 4 if lengths else 0
    adding = entries * dim * 2 + running + max(sort_bytes(entries, keys), fold)
    return copied + max(adding - keys * dim * 2, sums_bytes(keys, dim))


def queries_at_a_time(queries: int, keys: int, chosen: int, dim: int, max_workspace: int) -> int:
    """The most queries, a power of two of them or all, whose contributions can be staged in ``max_workspace`` bytes.

    Raises ``MemoryError`` with the formula's figures where one query is too many.
    """
    at_a_time = max(1, queries)
    while at_a_time > 1 and sorted_bytes(at_a_time, queries, keys, chosen, dim) > max_workspace:
        at_a_time = 1 << ((at_a_time - 1).bit_length() - 1)
    need = sorted_bytes(at_a_time, queries, keys, chosen, dim)
    if need > max_workspace:
        raise MemoryError(
            f"sorted_segment needs {need} bytes for one query at a time: {chosen} rows of {dim} staged, up to 2 x {keys} rows"
            f" of {dim} f32 sums, ids, sort, parts; max_workspace is {max_workspace}: raise it, or take another implementation"
        )
    return at_a_time
