"""One run of a program's gate in progress: runs it arm by arm, block by block, and can say at any moment what is known."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Literal

from perfgate.environment import segment
from perfgate.errors import PerfgateError, ProfilerError, UnusableError, UsageError, WorkloadError
from perfgate.judge import foreign_no_effect, judge, undecided_blocks, verdict
from perfgate.model import Capture, Comparison, GateResult, Reason, RunInfo, RunSpec, Variant
from perfgate.program.arms import Arm, order
from perfgate.program.compared import Judged, comparisons, memory_unknown, range_names
from perfgate.program.evidence import STEP, Runs
from perfgate.program.launch import Watched
from perfgate.program.metrics import Comparer, collect
from perfgate.program.prepared import Prepared
from perfgate.program.report import findings, report
from perfgate.render import FORMATS
from perfgate.segments import one_sided, segment_guard
from perfgate.sequential import next_look
from perfgate.session import Progress
from perfgate.store import RunDirectory

WRITING_SHARE = 0.05  # of the run's time: a program of hundreds of ranges takes seconds to judge and write
MENDS = {  # of an op's run -> of a program's
    "raise --iterations": "widen --steps, or let the program run more of them",
    "raise --warmup until the first third is as fast as the last": "begin the window later (--steps): it is not steady yet",
}
OWN_DOING = "POWER_CAPPED"  # of the card's conditions: what a program brings about itself
Kind = Literal["time", "confirm"]  # under nsys, for the ranges; unprofiled, for the step


class RunFailedError(Exception):
    """A run failed in a way that is told in the result: nothing more is run."""


class ProgramSession:
    """Runs a program and keeps what it showed; everything is also in the run directory."""

    def __init__(self, prepared: Prepared, directory: RunDirectory, command: str, progress: Progress) -> None:
        self.directory = directory
        self._prepared, self._progress = prepared, progress
        self._cards = prepared.cards
        part = bool(prepared.config.shard)
        self._runs = Runs.of(prepared.options, directory.path, prepared.arms, prepared.expected_ranks, part=part)
        self._metrics = Comparer()
        self._judged_ranges = Judged(prepared.options.match, prepared.budgets)
        self._findings = list(prepared.findings)
        self._dropped: list[Reason] = []
        self._watched: Watched | None = None  # how the step is timed; None until the first run has shown it
        self._begun = time.monotonic()
        self._wrote_s = 0.0
        self._complete = False
        self._info = RunInfo(
            id=directory.id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            mode="both",
            profiler="nsys" if prepared.launcher.facts else "none",
            complete=False,
            device=prepared.device,
            looks=prepared.looks.at,
            shard=prepared.config.shard,
        )
        plan = {"options": asdict(prepared.options), "arms": [asdict(arm) for arm in prepared.arms], "device": prepared.device}
        directory.write_run({"run": asdict(self._info), "program": plan, "environment": prepared.environment})

    @contextmanager
    def concluded(self) -> Iterator[None]:
        """However the block ends, the views are written; only its proper end makes the run complete."""
        try:
            yield
            self._complete = True
        except RunFailedError:
            pass
        except KeyboardInterrupt:
            self._findings.append(
                Reason("INCOMPLETE", "interrupted (Ctrl-C or SIGTERM)", "run again; what was captured is kept")
            )
        except PerfgateError as error:
            self._findings.append(Reason("INCOMPLETE", error.text, error.mend))
            self._write_views()
            raise
        self._write_views()

    def measure(self) -> None:
        """Blocks of both kinds until every judged range is decided, the limit is reached or the time is used up."""
        done: dict[Kind, int] = {"time": 0, "confirm": 0}
        limit, started = self._prepared.config.time_budget, time.monotonic()
        while due := self._due(done):
            for kind in due:
                if limit and min(done.values()) and time.monotonic() - started > limit:
                    text = f"--time-budget {limit:g} s was used up after {done['confirm']} blocks"
                    self._findings.append(Reason("TIME_BUDGET_USED", text, "give it more time to decide more ranges"))
                    self._progress.say(text)
                    return
                self._run_block(done[kind], kind)
                done[kind] += 1

    def take_in(self, captures: Sequence[Capture], metrics: Comparer, told: Sequence[Reason], *, complete: bool) -> None:
        """What was run elsewhere and lies in the run directory now: all of it, with what was told of it there.

        Raises :class:`~perfgate.errors.PerfgateError` for what can't be measured.
        """
        self._metrics, self._complete = metrics, complete
        self._findings += told
        for capture in captures:
            if capture.spec.purpose == "time":
                self._runs.add_profiled(capture)
            else:
                self._runs.add_timed(capture)

    def result(self) -> GateResult:
        """Everything known as of now, judged."""
        prepared = self._prepared
        judged = self._judged(final=True)
        told = [*self._findings, *findings(self._runs, self._metrics, [one for one in judged if one.judged])]
        told += self._dropped_for_good(judged)
        told += self._of_budgets(judged)
        arm = next(one.name for one in prepared.arms if one.judged)
        if (nothing := foreign_no_effect([one for one in judged if one.implementation == arm])) is not None:
            told.append(nothing)
        return GateResult(
            run=replace(self._info, complete=self._complete, seconds=round(time.monotonic() - self._begun, 1)),
            environment=prepared.environment,
            comparisons=judged,
            verdict=verdict(judged, told, complete=self._complete, on_inconclusive=prepared.config.on_inconclusive),
            findings=tuple(told),
            program=report(self._runs, self._metrics, prepared.options.command),
        )

    def _judged(self, *, final: bool) -> tuple[Comparison, ...]:
        prepared = self._prepared
        found = comparisons(self._runs, self._judged_ranges, self._metrics, gpu=prepared.gpu)
        unknown = memory_unknown(found, prepared.budgets) if final else {}
        found = tuple(
            replace(one, signals=(*one.signals, unknown[one.range])) if one.judged and one.range in unknown else one
            for one in found
        )
        judged = judge(found, prepared.budgets, looks=prepared.looks, final=final, foreign=True)
        return tuple(replace(one, signals=_mended(one.signals), reasons=_mended(one.reasons)) for one in judged)

    def _of_budgets(self, judged: Sequence[Comparison]) -> list[Reason]:
        """What is wrong with the budgets, once the program's ranges are known."""
        if not judged or not any(one.profiled for one in self._runs.arms.values()):
            return []
        known = {f"{name}::" for name in range_names(self._runs)}
        found = self._prepared.budgets.findings(known, {one.range for one in judged if one.judged})
        lines = '[[budget]] with range = "NAME", overhead = "15%", reason, owner and expires'
        mend = f"write {lines} there; `perfgate budget suggest {self.directory.path}` prints it with what was measured"
        return [replace(one, next=mend) if one.code == "NOT_BUDGETED" else one for one in found]

    def _dropped_for_good(self, judged: Sequence[Comparison]) -> list[Reason]:
        first = self._prepared.looks.at[0]
        short = any(one.judged and one.metric == "step_wall" and one.blocks < first for one in judged)
        return self._dropped[:1] if short else []

    def _due(self, done: dict[Kind, int]) -> list[Kind]:
        """The next blocks, one of each kind in turn: what the first look needs, then what is undecided."""
        prepared = self._prepared
        wanted: dict[Kind, int] = {"time": prepared.profiled_blocks, "confirm": prepared.looks.at[0]}
        lacking = {kind: wanted[kind] - self._runs.blocks(kind) for kind in wanted if done[kind] < 2 * wanted[kind]}
        if any(number > 0 for number in lacking.values()):  # at the start all, later those that did not count
            return [kind for number in range(max(lacking.values())) for kind in lacking if number < lacking[kind]]
        judged = [one for one in self._judged(final=False) if one.judged]
        due: list[Kind] = []
        for kind in wanted:
            mine = [one for one in judged if (one.metric == "step_wall") == (kind == "confirm")]
            asked_for = kind == "time" and prepared.options.profiled_blocks >= 0
            most = wanted[kind] if asked_for else 2 * prepared.looks.at[-1]
            due += [kind] * min(next_look(undecided_blocks(mine), prepared.looks), max(0, most - done[kind]))
        return due

    def _run_block(self, number: int, kind: Kind) -> None:
        """One block. One whose arms met unlike conditions does not count; what all met alike is told once."""
        met: dict[str, dict[str, list[Reason]]] = {arm.name: {card: [] for card in self._cards} for arm in self._prepared.arms}
        for position, arm in enumerate(order(self._prepared.arms, number)):
            before = [segment(card) for card in self._cards]
            self._run(arm, kind, number, position)
            for card, earlier in zip(self._cards, before, strict=True):
                said = f"{card}: " if len(self._cards) > 1 else ""
                found = segment_guard(earlier, segment(card))
                met[arm.name][card] += [replace(one, text=f"{said}{one.text}") for one in found]
        told = {
            name: [[one for one in found if one.code != OWN_DOING] for found in cards.values()] for name, cards in met.items()
        }
        changed = [  # card by card: another card slowed in each arm is nothing that both met
            one
            for name in told
            if name != "default"
            for both in zip(told["default"], told[name], strict=True)
            for one in one_sided(*both)
        ]
        self._capped({name: [one for found in cards.values() for one in found] for name, cards in met.items()})
        if changed:
            self._runs.drop_block(number, kind)
            self._dropped.append(changed[0])
            text = f"block {number + 1} does not count: {changed[0].text}"
            self._findings.append(Reason("BLOCK_DROPPED", text, "run when the card is yours alone"))
            self._progress.say(text)
        else:
            known = {one.code for one in self._findings}
            alike = itertools.chain.from_iterable(told["default"])
            self._findings += {one.code: one for one in alike if one.code not in known}.values()

    def _capped(self, met: Mapping[str, Sequence[Reason]]) -> None:
        """Says once which arms the card's power cap slowed: that is what they cost on this card, no reason to drop them."""
        names = [name for name, reasons in met.items() if any(one.code == OWN_DOING for one in reasons)]
        if names and all(one.code != OWN_DOING for one in self._findings):
            text = (
                f"the card's power cap slowed {', '.join(names)}: where only one arm draws that much, it pays for it in clocks"
            )
            self._findings.append(Reason(OWN_DOING, text, "nvidia-smi -q -d POWER,PERFORMANCE"))

    def _run(self, arm: Arm, kind: Kind, block: int, position: int) -> None:
        """One run of the program; raises :class:`RunFailedError` where that ends it all."""
        watched: Watched = "gpu" if kind == "time" else self._watched or ""
        capture = self._capture(arm, kind, block, position, watched)
        if self._watched is None:
            self._watched = self._how_to_time(capture)
            if kind == "confirm" and self._watched:  # this run, the first of all, showed no step
                capture = self._capture(arm, kind, block, position, self._watched, suffix="-nvtx")
        with self._told_in_result(capture.spec.id):
            if kind == "time":
                self._runs.add_profiled(capture)
                self._refuse_empty_match()
            else:
                self._runs.add_timed(capture)
        self._write_what_is_known()

    def _how_to_time(self, first: Capture) -> Watched:
        """How the step is timed, from what the first run showed: by the program itself, or by its ranges under nsys."""
        with self._told_in_result(first.spec.id):
            if self._runs.recorded(first.spec.id):
                return ""
            if self._prepared.launcher.facts is None:
                text = "the program does not use perfgate.steps, so nsys must time its steps, and none was found"
                raise ProfilerError(text, "`for batch in perfgate.steps(loader):` in the program, or `perfgate doctor`")
        return "ranges"

    def _capture(self, arm: Arm, kind: Kind, block: int, position: int, watched: Watched, suffix: str = "") -> Capture:
        """Runs the program once and keeps its metrics. A run that failed is told and ends everything."""
        variant = Variant(STEP, "", "", arm.name, arm.role)
        name = f"{kind}-b{block:02}-{position}-{arm.name}{suffix}"
        spec = RunSpec(name, kind, arm.mode, (variant,), self._prepared.device, block, position)
        self._progress.started(spec)
        folder = self.directory.folder(spec)
        capture = self._prepared.launcher.capture(spec, arm, folder, watched)
        self._progress.finished(capture)
        if capture.note:
            self._findings.append(Reason("PROFILER_RESTARTED", capture.note, "perfgate doctor"))
        if not capture.complete:
            code = "PROFILER_FAILED" if capture.blame == "profiler" else "WORKLOAD_FAILED"
            self._findings.append(Reason(code, f"{name}: {capture.error}", f"see {capture.folder}/worker.log"))
            raise RunFailedError
        with self._told_in_result(name):
            path = collect(self._prepared.options.metrics, self._runs.own_folder(name))
            if path is not None:
                self._metrics.add(arm.name, name, path)
        return capture

    @contextmanager
    def _told_in_result(self, capture: str) -> Iterator[None]:
        """What a run's evidence lacks is told in the result and ends the run; a wrong option is raised on."""
        try:
            yield
        except UsageError:
            raise
        except PerfgateError as error:
            codes = {WorkloadError: "WORKLOAD_FAILED", ProfilerError: "PROFILER_FAILED", UnusableError: "NOTHING_MEASURED"}
            code = next((code for kind, code in codes.items() if isinstance(error, kind)), "PROFILER_FAILED")
            text = error.text if error.text.startswith(capture) else f"{capture}: {error.text}"
            self._findings.append(Reason(code, text, error.mend))
            raise RunFailedError from error

    def _refuse_empty_match(self) -> None:
        names = [name for name in range_names(self._runs) if name != STEP]
        if self._prepared.options.match and not any(self._judged_ranges(name) for name in names):
            listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            text = f"--match {self._prepared.options.match!r} finds no range of the program's steps"
            raise UsageError(text, f"there are {listed}" if names else "the program opens none inside its steps")

    def _write_what_is_known(self) -> None:
        """``result.json`` as of now, for a run that is killed: left out where writing would slow the run down."""
        begun = time.monotonic()
        if self._wrote_s > WRITING_SHARE * (begun - self._begun):
            return
        self.directory.write_text("result.json", FORMATS["json"](self.result()))
        self._wrote_s += time.monotonic() - begun

    def _write_views(self) -> None:
        result = self.result()
        for name, format_ in (("result.json", "json"), ("leaderboard.csv", "csv"), ("report.html", "html")):
            self.directory.write_text(name, FORMATS[format_](result))


def _mended(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """``reasons`` with the next action that a program's run has in place of an op's."""
    return tuple(replace(one, next=MENDS.get(one.next, one.next)) for one in reasons)
