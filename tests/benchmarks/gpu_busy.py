"""GPU time of a call for kernel tuning: the sum of its kernels from torch.profiler, the L2 cache evicted before each call.

A gate's figures come from ``perfgate run``; this is the quick look that a sweep over hundreds of configurations needs.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

FLUSH_BYTES = 128 << 20  # over twice the L2 of an H200
FLUSH_KERNEL, START_KERNEL = "FillFunctor<signed char>", "spin_kernel"


def busy_us(call: Callable[[], Any], calls: int = 10, only: str = "") -> float:
    """Median over ``calls`` of the summed kernel time of one call in microseconds; ``only`` counts kernels of that name.

    Raises ``RuntimeError`` where the profiler did not see every call.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            flush.fill_(1)
            torch.cuda._sleep(1)
            kept = call()
            torch.cuda.synchronize()
            del kept
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    totals: list[float] = []
    for event in sorted(events, key=lambda event: event.time_range.start):
        if START_KERNEL in event.name:
            totals.append(0.0)
        elif totals and FLUSH_KERNEL not in event.name and only in event.name:
            totals[-1] += event.time_range.elapsed_us()
    if len(totals) != calls:
        raise RuntimeError(f"the profiler saw {len(totals)} of {calls} calls: {sorted({event.name for event in events})[:5]}")
    return median(totals)
