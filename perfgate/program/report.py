"""What a program's run says beside its verdict: throughput, peaks, ranks and their skew, the step's clock, equal metrics."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from statistics import median

from perfgate.model import Comparison, ProgramArm, ProgramReport, RankFigures, Reason
from perfgate.program.compared import peak
from perfgate.program.evidence import STEP, ArmRuns, Key, Runs
from perfgate.program.metrics import Comparer
from perfgate.program.steps import step_times, walls_of
from perfgate.signals import against_itself, contradiction
from perfgate.units import format_bytes, format_ns, format_percent

LOST_SHARE = 0.01  # of the GPU time: more than this outside every range is a finding
SKEW_LEAST = 0.05  # a rank is told of where its median is this much above the middle rank's
SKEWED_RANGES = 3  # told per arm, the largest differences first


def report(runs: Runs, metrics: Comparer, command: Sequence[str]) -> ProgramReport | None:
    """The program's part of ``result.json``; ``None`` before its first run was taken in."""
    if runs.shape is None:
        return None
    return ProgramReport(
        command=shlex.join("python" if part == sys.executable else part for part in command),
        step_range="" if runs.step is None else runs.step.shown,
        clock=runs.clock,
        steps=runs.shape.steps,
        window=runs.shape.window,
        ranks=runs.shape.ranks,
        arms=tuple(_arm(one, runs, metrics) for one in runs.arms.values()),
    )


def _arm(own: ArmRuns, runs: Runs, metrics: Comparer) -> ProgramArm:
    checked = metrics.of(own.arm.name)
    return ProgramArm(
        arm=own.arm.name,
        mode=own.arm.mode,
        runs=len(own.timed),
        ranks=_ranks(own, runs),
        tokens_per_second=_throughput(own, runs),
        allocated_bytes=peak(own, "allocated_bytes"),
        reserved_bytes=peak(own, "reserved_bytes"),
        metric_values=checked.values if checked and checked.runs > 1 else None,
    )


def _ranks(own: ArmRuns, runs: Runs) -> tuple[RankFigures, ...]:
    if runs.shape is None:
        return ()
    times: dict[int, list[int]] = {}
    for one in own.timed:
        for record in one.records:
            times.setdefault(record.rank, []).extend(walls_of(record, runs.shape.window, runs.clock))
    return tuple(RankFigures(rank, round(median(values))) for rank, values in sorted(times.items()) if values)


def _throughput(own: ArmRuns, runs: Runs) -> float | None:
    """Tokens per second: per run all ranks' tokens in the window over its max-rank time; the median over the runs."""
    if runs.shape is None:
        return None
    low, high = runs.shape.window
    rates = []
    for one in own.timed:
        times = step_times(one.records, runs.shape.window, runs.clock)
        told = [record.tokens for record in one.records]
        if runs.options.tokens_per_step:
            tokens = runs.options.tokens_per_step * len(times)
        elif None not in told:
            tokens = sum(sum(record.tokens[low : min(high, low + len(times))]) for record in one.records if record.tokens)
        else:
            return None
        if times:
            rates.append(tokens / sum(times) * 1e9)
    return median(rates) if rates else None


def findings(runs: Runs, metrics: Comparer, judged: Sequence[Comparison]) -> Iterator[Reason]:
    """What decides no verdict but must be known to read it."""
    about = report(runs, metrics, runs.options.command)
    if about is None or runs.shape is None:
        return
    yield from _clock(about)
    for one in about.arms:
        if (text := _amounts(one)) is not None:
            yield Reason("THROUGHPUT", text)
    yield from _equal_metrics(runs, metrics)
    yield from _skew(runs, about)
    yield from _outside(runs)
    for compared in judged:
        if compared.default is not None and compared.deterministic is not None:
            found = [against_itself(figures, compared.metric) for figures in (compared.default, compared.deterministic)]
            if compared.metric == "step_wall":
                pair = compared.default, compared.deterministic
                busy = [figures.busy_ns for figures in pair]
                found.append(contradiction(*pair, "busy", busy[1] / busy[0] if busy[0] and busy[1] else None))
            for reason in found:
                if reason is not None:
                    yield Reason(reason.code, f"{compared.op}: {reason.text}", reason.next)


