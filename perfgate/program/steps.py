"""How long a program's steps took in one run, rank by rank: from what our helper recorded, or from NVTX ranges."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate.errors import UnusableError, UsageError, WorkloadError
from perfgate.measure.per_step import Found, step_walls
from perfgate.traces.schema import Trace

SCHEMA = 1
_PID_SHIFT = 24  # nsys's globalPid: 24 bits of pid above 24 bits of thread
_PID = (1 << 24) - 1


@dataclass(frozen=True)
class RankRecord:
    """One rank of one run: ``walls[i]`` is step i's time in ns from start to start, the last one's may be missing."""

    rank: int
    steps: int
    walls: tuple[int, ...]
    events: tuple[int | None, ...] = ()  # the same on the GPU's clock, where it was known
    tokens: tuple[int, ...] | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    pid: int = 0
    world: int | None = None


def recorded(folder: Path) -> list[RankRecord]:
    """What the helper wrote in ``folder``, in order of the ranks; [] where the program does not use it.

    Raises :class:`WorkloadError` for a rank that ended before its last line, :class:`UnusableError` for a broken file.
    """
    records = [_record(file) for file in sorted(folder.glob("rank-*.jsonl"))]
    records = sorted((one for one in records if one.steps), key=lambda one: one.rank)
    for one, other in itertools.pairwise(records):
        if one.rank == other.rank:
            text = f"two processes (pid {one.pid} and {other.pid}) recorded steps as rank {one.rank}"
            raise UnusableError(text, "use perfgate.steps in one process per rank, or set RANK")
    return records


def from_ranges(traces: Sequence[Trace], step: Found) -> list[RankRecord]:
    """The steps that a capture of NVTX ranges shows; ranks are numbered in the order of traces and processes."""
    found = enumerate(step_walls(traces, step))
    return [RankRecord(rank, count, walls, pid=pid_of(process)) for rank, (process, count, walls) in found]


def pid_of(process: int) -> int:
    """The process id in nsys's globalPid."""
    return (process >> _PID_SHIFT) & _PID


def check_ranks(records: Sequence[RankRecord], expected: int, what: str) -> None:
    """Raises :class:`UnusableError` where ranks are missing, or did not all run equally many steps."""
    seen = [one.rank for one in records]
    worlds = {one.world for one in records if one.world}
    wanted = expected or max(worlds, default=0)
    if wanted and len(records) != wanted:
        lacking = sorted(set(range(wanted)) - set(seen))
        named = f" (not rank {', '.join(map(str, lacking))})" if worlds and lacking else ""
        text = f"{len(records)} of {wanted} ranks show {what}{named}"
        mend = "every rank must open it; under srun or mpirun nsys must run inside the launcher: --per-rank"
        raise UnusableError(text, f"{mend}; --ranks N says how many there are" if not expected else mend)
    counts = {one.rank: one.steps for one in records}
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=lambda rank: counts[rank]), max(counts, key=lambda rank: counts[rank])
        text = f"ranks ran unequally many steps: rank {least} {counts[least]}, rank {most} {counts[most]}"
        raise UnusableError(text, "each rank must open the step's range equally often")


def window_of(steps: int, first: int | None, last: int | None, given: str) -> tuple[int, int]:
    """The steady window of ``steps`` steps; where nothing is asked for, all but the first quarter.

    Raises :class:`UsageError` where it reaches beyond the steps that ran.
    """
    low = first if first is not None else 0 if last is not None else min(steps - 1, (steps + 3) // 4)
    high = steps if last is None else last
    if high > steps or low >= steps:
        text = f"--steps {given}: the program ran {steps} steps, numbered 0 to {steps - 1}"
        raise UsageError(text, f"let it run longer, or name steps that it ran: --steps {min(low, steps // 2)}:{steps}")
    return low, high


def step_times(records: Sequence[RankRecord], window: tuple[int, int], clock: str) -> tuple[int, ...]:
    """Per step of the window the slowest rank's time in ns; a last step without a next one's start is left out."""
    times = [walls_of(one, window, clock) for one in records]
    return tuple(max(step) for step in zip(*times, strict=False))  # the last step may be known of some ranks only


def walls_of(record: RankRecord, window: tuple[int, int], clock: str) -> tuple[int, ...]:
    """One rank's own step times in the window, in ns."""
    walls = record.events if clock == "cuda" else record.walls
    return tuple(wall for wall in walls[window[0] : window[1]] if wall is not None)


def clock_of(records: Sequence[RankRecord], window: tuple[int, int]) -> str:
    """``cuda`` where every rank has the GPU's own time of each step of the window, but maybe the program's last."""
    for one in records:
        demanded = range(window[0], min(window[1], one.steps - 1))
        if not demanded or any(step >= len(one.events) or one.events[step] is None for step in demanded):
            return "host"
    return "cuda" if records else "host"


def _record(file: Path) -> RankRecord:
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableError(f"{file.name} can't be read: {error}", "run again") from None
    except ValueError:
        raise _died(file) from None
    if not lines or not isinstance(lines[0], dict) or lines[0].get("schema") != SCHEMA:
        raise UnusableError(
            f"{file.name} is no record of steps of schema {SCHEMA}", "is the program's perfgate as new as this?"
        )
    if "end_ns" not in lines[-1]:
        raise _died(file)
    try:
        return _parsed(lines)
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableError(f"{file.name} is damaged: {error!r}", "run again") from None


def _parsed(lines: list[dict[str, Any]]) -> RankRecord:
    head, every, last = lines[0], lines[1:-1], lines[-1]
    if [one["step"] for one in every] != list(range(len(every))):
        raise ValueError("step numbers have holes")
    steps = every if not every or every[-1]["ended"] == "ok" else every[:-1]
    starts = [int(one["start_ns"]) for one in every]
    tokens = [one["tokens"] for one in steps]
    record = RankRecord(
        int(head["rank"]),
        len(steps),
        tuple(later - earlier for earlier, later in itertools.pairwise(starts))[: len(steps)],
        tuple(None if one is None else int(one) for one in last["event_ns"] or ())[: len(steps)],
        allocated_bytes=last["allocated_bytes"],
        reserved_bytes=last["reserved_bytes"],
        pid=int(head["pid"]),
        world=head["world"],
    )
    return record if None in tokens else replace(record, tokens=tuple(int(one) for one in tokens))


def _died(file: Path) -> WorkloadError:
    return WorkloadError(f"{file.stem} ended before its record of steps did: it died, or was ended", "see the run's log")
