"""Work on several portions at the same time: numpy lets go of the interpreter while it works."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
WORKERS = min(4, os.cpu_count() or 1)


def side_by_side(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``work(item)`` of every item, in their order. An error of any of them is raised again.

    The standard library's executor does the same, but its import alone takes as long as a small trace.
    """
    found: dict[int, R] = {}
    failed: list[BaseException] = []
    left = iter(range(len(items)))

    def run() -> None:
        for place in left:
            if failed:
                return
            try:
                found[place] = work(items[place])
            except BaseException as error:
                failed.append(error)

    others = [threading.Thread(target=run, daemon=True) for _ in range(min(WORKERS, len(items)) - 1)]
    for other in others:
        other.start()
    run()
    for other in others:
        other.join()
    if failed:
        raise failed[0]
    return [found[place] for place in range(len(items))]


def both(one: Callable[[], R], other: Callable[[], S]) -> tuple[R, S]:
    """``one()`` and ``other()``. An error of any of them is raised again."""
    jobs: list[Callable[[], Any]] = [one, other]
    first, second = side_by_side(lambda job: job(), jobs)
    return first, second
