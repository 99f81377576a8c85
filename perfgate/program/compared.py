"""A program's runs -> Comparisons that wait for their verdict: the step and every range in it, each arm against the default."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from perfgate.budgets import DEFAULTS, Budgets
from perfgate.compare import arm
from perfgate.model import ArmFigures, Bits, Comparison, Memory, Metric, Reason
from perfgate.program.arms import Arm
from perfgate.program.evidence import STEP, ArmRuns, Key, Runs
from perfgate.program.metrics import Comparer
from perfgate.traces.names import compile_pattern

LOST_SHARE = 0.01  # of a range's launches without GPU work in the capture: more than this is no measurement


@dataclass(frozen=True)
class Judged:
    """Which ranges are judged beside the step: those that ``--match`` finds, else those with a ``[[budget]]`` of their own."""

    match: str
    budgets: Budgets

    def __call__(self, name: str) -> bool:
        if name == STEP:
            return True
        if self.match:
            return bool(compile_pattern(self.match).search(name))
        own = self.budgets.find(f"{name}::")
        return own is not None and own.range != DEFAULTS


def comparisons(runs: Runs, judged: Judged, metrics: Comparer, *, gpu: bool) -> tuple[Comparison, ...]:
    """One comparison per range and arm but the default, the step's first; ranges that one side lacks are there too.

    Judged are the step and ``judged`` ranges, of the judged arm alone.
    """
    names = range_names(runs)
    return tuple(
        _comparison(name, key, one, runs, judged, metrics, gpu=gpu)
        for name, key in names.items()
        for one in runs.arms.values()
        if one.arm.name != "default"
    )


def range_names(runs: Runs) -> dict[str, Key | None]:
    """What each range of any run is called, with its key; the step first (``None`` where it was only timed)."""
    names: dict[str, Key | None] = {}
    if any(one.timed or one.profiled for one in runs.arms.values()):
        names[STEP] = None
    for one in runs.arms.values():
        for run in one.profiled:
            names |= {name: key for key, name in run.profile.names.items()}
    return names


def _comparison(
    name: str, key: Key | None, own: ArmRuns, runs: Runs, judged: Judged, metrics: Comparer, *, gpu: bool
) -> Comparison:
    default = runs.arms["default"]
    step = name == STEP
    is_judged = own.arm.judged and judged(name)
    shown: Metric = "step_wall" if step else "busy" if gpu else "host"
    metric = judged.budgets.metric(f"{name}::", shown) if is_judged else shown
    seen, control = metrics.of(own.arm.name), metrics.of("default")
    return Comparison(
        op=name,
        case="",
        phase="",
        implementation=own.arm.name,
        role=own.arm.role,
        judged=is_judged,
        default=_figures(name, key, default, runs),
        deterministic=_figures(name, key, own, runs),
        metric=metric,
        memory=_memory(default, own) if step else Memory(),
        bits=seen.bits(control) if step and seen else Bits(),
        signals=tuple(_problems(name, key, (default, own), metric)),
    )


def _figures(name: str, key: Key | None, own: ArmRuns, runs: Runs) -> ArmFigures | None:
    """One arm's figures of a range, worked out anew only where runs were added or dropped since."""
    step = name == STEP
    walls = [one for one in runs.step_samples(own.arm.name) if one.step_wall_ns] if step else []
    made_of = [one.capture for one in own.profiled], walls
    known = own.figures.get(name)
    if known is None or known[0] != made_of:
        parts = [(one.profile.together, one.samples[key]) for one in own.profiled if key in one.samples] if key else []
        domain, plain = key or ("", "")
        found = arm(own.arm.name, parts, name=plain, domain=domain, confirmations=walls) if parts or walls else None
        known = own.figures[name] = (made_of, found)
    return known[1]


def _memory(default: ArmRuns, own: ArmRuns) -> Memory:
    """Peaks of the whole program: the largest rank's, the largest run's."""
    return Memory(
        default_bytes=peak(default, "allocated_bytes"),
        deterministic_bytes=peak(own, "allocated_bytes"),
        default_reserved_bytes=peak(default, "reserved_bytes"),
        deterministic_reserved_bytes=peak(own, "reserved_bytes"),
    )


def peak(runs: ArmRuns, name: str) -> int | None:
    """The largest of a peak over ranks and timed runs; ``None`` where any rank of any run did not tell it."""
    peaks = [getattr(record, name) for one in runs.timed for record in one.records]
    return None if not peaks or None in peaks else max(peaks)


def _problems(name: str, key: Key | None, both: tuple[ArmRuns, ArmRuns], metric: Metric) -> Iterator[Reason]:
    """What makes a range's GPU time unknown: work that the capture lost."""
    if key is None or metric not in ("busy", "span"):
        return
    for one in both:
        for run in one.profiled:
            launched = sum(run.samples[key].ops) if key in run.samples else 0
            lost = run.lost.get(key, 0)
            if lost > LOST_SHARE * (launched + lost):
                text = f"{run.capture}: {lost} launches in {name} have no GPU work in the capture, {launched} have"
                yield Reason("PROFILER_FAILED", text, "run again; long captures lose records: fewer steps")
                return


def memory_unknown(comparisons: Collection[Comparison], budgets: Budgets) -> Mapping[str, Reason]:
    """INCOMPLETE, by range, where a judged range's budget limits memory and the program did not tell its peaks."""
    found = {}
    for one in comparisons:
        ref = budgets.find(one.range) if one.judged else None
        limited = ref is not None and (ref.memory_ratio is not None or ref.memory_bytes is not None)
        if ref is not None and limited and (one.memory.default_bytes is None or one.memory.deterministic_bytes is None):
            text = f"{one.op}: {ref.file}:{ref.line} limits memory, but the program told no peaks"
            mend = "only the step has peaks, and only where the program uses perfgate.steps with CUDA; or drop memory there"
            found[one.range] = Reason("INCOMPLETE", text, mend)
    return found


def arms_in_words(arms: Collection[Arm]) -> str:
    """``default, deterministic, champion (judged)``."""
    return ", ".join(f"{one.name} (judged)" if one.judged else one.name for one in arms)
