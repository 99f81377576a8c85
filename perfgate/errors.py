"""The two kinds of error a user can meet, each with its exit code and its mend.

``perfgate.cli`` catches :class:`PerfgateError` once, prints ``error: <text>`` and ``next: <mend>`` on stderr and exits with
``exit_code``. Anything else that escapes is a bug in perfgate.
"""

from __future__ import annotations


class PerfgateError(Exception):
    """Base of every error shown to a user.

    ``text`` says what is wrong, ``mend`` names the next action or command (may be empty where there is none).
    """

    exit_code = 2

    def __init__(self, text: str, mend: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.mend = mend


class UsageError(PerfgateError):
    """A bad option, name, file or key: the request can't be carried out as written (exit code 2)."""

    exit_code = 2


class UnusableError(PerfgateError):
    """The input was readable but holds nothing that can be measured or judged (exit code 5)."""

    exit_code = 5


class WorkloadError(PerfgateError):
    """A workload child failed: it raised, was killed or ran out of time (exit code 6)."""

    exit_code = 6


class ProfilerError(PerfgateError):
    """The profiler could not do its work: missing, rejected, no report, not importable (exit code 6)."""

    exit_code = 6
