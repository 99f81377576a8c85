"""Progress on stderr while children run: one line each where stderr is a file, a live line on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status

from perfgate.model import Capture, RunSpec

PURPOSES = {"time": "time", "bits": "bits, memory, accuracy", "confirm": "time, unprofiled"}


class Lines:
    """Prints a line when a child has ended, and shows the running one where stderr is a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def started(self, spec: RunSpec) -> None:
        if self._console.is_terminal and not self._console.quiet:
            self._status = self._console.status(f"{_words(spec)} ...")
            self._status.start()

    def finished(self, capture: Capture) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        mark = "ok" if capture.complete else f"failed: {capture.error}"
        self._console.print(f"{_words(capture.spec)}: {mark} ({capture.wall_seconds:.1f} s)", markup=False)

    def say(self, text: str) -> None:
        """A line between children."""
        self._console.print(text, markup=False)


def _words(spec: RunSpec) -> str:
    program = [one.implementation for one in spec.variants[:1] if not one.case]  # a program's arm: a mode has several
    block = f", block {spec.block + 1}" if spec.purpose == "time" or program else ""
    return f"{PURPOSES[spec.purpose]}: {program[0] if program else spec.mode}{block}"
