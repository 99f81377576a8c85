"""Sizes that both kernels agree on, and what a mask lets through; imports neither torch nor triton."""

from __future__ import annotations

ROWS = 128  # statistics per query are padded to whole blocks of this many rows, whatever a kernel's own block is
SHARED = 128  # keys per block whose share of a query's probability the forward hands on: the backward's longest block of keys
SURVEYED = 512  # keys, and queries, for each of the forward's programs that look for the largest magnitudes, at most
DIMENSIONS = (64, 128)


def padded(rows: int) -> int:
    """``rows`` rounded up to whole blocks of :data:`ROWS`."""
    return -(-rows // ROWS) * ROWS


def surveyors(queries: int, keys: int, group: int) -> int:
    """How many programs each of a group's query heads has to survey its queries and its part of the group's keys."""
    return max(-(-queries // SURVEYED), -(-keys // (SURVEYED * group)))


def visible_pairs(q_len: int, kv_len: int, causal: bool, window: int | None) -> int:
    """How many (query, key) pairs the mask lets through, of one head; aligned at the bottom right."""
    if not causal and window is None:
        return q_len * kv_len
    total = 0
    for query in range(q_len):
        last = min(query + kv_len - q_len, kv_len - 1)
        first = 0 if window is None else max(0, last - window + 1)
        total += max(0, last - first + 1)
    return total


def statistics_bytes(batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, surveyed: bool) -> int:
    """What the forward keeps for the backward beside its output: log-sum-exp; queries' shares, the surveyors' maxima."""
    survey = 4 * batch * heads * (padded(q_len) + 3 * surveyors(q_len, kv_len, heads // kv_heads))
    return 4 * batch * heads * q_len + (survey if surveyed else 0)


def backward_bytes(batch: int, heads: int, q_len: int, dim: int, rule: str) -> int:
    """Workspace of the backward: two or, to be exact, three statistics a query; 4 bytes per element of dQ if it is summed."""
    rows = batch * heads * padded(q_len)
    return (12 if rule == "exact" else 8) * rows + (0 if rule == "two_pass" else 4 * rows * dim)
