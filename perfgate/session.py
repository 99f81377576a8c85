"""One run in progress: starts the children that the plan names, and can say at any moment what is known."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from perfgate.assemble import assemble, findings, peak_bandwidth, unproven
from perfgate.budgets import Budgets
from perfgate.environment import segment
from perfgate.errors import PerfgateError
from perfgate.evidence import Collection
from perfgate.judge import judge, undecided_blocks, verdict
from perfgate.model import Capture, Comparison, GateResult, Metric, Mode, Reason, RunInfo, RunSpec, Variant
from perfgate.plan import Plan
from perfgate.profilers import Profiler
from perfgate.profilers.plain import PlainProfiler
from perfgate.profilers.replay import ReplayProfiler
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

    def metric(self, range_: str) -> Metric:
        """What judges a range on this device."""
        return self.budgets.metric(range_, "host" if self.plan.device == "cpu" else "busy")

    def unprofiled_blocks(self) -> int:
        """How many whole blocks run once more without a profiler: none unless a budget judges that time."""
        judged = any(self.metric(one.range) == "step_wall" for one in self.plan.variants)
        return self.looks.at[0] if judged and self.plan.config.confirm else 0


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
        self._dropped: list[Reason] = []  # why blocks did not count
        self._open: frozenset[str] | None = None  # ranges still to be decided; None before the first look: all
        self._info = RunInfo(
            id=directory.id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            mode=prepared.plan.config.mode,
            profiler=prepared.profiler.name,
            complete=False,
            device=prepared.plan.device,
            looks=prepared.looks.at,
            shard=prepared.plan.config.shard,
            planned=prepared.plan.planned,
        )
        directory.write_run({"run": asdict(self._info), "plan": asdict(prepared.plan), "environment": self._environment})

    @contextmanager
    def concluded(self) -> Iterator[None]:
        """However the block ends, the views are written; only its proper end makes the run complete.

        Ctrl-C ends the run and is told in its findings; a :class:`PerfgateError` is raised again after writing. A bug of ours
        passes through: then result.json is that of the last capture, which says that the run is not complete.
        """
        try:
            yield
            self._complete = all(one.code != "INCOMPLETE" for one in self._findings)
        except KeyboardInterrupt:
            self._findings.append(
                Reason("INCOMPLETE", "interrupted (Ctrl-C or SIGTERM)", "run again; what was captured is kept")
            )
        except PerfgateError as error:
            self._findings.append(Reason("INCOMPLETE", error.text, error.mend))
            self._write_views()
            raise
        self._write_views()

    def check_bits(self) -> None:
        """Bits, memory and accuracy of every variant, unprofiled; on a card all children at one time: nothing is timed here.

        A child that dies is started anew behind its culprit; what found no memory beside the other children runs again alone.
        """
        specs = self._plan.bits()
        together = self._plan.device != "cpu" and self._prepared.profiler.name != "replay"
        for capture in self._run_together(specs) if together else map(self._captured, specs):
            again = f"{capture.spec.id}-alone"
            alone = self._collection.starved(capture) if together or self._is_stored(again) else ()
            kept = tuple(one for one in capture.spec.variants if one not in alone)
            self._take(replace(capture, spec=replace(capture.spec, variants=kept)))
            if alone:
                self._behind_the_culprit(self._run(replace(capture.spec, id=again, variants=alone)))
            self._behind_the_culprit(capture)

    def _is_stored(self, name: str) -> bool:
        profiler = self._prepared.profiler
        return isinstance(profiler, ReplayProfiler) and profiler.holds(name)

    def _behind_the_culprit(self, capture: Capture) -> None:
        """Starts a child that died anew with the variants behind its culprit, until one comes to its end."""
        again, name = 0, capture.spec.id
        while not capture.complete and (rest := self._collection.not_reached(capture)):
            again += 1
            capture = self._run(replace(capture.spec, id=f"{name}-again{again}", variants=rest))

    def measure_blocks(self) -> None:
        """Blocks until every judged range is decided, the limit is reached, the time is used up, or a child fails."""
        limit = self._plan.config.time_budget
        blocks, started = 0, time.monotonic()
        while due := self._blocks_due(blocks):
            for _ in range(due):
                if limit and blocks and time.monotonic() - started > limit:
                    text = f"--time-budget {limit:g} s was used up after {blocks} blocks"
                    self._findings.append(Reason("TIME_BUDGET_USED", text, "give it more time to decide more ranges"))
                    self._progress.say(text)
                    return
                if not self._run_block(blocks):
                    return
                blocks += 1

    def confirm(self) -> None:
        """Times both arms once more without a profiler: in whole blocks where a budget judges that time, else once."""
        if blocks := self._prepared.unprofiled_blocks():
            all(self._run_block(number, "confirm") for number in range(blocks))
            return
        for spec in self._plan.confirmation():
            if fit := self._fit(spec):
                self._run(replace(spec, variants=fit))

    def result(self) -> GateResult:
        """Everything known as of now, judged."""
        judged = self._judged(final=True)
        config = self._plan.config
        info = replace(self._info, complete=self._complete, seconds=round(time.monotonic() - self._begun, 1))
        told = (*self._findings, *self._collection.findings, *self._not_made_up_for(judged), *self._noticed(judged))
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
        metrics = {one.range: self._prepared.metric(one.range) for one in self._plan.variants}
        both = self._plan.config.mode == "both"
        compared = assemble(self._plan.variants, self._collection.of, self._prepared.registry, metrics, both_arms=both)
        family = len(self._plan.planned)
        return judge(compared, self._prepared.budgets, looks=self._prepared.looks, final=final, family=family)

    def _noticed(self, judged: Sequence[Comparison]) -> Iterable[Reason]:
        """What the figures of a card show beside the verdict; a CPU's races and host times say nothing of a GPU's."""
        if self._plan.device != "cpu":
            yield from findings(judged, peak_bandwidth(self._environment))
            yield from unproven(judged)

    def _not_made_up_for(self, judged: Sequence[Comparison]) -> list[Reason]:
        """ENVIRONMENT_CHANGED where blocks were dropped and a range is left with fewer than the first look needs."""
        first = self._prepared.looks.at[0]
        return self._dropped[:1] if any(one.judged and one.blocks < first for one in judged) else []

    def _blocks_due(self, done: int) -> int:
        """How many more blocks to run, for the ranges that are still undecided.

        Blocks that do not count are made up for, but not for ever: twice the limit in all.
        """
        looks = self._prepared.looks
        if not done:
            return looks.at[0]
        judged = self._judged(final=False)
        self._open = frozenset(one.range for one in judged if one.judged and one.status == "inconclusive")
        due = next_look(undecided_blocks(judged), looks)
        return min(due, max(0, 2 * looks.at[-1] - done))

    def _run_block(self, number: int, purpose: Literal["time", "confirm"] = "time") -> bool:
        """One block; False where a child failed. A block whose arms met unlike conditions does not count.

        What both arms met alike is told as a finding, once.
        """
        device = self._plan.device if self._prepared.profiler.name != "replay" else "cpu"  # this card is not that one
        met: dict[Mode, list[Reason]] = {"default": [], "deterministic": []}
        for spec in self._plan.block(number, purpose):
            fit = self._fit(spec)
            if not fit:
                continue
            before = segment(device)
            capture = self._run(replace(spec, variants=fit))
            if not capture.complete:
                return False
            met[spec.mode].extend(segment_guard(before, segment(device)))
        changed = one_sided(met["default"], met["deterministic"])
        if changed:
            self._collection.drop_block(number, [f"block {number + 1} does not count: {one.text}" for one in changed])
            self._dropped.append(changed[0])
            self._progress.say(f"block {number + 1} does not count: {changed[0].text}")
        else:
            known = {one.code for one in self._collection.findings}
            alike = {one.code: one for one in met["default"] if one.code not in known}
            self._collection.findings.extend(alike.values())
        return True

    def _fit(self, spec: RunSpec) -> tuple[Variant, ...]:
        """The spec's variants that can be timed, have a default to be compared with, and are not decided yet."""
        broken = {name for name, one in self._collection.of.items() if any(problem.code in UNFIT for problem in one.problems)}
        lost = {one.range for one in self._plan.variants if one.role == "default" and one.name in broken}
        wanted = self._open if spec.purpose == "time" else None
        return tuple(
            one
            for one in spec.variants
            if one.name not in broken and one.range not in lost and (wanted is None or one.range in wanted)
        )

    def _run(self, spec: RunSpec) -> Capture:
        capture = self._captured(spec)
        self._take(capture)
        return capture

    def _captured(self, spec: RunSpec) -> Capture:
        """One child's capture, not taken in yet."""
        profiler = self._prepared.profiler
        if spec.purpose != "time" and profiler.name != "replay":
            profiler = PlainProfiler()
        self._progress.started(spec)
        return profiler.capture(spec, self.directory.folder(spec), timeout_s=self._plan.config.timeout)

    def _run_together(self, specs: Sequence[RunSpec]) -> list[Capture]:
        """Unprofiled children at one time; their captures are not taken in yet."""
        for spec in specs:
            self._progress.started(spec)
        work = [(spec, self.directory.folder(spec)) for spec in specs]
        return PlainProfiler().capture_together(work, timeout_s=self._plan.config.timeout)

    def _take(self, capture: Capture) -> None:
        self._collection.add(capture)
        self._progress.finished(capture)
        self.directory.write_text("result.json", FORMATS["json"](self.result()))

    def _write_views(self) -> None:
        result = self.result()
        for name, format_ in (("result.json", "json"), ("leaderboard.csv", "csv"), ("report.html", "html")):
            self.directory.write_text(name, FORMATS[format_](result))
