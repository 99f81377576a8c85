"""Sizes of the segmented sum's intermediates; no torch here, so that ops.py can declare its workspace."""

from __future__ import annotations

GROUP = 16  # parts that one program folds above the first level


def workspace_bytes(entries: int, width: int, chunk_size: int = 32) -> int:
    """Bytes of partial sums that ``sum_segments`` needs: two f32 rows and one key per chunk, over all levels."""
    total = 0
    while entries > 0:
        chunks = -(-entries // chunk_size)
        total += chunks * (2 * width * 4 + 4)
        if chunks == 1:
            break
        entries, chunk_size = chunks, GROUP
    return total
