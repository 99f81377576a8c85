"""The two consoles: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from perfgate.errors import PerfgateError

if TYPE_CHECKING:
    from rich.console import Console


def out(width: int | None = None) -> Console:
    """The console for results. Colour only on a terminal and without NO_COLOR (rich honours both)."""
    from rich.console import Console

    return Console(width=width, highlight=False, soft_wrap=False)


def err(quiet: bool = False) -> Console:
    """The console for progress and warnings."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, quiet=quiet)


def complain(error: PerfgateError) -> None:
    """Prints an error and its mend on stderr, plainly."""
    print(f"error: {error.text}", file=sys.stderr)
    if error.mend:
        print(f"next: {error.mend}", file=sys.stderr)
