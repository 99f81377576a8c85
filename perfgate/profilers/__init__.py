"""Profilers: the only place that starts a process. Each turns a :class:`RunSpec` into a :class:`Capture`.

A child that fails is data (``Capture.error``); only a profiler that is missing or unusable raises
:class:`perfgate.errors.ProfilerError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from perfgate.errors import ProfilerError, UsageError
from perfgate.model import Capture, Reason, RunSpec

ProfilerName = Literal["auto", "nsys", "torch", "replay", "none"]
NAMES: tuple[ProfilerName, ...] = ("auto", "nsys", "torch", "replay", "none")


class Profiler(Protocol):
    """Runs one child and says what it left behind."""

    @property
    def name(self) -> str:
        """What ``RunSpec.profiler`` says to the worker: nsys, torch, replay or none."""
        ...

    def capture(self, spec: RunSpec, folder: Path, *, timeout_s: float) -> Capture:
        """Runs ``spec`` in a fresh child whose files all lie in ``folder`` (``<run>/captures/<spec.id>``).

        Kills the child with everything it started after ``timeout_s`` seconds, or on Ctrl-C (which is raised again).
        """
        ...


def choose(
    name: str, *, device: str, replay_from: Path | None = None, keep_report: bool = False
) -> tuple[Profiler, tuple[Reason, ...]]:
    """The profiler for ``name`` (see :data:`NAMES`) on ``device``, with what the user must be told about the choice.

    ``auto`` takes nsys where nsys and a GPU exist and torch.profiler elsewhere, and says so. Any other name is taken at its
    word: never silently another one. Raises :class:`ProfilerError` where nsys was asked for and is missing or unusable,
    :class:`UsageError` for an unknown name or a replay without a stored run.
    """
    if name == "auto":
        return _choose_auto(device, keep_report)
    if name == "nsys":
        from perfgate.profilers.nsys import NsysProfiler

        profiler = NsysProfiler.found(keep_report=keep_report)
        return profiler, (() if device.startswith("cuda") else (_HOST_TIMES_ONLY,))
    if name == "torch":
        from perfgate.profilers.torch_profiler import TorchProfiler

        return TorchProfiler(), ()
    if name == "replay":
        from perfgate.profilers.replay import ReplayProfiler

        if replay_from is None:
            raise UsageError("--profiler replay needs a stored run", "name its directory: --replay-from RUN")
        return ReplayProfiler(replay_from), (_REPLAYED,)
    if name == "none":
        from perfgate.profilers.plain import PlainProfiler

        return PlainProfiler(), ()
    raise UsageError(f"no profiler {name!r}", f"profilers are {', '.join(NAMES)}")


def _choose_auto(device: str, keep_report: bool) -> tuple[Profiler, tuple[Reason, ...]]:
    from perfgate.profilers.nsys import NsysProfiler
    from perfgate.profilers.torch_profiler import TorchProfiler

    if not device.startswith("cuda"):
        return TorchProfiler(), (
            Reason("TORCH_PROFILER", "torch.profiler was used: the device is a CPU", "on a GPU machine, nsys is taken"),
        )
    try:
        return NsysProfiler.found(keep_report=keep_report), ()
    except ProfilerError as error:
        text = f"torch.profiler was used, not nsys: {error.text}"
        return TorchProfiler(), (Reason("TORCH_PROFILER", text, error.mend or "perfgate doctor"),)


_REPLAYED = Reason(
    "REPLAYED",
    "a stored run stood in for the machine: every figure is of its captures, nothing ran here",
    "run without --replay-from to measure",
)
_HOST_TIMES_ONLY = Reason(
    "HOST_TIMES_ONLY",
    "nsys on a CPU records NVTX ranges alone: host times, no GPU time",
    "run on a GPU machine for a GPU verdict",
)
