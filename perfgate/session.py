"""One run in progress: starts the children that the plan names, and can say at any moment what is known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from perfgate.assemble import assemble, findings, peak_bandwidth
from perfgate.budgets import Budgets
from perfgate.environment import segment
from perfgate.errors import PerfgateError
from perfgate.evidence import Collection
from perfgate.judge import judge, undecided_blocks, verdict
from perfgate.model import Capture, Comparison, GateResult, Metric, Mode, Reason, RunInfo, RunSpec, Variant
from perfgate.plan import Plan
from perfgate.profilers import Profiler
from perfgate.profilers.plain import PlainProfiler
from perfgate.registry import Registry
from perfgate.render import FORMATS
from perfgate.segments import one_sided, segment_guard
from perfgate.sequential import Looks, next_look
from perfgate.store import RunDirectory

UNFIT = ("UNSUPPORTED", "WORKLOAD_FAILED")  # found by the unprofiled children: such variants are not timed


class Progress(Protocol):
    """Told what happens while children run."""

    def started(self, spec: RunSpec) -> None:
        """A child is about to start."""

    def finished(self, capture: Capture) -> None:
        """It has ended."""

    def say(self, text: str) -> None:
        """Something worth knowing happened between children."""


@dataclass(frozen=True)
class Prepared:
    """All that is decided before anything runs."""

    plan: Plan
    registry: Registry
    budgets: Budgets
    profiler: Profiler
    findings: tuple[Reason, ...]
    looks: Looks
    environment: dict[str, Any]


class Session:
    """Runs children one after the other and keeps their evidence; everything is also in the run directory."""

    def __init__(self, prepared: Prepared, directory: RunDirectory, command: str, progress: Progress) -> None:
        self.directory = directory
        self._prepared = prepared
        self._plan = prepared.plan
        self._progress = progress
        self._collection = Collection(directory, prepared.plan.variants)
        self._findings = list(prepared.findings)
        if prepared.plan.config.mode != "both":
            text = f"--mode {prepared.plan.config.mode} measures one arm: there is nothing to judge"
            self._findings.append(Reason("NOTHING_MEASURED", text, "--mode both gives a verdict"))
        self._environment = prepared.environment
        self._begun = time.monotonic()
        self._complete = False
        self._info = RunInfo(
            id=directory.id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            mode=prepared.plan.config.mode,
            profiler=prepared.profiler.name,
            complete=False,
            device=prepared.plan.device,
            looks=prepared.looks.at,
        )
        directory.write_run({"run": asdict(self._info), "plan": asdict(prepared.plan), "environment": self._environment})

    @contextmanager
    def concluded(self) -> Iterator[None]:
        """Whatever ends the block, the views are written; only its proper end makes the run complete.

        Ctrl-C ends the run and is told in its findings; other errors are raised again after writing.
        """
        try:
            yield
            self._complete = all(one.code != "INCOMPLETE" for one in self._findings)
        except KeyboardInterrupt:
            self._findings.append(Reason("INCOMPLETE", "interrupted by Ctrl-C", "run again; what was captured is kept"))
        except PerfgateError as error:
            self._findings.append(Reason("INCOMPLETE", error.text, error.mend))
            self._write_views()
            raise
        self._write_views()

    def check_bits(self) -> None:
        """Bits, memory and accuracy of every variant, unprofiled. A child that dies is started anew behind its culprit."""
        for spec in self._plan.bits():
            again = 0
            while spec.variants:
                capture = self._run(spec)
                if capture.complete:
                    break
                rest = self._collection.not_reached(capture)
                again += 1
                spec = replace(spec, id=f"{spec.id}-again{again}", variants=rest)

    def measure_blocks(self) -> None:
        """Blocks until every judged range is decided, the limit is reached, the time is used up, or a child fails."""
        limit = self._plan.config.time_budget
        blocks, started = 0, time.monotonic()
        while due := self._blocks_due(blocks):
            for _ in range(due):
                if limit and blocks and time.monotonic() - started > limit:
                    self._progress.say(f"--time-budget {limit:g} s is used up after {blocks} blocks")
                    return
                if not self._run_block(blocks):
                    return
                blocks += 1

    def confirm(self) -> None:
        """Times both arms once more without a profiler."""
        for spec in self._plan.confirmation():
            self._run(replace(spec, variants=self._fit(spec)))

    def result(self) -> GateResult:
        """Everything known as of now, judged."""
        judged = self._judged(final=True)
        config = self._plan.config
        info = replace(self._info, complete=self._complete, seconds=round(time.monotonic() - self._begun, 1))
        noticed = findings(judged, self._prepared.registry, peak_bandwidth(self._environment))
        told = (*self._findings, *self._collection.findings, *noticed)
        return GateResult(
            run=info,
            environment=self._environment,
            comparisons=judged,
            verdict=verdict(
                judged, told, complete=self._complete, on_inconclusive=config.on_inconclusive, exempt=self._plan.exempt
            ),
            exempt=self._plan.exempt,
            findings=told,
        )

    def _judged(self, *, final: bool) -> tuple[Comparison, ...]:
        metrics = {one.range: self._metric(one.range) for one in self._plan.variants}
        both = self._plan.config.mode == "both"
        compared = assemble(self._plan.variants, self._collection.of, self._prepared.registry, metrics, both_arms=both)
        racy = {one.op for one in compared if one.racy}
        return judge(compared, self._prepared.budgets, racy_ops=racy, looks=self._prepared.looks, final=final)

    def _metric(self, range_: str) -> Metric:
        return self._prepared.budgets.metric(range_, "host" if self._plan.device == "cpu" else "busy")

    def _blocks_due(self, done: int) -> int:
        looks = self._prepared.looks
        if not done:
            return looks.at[0]
        return next_look(undecided_blocks(self._judged(final=False)), looks)

    def _run_block(self, number: int) -> bool:
        """One block; False where a child failed. A block whose arms met unlike conditions does not count."""
        met: dict[Mode, list[Reason]] = {"default": [], "deterministic": []}
        for spec in self._plan.block(number):
            fit = self._fit(spec)
            if not fit:
                continue
            before = segment(self._plan.device)
            capture = self._run(replace(spec, variants=fit))
            if not capture.complete:
                return False
            met[spec.mode].extend(segment_guard(before, segment(self._plan.device)))
        changed = one_sided(met["default"], met["deterministic"])
        if changed:
            self._collection.drop_block(number, changed)
            self._progress.say(f"block {number + 1} does not count: {changed[0].text}")
        return True

    def _fit(self, spec: RunSpec) -> tuple[Variant, ...]:
        """The spec's variants that can be timed and have a default to be compared with."""
        broken = {name for name, one in self._collection.of.items() if any(problem.code in UNFIT for problem in one.problems)}
        lost = {one.range for one in self._plan.variants if one.role == "default" and one.name in broken}
        return tuple(one for one in spec.variants if one.name not in broken and one.range not in lost)

    def _run(self, spec: RunSpec) -> Capture:
        profiler = self._prepared.profiler
        if spec.purpose != "time" and profiler.name != "replay":
            profiler = PlainProfiler()
        self._progress.started(spec)
        capture = profiler.capture(spec, self.directory.folder(spec), timeout_s=self._plan.config.timeout)
        self._collection.add(capture)
        self._progress.finished(capture)
        self.directory.write_text("result.json", FORMATS["json"](self.result()))
        return capture

    def _write_views(self) -> None:
        result = self.result()
        for name, format_ in (("result.json", "json"), ("leaderboard.csv", "csv"), ("report.html", "html")):
            self.directory.write_text(name, FORMATS[format_](result))
