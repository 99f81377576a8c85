"""What every view shows and in which order, worked out once from a :class:`~perfgate.model.GateResult`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfgate import units
from perfgate.model import ArmFigures, Comparison, GateResult, Metric, Reason, Status
from perfgate.reasons import CODES
from perfgate.render._text import visible


@dataclass(frozen=True)
class Mark:
    """A status as icon and word, never as colour alone; ``severity`` orders worst first."""

    icon: str
    word: str
    severity: int


MARKS: dict[Status, Mark] = {
    "error": Mark("‼", "error", 6),
    "invalid": Mark("!", "invalid", 4),
    "fail": Mark("✗", "fail", 3),
    "inconclusive": Mark("?", "inconclusive", 2),
    "pass": Mark("✓", "pass", 1),
    "skipped": Mark("○", "skipped", 0),
}
_BITS_DIFFER_SEVERITY = 5  # the exit code 3 outranks invalid, DESIGN.md

ROLE_WORDS = {
    "default": "default",
    "stock_deterministic": "stock deterministic",
    "champion": "champion",
    "candidate": "candidate",
    "contender": "contender, not deterministic",
}


@dataclass(frozen=True)
class Entry:
    """A comparison with its place among those of its range: ``tied`` where its interval overlaps a neighbour's."""

    comparison: Comparison
    rank: int | None
    tied: bool

    @property
    def place(self) -> str:
        """``1``, ``=2`` for a tie, ``–`` where nothing was measured."""
        return units.MISSING if self.rank is None else f"{'=' if self.tied else ''}{self.rank}"


@dataclass(frozen=True)
class Group:
    """All implementations of one range, fastest first; ``head`` is the judged one (the worst of them), or the best placed."""

    range: str
    head: Comparison
    entries: tuple[Entry, ...]


def groups(result: GateResult) -> list[Group]:
    """The ranges of a run, worst verdict first, then by how far over (or near to) the budget they are."""
    by_range: dict[str, list[Comparison]] = {}
    for comparison in result.comparisons:
        by_range.setdefault(range_name(comparison), []).append(comparison)
    made = [Group(name, _head(members), _ranked(members)) for name, members in by_range.items()]
    return sorted(made, key=lambda group: (-severity(group.head), -_pressure(group.head), group.range))


def range_name(comparison: Comparison) -> str:
    """``op:case:phase``; a foreign range, which has neither case nor phase, by its own name."""
    return comparison.range if comparison.case or comparison.phase else comparison.op


def severity(comparison: Comparison) -> int:
    """Orders verdicts worst first; bits that differ outrank everything but an error."""
    if any(reason.code == "BITS_DIFFER" for reason in comparison.reasons):
        return max(_BITS_DIFFER_SEVERITY, MARKS[comparison.status].severity)
    return MARKS[comparison.status].severity


def figure(arm: ArmFigures | None, metric: Metric) -> int | None:
    """The arm's median in ns under a metric."""
    if arm is None:
        return None
    return {"busy": arm.busy_ns, "span": arm.span_ns, "host": arm.host_ns, "step_wall": arm.step_wall_ns}[metric]


def main_metric(result: GateResult) -> Metric:
    """The metric most comparisons were judged by: what the column's header names."""
    names = [comparison.metric for comparison in result.comparisons]
    return max(sorted(set(names)), key=names.count) if names else "busy"


def verdict_sentence(result: GateResult) -> str:
    """The run's verdict in one sentence: the judge's own text behind the status."""
    judged = sum(comparison.judged for comparison in result.comparisons)
    said = result.verdict.text or f"{judged} judged of {len(result.comparisons)} comparisons"
    return visible(f"{result.verdict.status.upper()} (exit {result.verdict.exit_code}): {said}")


def counts(result: GateResult) -> dict[Status, int]:
    """How many judged comparisons have each status, every status named, in the order of reading."""
    order: tuple[Status, ...] = ("pass", "fail", "inconclusive", "invalid", "error", "skipped")
    return {status: result.verdict.counts.get(status, 0) for status in order}


def on_cpu(result: GateResult) -> bool:
    """Whether the figures come from a CPU, so that they say nothing about a GPU."""
    return result.run.device.startswith("cpu")


def parts(result: GateResult) -> str:
    """Of which whole this run is a part, or of which parts it was made; "" for a run of its own."""
    if result.run.merged:
        return f"merged from {', '.join(f'{one.shard or one.id}' for one in result.run.merged)}"
    return f"shard {result.run.shard}" if result.run.shard else ""


def banners(result: GateResult) -> list[Reason]:
    """What must be read before any figure: no GPU, a run cut short, an environment that changed, provisional budgets."""
    said = []
    if on_cpu(result):
        text = "CPU figures: no GPU verdict"
        said.append(Reason("CPU_FIGURES", text, "run on a machine with an NVIDIA GPU and nsys for a verdict"))
    if not result.run.complete:
        found = next((finding for finding in result.findings if finding.code == "INCOMPLETE"), None)
        why = f": {found.text}" if found is not None else ""
        if result.run.merged:
            said.append(Reason("INCOMPLETE", f"The run is not whole{why}; it cannot pass", found.next if found else ""))
        else:
            text = f"The run was cut short{why}; it is shown as far as it came and cannot pass"
            said.append(Reason("INCOMPLETE", text, f"run it again: {result.run.command}"))
    if result.run.shard:
        if result.program is not None:
            text = f"Node {result.run.shard}: {result.program.ranks} ranks of the job; a slower one elsewhere is not seen here"
        else:
            measured = len({one.range for one in result.comparisons})
            text = f"Shard {result.run.shard}: {measured} of {len(result.run.planned)} ranges; the verdict is theirs alone"
        said.append(Reason("PART_OF_A_RUN", text, "`perfgate merge` joins all parts into one verdict"))
    said += [finding for finding in result.findings if finding.code in ("PROVISIONAL_BUDGET", "PART_OF_A_RUN")]
    changed = [c for c in result.comparisons if c.judged and any(reason.code == "ENVIRONMENT_CHANGED" for reason in c.reasons)]
    if changed:
        first = next(reason for reason in changed[0].reasons if reason.code == "ENVIRONMENT_CHANGED")
        text = f"The two arms did not run in the same environment ({len(changed)} ranges): {first.text}"
        said.append(Reason("ENVIRONMENT_CHANGED", text, first.next))
    known = {reason.code for reason in said}
    return said + [reason for reason in result.verdict.reasons if reason.code not in known and _decides(reason)]


