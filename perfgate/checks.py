"""What is judged besides time: bits, accuracy, memory, and whether the mode changed anything. Pure."""

from __future__ import annotations

from math import isfinite

from perfgate.model import BudgetRef, Comparison, Reason
from perfgate.units import format_bytes, format_limit, format_percent

ERROR_MARGIN = 1.10  # the deterministic arm's error may exceed the default's by 10 %
MEMORY_FLOOR_BYTES = 2**20  # an excess of less than 1 MiB is none: the allocator's own granularity on small cases


def bits_reason(one: Comparison, *, demanded: bool) -> Reason | None:
    """BITS_DIFFER, or INCOMPLETE where bits are ``demanded`` but no replay was compared (one run proves nothing)."""
    bits = one.bits
    if bits.differing:
        where = f": {bits.first_difference}" if bits.first_difference else ""
        text = f"{one.implementation}: {bits.differing} of {bits.replays} replays differ from the first{where}"
        return Reason("BITS_DIFFER", text, "look for atomics, splits chosen at run time, or uninitialised memory")
    if demanded and bits.replays < 1:
        return Reason(
            "INCOMPLETE", f"{one.implementation}: no replay's bits were compared", "run without skipping the bits check"
        )
    return None


def accuracy_reason(one: Comparison) -> Reason | None:
    """WRONG_RESULT where the error to float64 exceeds the op's own limit, or the default's by more than 10 %."""
    own, default, limit = one.accuracy.deterministic, one.accuracy.default, one.accuracy.limit
    if own is None:
        return None
    if limit is not None:
        allowed, what = limit, "the op's limit"
    elif default is not None:
        allowed, what = default * ERROR_MARGIN, f"the default's {default:.3g} and 10 %"
    else:
        return None
    if own <= allowed and isfinite(own):  # written so that NaN fails, and so that a broken default excuses nothing
        return None
    text = f"{one.implementation}: relative error {own:.3g} to float64, more than {what} ({allowed:.3g})"
    return Reason("WRONG_RESULT", text, "accumulate in float32, or mend the kernel; op.max_error sets another limit")


def memory_reason(one: Comparison, budget: BudgetRef, *, demanded: bool) -> Reason | None:
    """MEMORY_OVER_BUDGET, or INCOMPLETE where a memory budget is set, memory is ``demanded``, and it was not measured."""
    if budget.memory_ratio is None and budget.memory_bytes is None:
        return None
    default, own = one.memory.default_bytes, one.memory.deterministic_bytes
    if default is None or own is None:
        if not demanded:
            return None
        text = f"{one.name}: a memory budget is set, but the peak was not measured"
        return Reason("INCOMPLETE", text, f"see {budget.file}:{budget.line}; memory is measured on a GPU")
    extra = default * budget.memory_ratio if budget.memory_ratio is not None else float(budget.memory_bytes or 0)
    if own - default - extra <= MEMORY_FLOOR_BYTES:
        return None
    allowed = format_limit(budget.memory_ratio) if budget.memory_ratio is not None else f"+{format_bytes(budget.memory_bytes)}"
    change = f" ({format_percent(own / default - 1)})" if default else ""
    reserved = one.memory.default_reserved_bytes, one.memory.deterministic_reserved_bytes
    kept = "" if None in reserved else f"; reserved {format_bytes(reserved[0])} -> {format_bytes(reserved[1])}"
    text = f"peak {format_bytes(default)} -> {format_bytes(own)}{change}, budget {allowed} ({budget.file}:{budget.line}){kept}"
    return Reason("MEMORY_OVER_BUDGET", text, "shrink the workspace, or raise memory there with a reason")


def kernels_reason(one: Comparison) -> Reason | None:
    """NO_EFFECT for a racy op whose arms launched the same kernels, SAME_KERNELS for another; never with metric host."""
    if one.metric == "host" or one.default is None or one.deterministic is None:
        return None
    lists = [{sample.kernels for sample in figures.samples if sample.busy_ns} for figures in (one.default, one.deterministic)]
    if lists[0] != lists[1] or len(lists[0]) != 1 or lists[0] <= {"", "mixed"}:
        return None
    if not one.racy:
        return Reason("SAME_KERNELS", f"{one.implementation} launches the same kernels as {one.default.implementation}")
    text = f"{one.op} is declared racy, but {one.implementation} launched exactly the default's kernels: the mode had no effect"
    return Reason("NO_EFFECT", text, "check that the implementation really takes another path, or clear racy= if it is not")
