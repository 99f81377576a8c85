"""Where everything lies that the stock kernel and its hooked forms allocate; no torch here, so that ops.py can declare it.

Stock scatters f32 contributions into ``rows(keys)`` × ``dim`` sums whose columns are permuted in every 16 (:func:`place_of`).
The hooked forms put what they need behind those sums, in the same allocation, because the scatter is handed nothing but it.
"""

from __future__ import annotations

BLOCK = 64  # kv rows, and heads, of one tile of the stock kernel
THREADS = 128  # of the warp group that scatters
STRIDE = 256  # about as many queries are counted to choose the quanta
SLICE_WORKSPACE = 5 * 2**29  # 2.5 GiB: what slices may take by default


def round_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def rows(keys: int) -> int:
    """Rows of the accumulator: whole blocks."""
    return round_up(keys, BLOCK)


def tiles_of(heads: int) -> int:
    """Blocks of heads of one query; each is a CTA of its own."""
    return -(-heads // BLOCK)


def place_of(column: int) -> int:
    """Where the accumulator keeps ``column``: the two pairs of 16 columns that one lane holds lie side by side."""
    group, inside = divmod(column, 16)
    half, rest = divmod(inside, 8)
    return group * 16 + rest // 2 * 4 + half * 2 + rest % 2


def stats_bytes(queries: int, heads: int) -> int:
    """Statistics of whole blocks of queries: dPsum and the log2 LSE, f32."""
    return 2 * round_up(round_up(queries, BLOCK) * heads * 4, 128)


def sums_bytes(keys: int, dim: int) -> int:
    """One f32 accumulator of dkv."""
    return rows(keys) * dim * 4


def stock_bytes(queries: int, keys: int, heads: int, dim: int) -> int:
    """What the stock kernel takes beside its gradients: statistics, accumulator and the gradient of the sink."""
    return stats_bytes(queries, heads) + sums_bytes(keys, dim) + heads * 4


def tables_bytes(keys: int) -> int:
    """Per row: the constant C (4 bytes), certificate (8), and for the second run a count and a maximum (4 each); one flag.

    C's exponent, a byte, lies where the maximum goes later.
    """
    return rows(keys) * 20 + BLOCK * 4


def exact_bytes(queries: int, keys: int, heads: int, dim: int) -> int:
    """Stock's workspace and the tables."""
    return stock_bytes(queries, keys, heads, dim) + tables_bytes(keys)


def sampled_every(queries: int) -> int:
    """Every how many queries one is counted to estimate how often each row is hit."""
    return max(1, queries // STRIDE)