def findings(result: GateResult) -> list[Reason]:
    """What was noticed beside the verdicts and is not in a banner yet."""
    banned = {(banner.code, banner.text) for banner in banners(result)}
    told = {banner[0] for banner in banned} & {"INCOMPLETE"}
    return [one for one in result.findings if (one.code, one.text) not in banned and one.code not in told]


def standing(comparison: Comparison) -> Mark:
    """The judged one's status; of the others what is wrong with them, or that they are ranked."""
    if comparison.judged:
        return MARKS[comparison.status]
    for reason in comparison.reasons:
        if reason.code in CODES:
            mark = MARKS[CODES[reason.code].status]
            return Mark(mark.icon, reason.code.lower().replace("_", " "), mark.severity)
    return MARKS["error"] if comparison.status == "error" else Mark("·", "ranked", 0)


def environment(result: GateResult) -> list[tuple[str, str]]:
    """The environment as flat (``gpu.name``, text) pairs in the order stored; empty values are left out."""
    return [(visible(key), visible(text)) for key, text in _flat("", result.environment) if text]


def bits_words(comparison: Comparison) -> str:
    """``equal, 30 replays``, ``3 of 30 differ``, ``not checked``."""
    bits = comparison.bits
    if bits.replays == 0:
        return "not checked"
    return f"{bits.differing} of {bits.replays} differ" if bits.differing else f"equal, {bits.replays} replays"


def control_words(comparison: Comparison) -> str:
    """What the default's own replays did: the proof that the check can see a difference; "" where it was not tried."""
    bits = comparison.bits
    if bits.default_differing is None:
        return ""
    return f"default: {bits.default_differing} of {bits.default_replays or bits.replays} differ"


def memory_delta(comparison: Comparison) -> int | None:
    """Peak bytes the deterministic arm allocates beyond the default."""
    memory = comparison.memory
    if memory.default_bytes is None or memory.deterministic_bytes is None:
        return None
    return memory.deterministic_bytes - memory.default_bytes


def error_words(comparison: Comparison) -> str:
    """``1.2e-07 → 9.8e-08``: relative L2 error to float64, default then this implementation."""
    accuracy = comparison.accuracy
    if accuracy.default is None and accuracy.deterministic is None:
        return units.MISSING
    return " → ".join(units.MISSING if e is None else f"{e:.1e}" for e in (accuracy.default, accuracy.deterministic))


def shown_reasons(comparison: Comparison) -> tuple[Reason, ...]:
    """Reasons worth a footnote: everything but a plain WITHIN_BUDGET, which the verdict's word already says."""
    return tuple(reason for reason in comparison.reasons if reason.code != "WITHIN_BUDGET" or reason.next)


def _decides(reason: Reason) -> bool:
    """Whether the reason has a say in the exit code; what has none is a finding."""
    return reason.code in CODES and CODES[reason.code].exit_code not in (None, 0)


def _head(members: list[Comparison]) -> Comparison:
    judged = [comparison for comparison in members if comparison.judged]
    if judged:
        return max(judged, key=severity)
    return min(members, key=lambda comparison: (comparison.ratio is None, comparison.ratio or 0.0))


def _ranked(members: list[Comparison]) -> tuple[Entry, ...]:
    """Rank = 1 + how many are surely faster (their whole interval lies below); overlapping intervals are a tie."""
    bounds = {id(c): _bounds(c) for c in members}
    entries = []
    for comparison in members:
        mine = bounds[id(comparison)]
        if mine is None:
            entries.append(Entry(comparison, None, False))
            continue
        others = [other for c in members if c is not comparison and (other := bounds[id(c)]) is not None]
        faster = sum(high < mine[0] for _, high in others)
        tied = any(low <= mine[1] and high >= mine[0] for low, high in others)
        entries.append(Entry(comparison, 1 + faster, tied))
    return tuple(sorted(entries, key=lambda e: (e.rank is None, e.comparison.ratio or 0.0, e.comparison.implementation)))


def _bounds(comparison: Comparison) -> tuple[float, float] | None:
    if comparison.ratio is None:
        return None
    low = comparison.ratio if comparison.ratio_low is None else comparison.ratio_low
    high = comparison.ratio if comparison.ratio_high is None else comparison.ratio_high
    return low, high


def _pressure(comparison: Comparison) -> float:
    """The ratio measured as a multiple of the ratio allowed; 0 where there is none."""
    if comparison.ratio is None:
        return 0.0
    allowed = 1.0 + comparison.budget.overhead if comparison.budget is not None else 1.0
    return comparison.ratio / allowed if allowed > 0 else comparison.ratio


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list | tuple):
        if all(isinstance(item, str | int | float) for item in value):
            yield prefix, ", ".join(str(item) for item in value)
        else:
            for index, item in enumerate(value):
                yield from _flat(f"{prefix}.{index}", item)
    else:
        yield prefix, "" if value is None else str(value)
