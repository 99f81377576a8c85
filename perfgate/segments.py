"""Whether the card stood still while a segment of work ran, and whether both arms of a block met the same card."""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.model import Reason
from perfgate.nvml import Segment

POWER_CAPPED_SHARE = 0.05  # of a segment's wall time: GEMMs touch the power cap for moments on a healthy card
OTHERS_GREW_BYTES = 16 << 20
NEVER_SLOWED_BY_WORK = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")


def segment_guard(before: Segment, after: Segment) -> tuple[Reason, ...]:
    """What happened to the card between two readings that can change a time; () where nothing did or nothing was told.

    Codes: THROTTLED (heat or the board's own brake; any), POWER_CAPPED (over 5 % of the segment), POWER_LIMIT_CHANGED,
    CLOCKS_CHANGED (their maximum), OTHER_PROCESSES (came, went, grew, or were there). See :func:`one_sided`.
    """
    found = [*_throttled(before, after), *_changed(before, after), *_others(before, after)]
    return tuple(found)


def one_sided(default: Iterable[Reason], deterministic: Iterable[Reason]) -> tuple[Reason, ...]:
    """ENVIRONMENT_CHANGED for every guard reason that only one arm of a block met: then the block does not count.

    What both arms met slowed both, and is left to the card's warnings.
    """
    arms = {"default": {one.code: one for one in default}, "deterministic": {one.code: one for one in deterministic}}
    found = []
    for arm, other in (("default", "deterministic"), ("deterministic", "default")):
        for code, reason in arms[arm].items():
            if code not in arms[other]:
                found.append(Reason("ENVIRONMENT_CHANGED", f"only the {arm} arm: {reason.text}", reason.next))
    return tuple(found)


def _throttled(before: Segment, after: Segment) -> list[Reason]:
    found = []
    named = [name for name in after.throttled if name in NEVER_SLOWED_BY_WORK]
    hot = _growth(before.heat_capped_ns, after.heat_capped_ns)
    if named or hot > 0:
        text = f"the card was slowed down: {', '.join(named) or 'heat'}{_at(after)}"
        found.append(Reason("THROTTLED", text, "let it cool down, or look at its power supply: nvidia-smi -q -d PERFORMANCE"))
    elapsed = max(after.read_ns - before.read_ns, 1)
    share = _growth(before.power_capped_ns, after.power_capped_ns) / elapsed
    if share > POWER_CAPPED_SHARE:
        text = f"the card ran into its power limit for {min(share, 1):.0%} of the time{_at(after)}"
        found.append(Reason("POWER_CAPPED", text, "nvidia-smi -q -d POWER shows the limit"))
    return found


def _changed(before: Segment, after: Segment) -> list[Reason]:
    found = []
    if before.power_limit_w is not None and after.power_limit_w is not None and before.power_limit_w != after.power_limit_w:
        text = f"the power limit went from {before.power_limit_w:g} to {after.power_limit_w:g} W"
        found.append(Reason("POWER_LIMIT_CHANGED", text, "somebody changes this card: run when it is yours alone"))
    if before.sm_max_mhz is not None and after.sm_max_mhz is not None and before.sm_max_mhz != after.sm_max_mhz:
        text = f"the highest SM clock went from {before.sm_max_mhz} to {after.sm_max_mhz} MHz"
        found.append(Reason("CLOCKS_CHANGED", text, "somebody changes this card: run when it is yours alone"))
    return found


def _others(before: Segment, after: Segment) -> list[Reason]:
    if before.others is None or after.others is None:
        return []
    mend = "run when the card is yours alone: nvidia-smi shows who is on it"
    grown = abs((after.others_bytes or 0) - (before.others_bytes or 0))
    if before.others != after.others or grown > OTHERS_GREW_BYTES:
        text = f"other processes on the card went from {before.others} ({_mib(before)}) to {after.others} ({_mib(after)})"
        return [Reason("OTHER_PROCESSES", text, mend)]
    if after.others:
        return [Reason("OTHER_PROCESSES", f"{after.others} other processes hold {_mib(after)} of the card", mend)]
    return []


def _growth(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(after - before, 0)


def _mib(segment: Segment) -> str:
    return f"{(segment.others_bytes or 0) / 2**20:.0f} MiB"


def _at(segment: Segment) -> str:
    return "" if segment.temperature_c is None else f" ({segment.temperature_c} °C)"