def _clock(about: ProgramReport) -> Iterator[Reason]:
    window = (
        f"steps {about.window[0]} to {about.window[1] - 1} of {about.steps}, {about.ranks} rank{'s' if about.ranks > 1 else ''}"
    )
    if about.clock == "nvtx":
        text = f"the step was timed under nsys --trace=nvtx ({window}), from start to start of range {about.step_range!r}"
        mend = "`for batch in perfgate.steps(loader):` in the program times it without any profiler"
        yield Reason("STEP_UNDER_NSYS", text, mend)
    elif about.clock:
        how = {"cuda": "between CUDA events", "host": "on the host, from start to start"}[about.clock]
        yield Reason("STEP_CLOCK", f"the step was timed unprofiled, {how} ({window})")


def _amounts(one: ProgramArm) -> str | None:
    parts = []
    if one.tokens_per_second is not None:
        parts.append(f"{one.tokens_per_second:,.0f} tokens/s over the max-rank step time")
    if one.allocated_bytes is not None:
        parts.append(
            f"peak {format_bytes(one.allocated_bytes)} allocated, {format_bytes(one.reserved_bytes)} reserved (max over ranks)"
        )
    return f"{one.arm}: {'; '.join(parts)}" if parts else None


def _equal_metrics(runs: Runs, metrics: Comparer) -> Iterator[Reason]:
    for name in runs.arms:
        seen = metrics.of(name)
        if seen is None or seen.runs < 2:
            continue
        if seen.differing:
            text = f"{name}: {seen.differing} of {seen.runs - 1} runs differ from the first: {seen.first_difference}"
            yield Reason("METRICS_DIFFER", text)
        else:
            yield Reason("METRICS_EQUAL", f"{name}: {seen.values:,} values equal bit by bit in {seen.runs} fresh runs")
        if seen.warning:
            yield Reason("METRICS_ROUNDED", f"{name}: {seen.warning}")


def _skew(runs: Runs, about: ProgramReport) -> Iterator[Reason]:
    """Which rank holds the others up: by its steps, and by the ranges in which it is slowest."""
    if about.ranks < 2:
        return
    for one in about.arms:
        if one.ranks:
            slowest = max(one.ranks, key=lambda rank: rank.step_ns)
            middle = median(rank.step_ns for rank in one.ranks)
            listed = ", ".join(f"{rank.rank}: {format_ns(rank.step_ns)}" for rank in one.ranks[:16])
            more = f" and {len(one.ranks) - 16} more" if len(one.ranks) > 16 else ""
            over = format_percent(slowest.step_ns / middle - 1) if middle else ""
            text = f"{one.arm}: median step per rank {listed}{more}; slowest is rank {slowest.rank} ({over} on the middle one)"
            yield Reason("RANKS", text)
    told: dict[tuple[int, str], list[str]] = {}
    for name, own in runs.arms.items():
        for rank, key, value, middle in _slow_ranks(own)[:SKEWED_RANGES]:
            side = f"{format_ns(value)} per step, the middle of the others {format_ns(middle)} ({name})"
            told.setdefault((rank, own.profiled[0].profile.names[key]), []).append(side)
    for (rank, shown), sides in told.items():
        text = f"rank {rank} is the slowest in {shown}: {'; '.join(sides)}"
        yield Reason("STRAGGLER", text, "look at that rank's card, its share of the work, its node")


def _slow_ranks(own: ArmRuns) -> list[tuple[int, Key, float, float]]:
    """(rank, range, its median per step, the middle rank's) where one rank stands out, the largest differences first."""
    medians: dict[Key, dict[int, list[int]]] = {}
    for run in own.profiled:
        for key, each in run.medians.items():
            for rank, value in each.items():
                medians.setdefault(key, {}).setdefault(rank, []).append(value)
    found = []
    for key, ranks in medians.items():
        values = {rank: median(several) for rank, several in ranks.items()}
        if own.profiled[0].profile.names.get(key, STEP) == STEP:  # told by RANKS
            continue
        rank = max(values, key=lambda one: values[one])
        others = [value for one, value in values.items() if one != rank]
        if others and values[rank] > (1 + SKEW_LEAST) * median(others):
            found.append((rank, key, values[rank], median(others)))
    return sorted(found, key=lambda one: one[3] - one[2])


def _outside(runs: Runs) -> Iterator[Reason]:
    for own in runs.arms.values():
        for run in own.profiled[:1]:
            for left in run.profile.together.unattributed:
                if left.share > LOST_SHARE:
                    text = f"{run.capture}: {left.share:.1%} of the GPU time lies in no range ({left.ops} ops): {left.reason}"
                    yield Reason("UNATTRIBUTED_GPU_TIME", text, "the whole capture counts here: warm-up and set-up too")
