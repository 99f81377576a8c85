"""Where the segmented sum cuts, and the size of its intermediates; no torch here, so that ops.py can declare its workspace.

The cuts are part of the bits: they stand here, not in the table of launch configurations, and are the same on every card.
"""

from __future__ import annotations

from ..sort import shape as sort

MANY = 65536  # rows from which on a program folds the longer chunk: fewer parts, and enough programs all the same
CHUNK, LONG_CHUNK = 64, 128  # sorted rows that one program folds
GROUP = 8  # parts that one program folds above the first level
LAST = 16  # parts that one program folds where that ends the fold


def levels(entries: int) -> list[tuple[int, int]]:
    """(entries, entries per program) of each level; a level leaves one part per program, the last one has one program."""
    found = []
    size = LONG_CHUNK if entries >= MANY else CHUNK
    while entries > 0:
        found.append((entries, size))
        programs = -(-entries // size)
        if programs == 1:
            break
        entries, size = programs, LAST if programs <= LAST else GROUP
    return found


def workspace_bytes(entries: int, width: int) -> int:
    """Bytes of partial sums that ``sum_segments`` needs: two f32 rows and one key per program, over all levels."""
    return sum(-(-count // size) * (2 * width * 4 + 4) for count, size in levels(entries))


def sorted_sum_bytes(entries: int, bins: int, width: int, output: int) -> int:
    """Bytes beyond the ``output`` bytes of a sum after a sort: the sort has ended when the output is allocated."""
    sorting = sort.workspace_bytes(entries, bins) - output
    return max(sorting, sort.kept_bytes(entries, bins) + workspace_bytes(entries, width))
