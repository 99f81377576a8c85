"""What a program's runs have shown so far, arm by arm. Reads the run directory; a run that is unlike the first is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfgate.errors import UnusableError, UsageError
from perfgate.measure.per_step import Found, Profile, find_step, lost_work, profile, rank_medians, samples
from perfgate.model import ArmFigures, Capture, ProcessSample
from perfgate.program.arms import STEPS, Arm
from perfgate.program.launch import PROGRAM, traces_of
from perfgate.program.options import ProgramOptions
from perfgate.program.steps import RankRecord, check_ranks, clock_of, from_ranges, pid_of, recorded, step_times, window_of
from perfgate.traces import read

Key = tuple[str, str]  # a range's domain and name
LEAST_STEPS = 4  # in the window: its last one may have no next one's start, and three times are needed
STEP = "step"  # what the step's range is called in results


@dataclass(frozen=True)
class Shape:
    """What every run of the program must have in common."""

    ranks: int
    steps: int
    window: tuple[int, int]


@dataclass(frozen=True)
class Profiled:
    """One run under nsys."""

    capture: str
    block: int
    profile: Profile
    samples: dict[Key, ProcessSample]
    ranks: tuple[int, ...]  # the rank's number of each of ``profile.ranks``
    lost: dict[Key, int]  # launches whose GPU work the capture lacks, per range
    medians: dict[Key, dict[int, int]]  # per range and rank: its GPU time in a step (without a GPU: its wall time), ns


@dataclass(frozen=True)
class Timed:
    """One run whose steps were timed."""

    capture: str
    block: int
    position: int
    records: tuple[RankRecord, ...]
    nvtx: bool = False  # by NVTX ranges, under nsys


@dataclass
class ArmRuns:
    """All runs of one arm, in the order in which they ran."""

    arm: Arm
    profiled: list[Profiled] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    figures: dict[str, tuple[object, ArmFigures | None]] = field(default_factory=dict)  # per range, and what of: see compared


@dataclass
class Runs:
    """The runs of all arms; the first one decides what the others must have in common with it."""

    options: ProgramOptions
    folder: Path  # the run directory
    arms: dict[str, ArmRuns]
    expected_ranks: int = 0  # 0 unknown
    part: bool = False  # only the ranks of one node are here, whatever the program says of its world
    step: Found | None = None
    shape: Shape | None = None

    @classmethod
    def of(cls, options: ProgramOptions, folder: Path, arms: Iterable[Arm], expected_ranks: int, *, part: bool = False) -> Runs:
        """No run yet."""
        return cls(options, folder, {arm.name: ArmRuns(arm) for arm in arms}, expected_ranks, part)

    def recorded(self, capture: str) -> bool:
        """Whether the program recorded its steps itself in a run, so that it can be timed without nsys."""
        return bool(self._records(capture))

    @property
    def clock(self) -> str:
        """``cuda``, ``host`` or ``nvtx``: the one that every timed run has."""
        timed = [one for runs in self.arms.values() for one in runs.timed]
        if self.shape is None or not timed:
            return ""
        if any(one.nvtx for one in timed):
            return "nvtx"
        window = self.shape.window
        return "cuda" if all(clock_of(one.records, window) == "cuda" for one in timed) else "host"

    def add_profiled(self, capture: Capture) -> None:
        """Takes in a run under nsys. Raises :class:`~perfgate.errors.PerfgateError` for what can't be measured."""
        spec, arm = capture.spec, self._arm(capture)
        traces = [read(path) for path in traces_of(self.folder / capture.folder)]
        if self.step is None:
            self.step = find_step(traces, self.options.step_range or STEP)
        records = self._records(spec.id)
        if records:
            self._check_ranks(records, "steps")
        seen = from_ranges(traces, self.step)
        self._check_ranks(seen, f"range {self.step.shown!r}", len(records))
        window = self._fits(seen, arm, spec.id)
        found = profile(traces, self.step, window)
        numbers = {one.pid: one.rank for one in records}
        if len(numbers) < len(records):  # of several nodes, where a pid is no name: numbered in the order of their traces
            numbers = {}
        ranks = tuple(numbers.get(pid_of(one.process), place) for place, one in enumerate(found.ranks))
        figures = samples(found, capture=spec.id, block=spec.block, position=spec.position)
        metric = "busy_ns" if any(one.busy_ns for one in figures.values()) else "host_ns"
        medians = {
            key: {ranks[place]: value for place, value in places.items()} for key, places in rank_medians(found, metric).items()
        }
        self.arms[arm.name].profiled.append(Profiled(spec.id, spec.block, found, figures, ranks, lost_work(found), medians))

    def add_timed(self, capture: Capture) -> None:
        """Takes in a run whose steps were timed, by the program itself or by NVTX ranges alone."""
        spec, arm = capture.spec, self._arm(capture)
        traces = [read(path) for path in traces_of(self.folder / capture.folder)]
        if traces:
            if self.step is None:
                self.step = find_step(traces, self.options.step_range or STEP)
            records = from_ranges(traces, self.step)
            what = f"range {self.step.shown!r}"
        else:
            records, what = self._records(spec.id), "steps"
        self._check_ranks(records, what)
        self._fits(records, arm, spec.id)
        self.arms[arm.name].timed.append(Timed(spec.id, spec.block, spec.position, tuple(records), bool(traces)))

    def drop_block(self, number: int, kind: str) -> None:
        """Forgets one block, whose arms met unlike conditions: its timed or its profiled runs."""
        for runs in self.arms.values():
            if kind == "time":
                runs.profiled = [one for one in runs.profiled if one.block != number]
            else:
                runs.timed = [one for one in runs.timed if one.block != number]

    def blocks(self, kind: str) -> int:
        """How many blocks of timed or profiled runs are at hand."""
        held = [one.profiled if kind == "time" else one.timed for one in self.arms.values()]
        return min(len({run.block for run in runs}) for runs in held)

    def step_samples(self, arm: str) -> Iterator[ProcessSample]:
        """The step's wall time in each timed run: per step of the window the slowest rank's."""
        clock = self.clock
        for one in self.arms[arm].timed:
            assert self.shape is not None  # noqa: S101 — the first run set it
            times = step_times(one.records, self.shape.window, clock)
            yield ProcessSample(one.capture, one.block, one.position, (), (), (), (), "", times)

    def own_folder(self, capture: str) -> Path:
        """The program's own folder of one run."""
        return self.folder / "captures" / capture / PROGRAM

    def _check_ranks(self, records: Sequence[RankRecord], what: str, otherwise: int = 0) -> None:
        if self.part:  # the others are on other nodes, and known when the nodes' runs are merged
            records = [replace(one, world=None) for one in records]
        check_ranks(records, (0 if self.part else self.expected_ranks) or otherwise, what)

    def _records(self, capture: str) -> list[RankRecord]:
        return recorded(self.own_folder(capture) / STEPS)

    def _arm(self, capture: Capture) -> Arm:
        return self.arms[capture.spec.variants[0].implementation].arm

    def _fits(self, records: Sequence[RankRecord], arm: Arm, capture: str) -> tuple[int, int]:
        """The window, once this run is known to be like the first one."""
        if not records:
            raise UnusableError(
                f"{capture}: arm {arm.name} shows no step", "mark the loop: `for batch in perfgate.steps(loader):`"
            )
        shape = self.shape
        if shape is None:
            steps = records[0].steps
            window = window_of(steps, *self.options.window(), self.options.steps)
            if window[1] - window[0] < LEAST_STEPS:
                text = f"the steady window {window[0]}:{window[1]} of {steps} steps holds {window[1] - window[0]}"
                raise UsageError(f"{text}, {LEAST_STEPS} are needed", "let the program run more steps, or widen --steps")
            self.shape = shape = Shape(len(records), steps, window)
        for what, here, there in (("ranks", len(records), shape.ranks), ("steps", records[0].steps, shape.steps)):
            if here != there:
                text = f"{capture}: arm {arm.name} ran {here} {what}, the first run {there}"
                raise UnusableError(text, "all arms must run the same number, so that like is compared with like")
        return shape.window
