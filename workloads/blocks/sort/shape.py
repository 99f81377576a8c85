"""How many passes a sort takes and what it allocates; no torch here, so that ops.py can declare its workspace."""

from __future__ import annotations

TILE = 256  # entries that one program ranks by comparing all pairs
MOST_COUNTERS = 2**21  # of one pass: more, and the bits are split over two passes or more


def passes(entries: int, bins: int) -> list[tuple[int, int]]:
    """(shift, number of digit values) of each pass, lowest bits first; ``bins`` itself is a value too: the dropped ones."""
    tiles = max(1, -(-entries // TILE))
    if (bins + 1) * tiles <= MOST_COUNTERS:
        return [(0, bins + 1)]
    bits = bins.bit_length()
    for count in range(2, bits + 1):
        width = -(-bits // count)
        if 2**width * tiles <= MOST_COUNTERS or width <= 6:
            break
    return [(shift, min(2**width, (bins >> shift) + 1)) for shift in range(0, bits, width)]


def workspace_bytes(entries: int, bins: int) -> int:
    """Bytes allocated at most at one time: ranks, counters and their scan, sorted keys and rows of two passes."""
    tiles = max(1, -(-entries // TILE))
    digits = passes(entries, bins)
    counters = max(values for _, values in digits) * tiles
    return entries * 4 + 2 * counters * 4 + min(2, len(digits)) * entries * 8 + bins + 1


def kept_bytes(entries: int, bins: int) -> int:
    """Bytes that the sorted result holds: keys and rows, and ``present`` with the counters whose allocation it shares."""
    tiles = max(1, -(-entries // TILE))
    counters = max(values for _, values in passes(entries, bins)) * tiles
    return entries * 8 + counters * 4 + bins + 1
