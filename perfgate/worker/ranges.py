"""Opens the ranges that the profiler records: NVTX under nsys, ``record_function`` under torch.profiler, else nothing.

Domain ``perfgate`` holds measured instances, ``perfgate.aux`` everything around them (flush, set-up, warm-up).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch.profiler import record_function

MEASURED = "perfgate"
AUX = "perfgate.aux"


class Ranges(Protocol):
    """Marks a stretch of the program for a profiler."""

    def push(self, domain: str, name: str) -> None:
        """Opens a range on this thread."""

    def pop(self, domain: str) -> None:
        """Closes the innermost range of ``domain`` on this thread."""


class NoRanges:
    """For unprofiled children."""

    def push(self, domain: str, name: str) -> None:
        pass

    def pop(self, domain: str) -> None:
        pass


class NvtxRanges:
    """NVTX push/pop ranges through the nvtx package, which registers each name once."""

    def push(self, domain: str, name: str) -> None:
        import nvtx

        nvtx.push_range(name, domain=domain)

    def pop(self, domain: str) -> None:
        import nvtx

        nvtx.pop_range(domain=domain)


class RecordFunctionRanges:
    """torch.profiler's annotations, named ``domain::name``."""

    def __init__(self) -> None:
        self._open: list[record_function] = []

    def push(self, domain: str, name: str) -> None:
        opened = record_function(f"{domain}::{name}")
        opened.__enter__()
        self._open.append(opened)

    def pop(self, domain: str) -> None:  # noqa: ARG002 - ranges of all domains share one stack here
        self._open.pop().__exit__(None, None, None)


def ranges_for(profiler: str) -> Ranges:
    """The kind that ``RunSpec.profiler`` needs: nsys, torch or none."""
    kinds: dict[str, type[NvtxRanges] | type[RecordFunctionRanges] | type[NoRanges]] = {
        "nsys": NvtxRanges,
        "torch": RecordFunctionRanges,
        "none": NoRanges,
    }
    return kinds[profiler]()


@contextmanager
def within(ranges: Ranges, domain: str, name: str) -> Iterator[None]:
    """A range around the block; closed also when it raises."""
    ranges.push(domain, name)
    try:
        yield
    finally:
        ranges.pop(domain)
