"""Synthetic results for the views: small hand-made ones and a generated large one; every figure is invented and adds up."""

import dataclasses
import functools
import random
from typing import Any

from perfgate.model import (
    Accuracy,
    ArmFigures,
    Bits,
    BudgetRef,
    Comparison,
    Contribution,
    Exempt,
    GateResult,
    KernelTime,
    Memory,
    ProcessSample,
    Reason,
    RunInfo,
    RunVerdict,
    Work,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"quoted\" 'single' `tick` & amp",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "right\u202eto\u2066left",
    "zero\u200bwidth\ufeff",
    "pipe | pipe\nnewline\ttab\rreturn\x00nul",
    "[link](javascript:alert(1)) ![i](http://x) @someone #1 <b>",
    "{{ 7*7 }} {% raw %} ${x}",
    "lone\ud800surrogate",
    "核函数 カーネル ядро",
    "--> ]]> <!-- :: %0A::error::",
    "a" * 120,
)
HUGE = "void kernel<" + ", ".join(f"std::tuple<int, float, T{i}>" for i in range(4000)) + ">(int*)"


def budget(**changes):
    fields = {
        "range": "moe/*", "metric": "busy", "overhead": 0.15, "goal": 0.05, "abs_floor_ns": 1000, "memory_ratio": 0.1,
        "memory_bytes": None,
        "reason": "deterministic combine costs a sort", "owner": "moe-kernels", "expires": "2027-06-30",
        "file": "thresholds/h200.toml", "line": 12,
    }  # fmt: skip
    return BudgetRef(**{**fields, **changes})


def arm(implementation, kernels, *, seed=0, blocks=3, iterations=10, gap=0, host=False):
    """An arm from ``[(kernel, ns), ...]`` run one after the other with ``gap`` ns between; samples jitter by under 0.5 %."""
    noise = random.Random(f"{implementation!a}{seed}")
    busy = sum(ns for _, ns in kernels)
    span = busy + gap * max(len(kernels) - 1, 0)
    samples = []
    for block in range(blocks):
        for position in (0, 3) if block % 2 == 0 else (1, 2):
            factor = 1 + noise.uniform(-0.002, 0.002)
            walk = [factor * (1 + noise.uniform(-0.003, 0.003)) for _ in range(iterations)]
            samples.append(
                ProcessSample(
                    capture=f"time-b{block:02d}-{position}",
                    block=block,
                    position=position,
                    busy_ns=() if host else tuple(round(busy * f) for f in walk),
                    span_ns=() if host else tuple(round(span * f) for f in walk),
                    host_ns=tuple(round(span * f * 1.1) + 4000 for f in walk),
                    ops=() if host else (len(kernels),) * iterations,
                    kernels="" if host else f"digest-{implementation}",
                )
            )
    timeline, start = [], 0
    for name, ns in kernels:
        timeline.append((name, start, start + ns))
        start += ns + gap
    times = [
        KernelTime(name, "kernel", f"{64 + i},1,1", "256,1,1", 32 + i, 4096 * i, 1, ns, ns)
        for i, (name, ns) in enumerate(kernels)
    ]
    return ArmFigures(
        implementation=implementation,
        busy_ns=None if host else busy,
        span_ns=None if host else span,
        host_ns=round(span * 1.1) + 4000,
        step_wall_ns=None,
        ops=None if host else len(kernels),
        samples=tuple(samples),
        kernels=() if host else tuple(times),
        timeline=() if host else tuple(timeline),
    )


def comparison(
    op="moe/combine",
    implementation="triton.gather",
    *,
    case="typical",
    phase="fwd",
    role="champion",
    default=(("void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)", 1_020_000), ("fill", 8_900)),
    kernels=(("sort_rows", 60_000), ("gather_combine", 422_100)),
    contributions=None,
    half=0.004,
    seed=0,
    gap=0,
    **changes,
):
    """A judged comparison whose contributions sum to its delta; ``changes`` replaces any field."""
    before, after = arm("torch.scatter_add_", default, seed=seed), arm(implementation, kernels, seed=seed, gap=gap)
    delta = after.busy_ns - before.busy_ns
    if contributions is None:
        old, new = dict(default), dict(kernels)
        contributions = [("added", k, ns) for k, ns in kernels if k not in old]
        contributions += [("removed", k, -ns) for k, ns in default if k not in new]
        contributions += [
            ("slower" if new[k] > ns else "faster", k, new[k] - ns) for k, ns in default if k in new and new[k] != ns
        ]
    parts = tuple(Contribution(kind, kernel, ns) for kind, kernel, ns in contributions)
    assert sum(part.delta_ns for part in parts) == delta
    ratio = after.busy_ns / before.busy_ns
    fields = {
        "op": op, "case": case, "phase": phase, "implementation": implementation, "role": role,
        "judged": role == "champion", "default": before, "deterministic": after, "metric": "busy",
        "ratio": ratio, "ratio_low": ratio * (1 - half), "ratio_high": ratio * (1 + half), "ratio_hodges_lehmann": ratio,
        "mde": half * 1.6, "blocks": 3, "delta_ns": delta, "contributions": parts,
        "memory": Memory(64 << 20, 72 << 20, 96 << 20, 96 << 20, 8 << 20),
        "bits": Bits(30, 0, "9f3a" * 16, 28, 30, 3), "accuracy": Accuracy(1.2e-7, 9.8e-8, 1e-6),
        "work": Work(604_000_000),
        "budget": budget() if role == "champion" else None,
        "status": "pass" if role == "champion" else "skipped",
        "reasons": (Reason("WITHIN_BUDGET", "the interval lies below the budget"),) if role == "champion" else (),
    }  # fmt: skip
    return Comparison(**{**fields, **changes})


def unmeasured(op, implementation, **changes):
    """A judged comparison whose deterministic arm gave nothing."""
    nothing = {
        "deterministic": None, "ratio": None, "ratio_low": None, "ratio_high": None, "mde": None, "blocks": 0,
        "ratio_hodges_lehmann": None,
        "delta_ns": None, "contributions": (), "bits": Bits(), "memory": Memory(), "accuracy": Accuracy(),
    }  # fmt: skip
    return dataclasses.replace(comparison(op, implementation), **{**nothing, **changes})


SLOW = (
    ("void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)", 1_020_000),
    ("fill", 8_900),
    ("sort_rows", 360_000),
)
ENVIRONMENT = {
    "device": "cuda",
    "gpu": {"name": "NVIDIA H200", "driver": "580.159", "power_limit_w": 700, "sm_max_mhz": 1980},
    "cpu": {"name": "Xeon", "cores": 32},
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
    "cuda": "13.0",
    "nsys": "2025.3.1",
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False, "changes": None},
    "warnings": [],
}


def result(comparisons=None, **changes):
    """A complete run on a GPU over ``comparisons``; the verdict's counts are those of the judged ones."""
    comparisons = tuple([comparison()] if comparisons is None else comparisons)
    counts: dict[str, int] = {}
    for c in comparisons:
        if c.judged:
            counts[c.status] = counts.get(c.status, 0) + 1
    codes = {"skipped": 0, "pass": 0, "inconclusive": 4, "fail": 1, "invalid": 5, "error": 6}  # worst last
    worst: Any = max((c.status for c in comparisons if c.judged), key=list(codes).index, default="invalid")
    fields = {
        "run": RunInfo(
            "20261129-101500-both", "2026-11-29T10:15:00Z", "perfgate run --mode both --suite typical", "both", "nsys", True,
            "cuda:0", 95.0,
        ),
        "environment": ENVIRONMENT,
        "comparisons": comparisons,
        "verdict": RunVerdict(worst, codes[worst], counts, "", ()),
        "exempt": (Exempt("comm/tp_overlap", "tensor-parallel overlap has no fixed reduction order"),),
        "findings": (),
    }  # fmt: skip
    return GateResult(**{**fields, **changes})


@functools.cache
def mixed():
    """One range of every status, with competitors, ties and footnotes."""
    over = Reason("OVER_BUDGET", "+35.0 % is above the budget of +15 %", "perfgate run --op moe/permute --case typical")
    straddles = Reason("STRADDLES_BUDGET", "the interval holds the budget", "measure more: --blocks 12")
    differ = Reason("BITS_DIFFER", "3 of 30 replays differ, first at element 17", "perfgate run --op loss/ce --replays 300")
    unbudgeted = Reason("NOT_BUDGETED", "no budget matches", 'add [[budget]] range = "norm/*" to thresholds/h200.toml')
    raised = Reason(
        "WORKLOAD_FAILED", "the worker raised RuntimeError: out of memory", "see captures/time-b00-0-default/stderr"
    )
    unsupported = Reason("UNSUPPORTED", "needs compute capability 10", "run on a B200")
    return result(
        [
            comparison(),
            comparison(
                implementation="torch.index_add_", role="stock_deterministic",
                kernels=(("radix_sort", 300_000), ("index_add", 1_000_000)),
            ),
            comparison(implementation="triton.segment", role="candidate", kernels=(("segment_combine", 483_000),)),
            comparison(implementation="cuda.atomic", role="contender", kernels=(("atomic_combine", 401_000),)),
            comparison("moe/permute", kernels=SLOW, status="fail", reasons=(over,), gap=3000),
            comparison(
                "attention/dsa", "tilelang.bwd", phase="bwd", kernels=((SLOW[0][0], 1_020_000), ("fill", 163_000)),
                half=0.02, status="inconclusive", reasons=(straddles,),
            ),
            comparison(
                "loss/ce", "triton.ce", status="fail", reasons=(differ,), bits=Bits(30, 3, "ab" * 32, 30, 30, 3, "element 17")
            ),
            comparison("norm/rms", "triton.rms", status="invalid", reasons=(unbudgeted,), budget=None),
            unmeasured("embedding/backward", "triton.sorted", status="error", reasons=(raised,)),
            unmeasured("attention/fa4", "cute.fa4", status="skipped", reasons=(unsupported,)),
        ],
        verdict=RunVerdict(
            "error", 6, {"pass": 1, "fail": 2, "inconclusive": 1, "invalid": 1, "error": 1, "skipped": 1},
            "1 range could not run, 2 of 6 judged fail",
        ),
        findings=(Reason("UNATTRIBUTED", "2.1 % of GPU time lies in no range", "open the trace in nsys-ui"),),
    )  # fmt: skip


@functools.cache
def on_cpu():
    """What a machine without a GPU gives: host figures only."""
    before, after = arm("torch.scatter_add_", (("", 90_000),), host=True), arm("torch.sorted", (("", 120_000),), host=True)
    delta = after.host_ns - before.host_ns
    c = comparison(
        implementation="torch.sorted", case="smoke", default=(("a", 90_000),), kernels=(("b", 120_000),), metric="host",
    )  # fmt: skip
    c = dataclasses.replace(
        c, default=before, deterministic=after, delta_ns=delta, contributions=(Contribution("host", "", delta),),
        ratio=after.host_ns / before.host_ns, ratio_low=1.1, ratio_high=1.5,
        budget=budget(metric="host", overhead=9.0, file="thresholds/cpu.toml"),
    )  # fmt: skip
    made = result([c], environment={**ENVIRONMENT, "device": "cpu", "gpu": None, "cuda": None})
    return dataclasses.replace(made, run=dataclasses.replace(made.run, device="cpu", profiler="torch"))


@functools.cache
def hostile():
    """Every hostile name wherever a stranger can write one."""
    comparisons = []
    for index, name in enumerate((*HOSTILE, HUGE)):
        said = Reason(name[:200], name[:2000], name[:2000])
        kernels = ((name, 500_000), (HOSTILE[1] if index == 0 else HOSTILE[0], 20_000))
        comparisons.append(
            comparison(
                f"x/{index}:{name[:200]}", name[:200], kernels=kernels, status="fail", reasons=(said,),
                budget=budget(reason=name[:200], owner=name[:200], file=name[:200], range=name[:200]),
                bits=Bits(3, 1, "00", first_difference=name[:200]),
            )
        )  # fmt: skip
    made = result(comparisons, environment={name[:200]: name[:200] for name in HOSTILE})
    run = dataclasses.replace(made.run, command="perfgate run " + " ".join(HOSTILE), id=HOSTILE[1], started=HOSTILE[2])
    exempt = tuple(Exempt(name, name) for name in HOSTILE)
    findings = tuple(Reason(name, name, name) for name in HOSTILE)
    verdict = RunVerdict("fail", 1, {"fail": len(comparisons)}, HOSTILE[0] + HOSTILE[5], findings)
    return dataclasses.replace(made, run=run, exempt=exempt, findings=findings, verdict=verdict)


@functools.cache
def large(ops=200, implementations=12, seed=7):
    """``ops`` ranges with ``implementations`` competitors each, six kernels an arm, ten instances in six processes."""
    random_ = random.Random(seed)
    statuses = ["pass"] * 14 + ["fail", "inconclusive", "inconclusive", "invalid", "error", "fail"]
    comparisons = []
    for op in range(ops):
        default = tuple(
            (f"void ns::default_kernel_{op}_{k}<float, {k}>(float*)", random_.randint(5_000, 400_000)) for k in range(5)
        )
        for index in range(implementations):
            kernels = default[:3] + tuple(
                (f"void det::k{index}_{op}_{k}<{k}>(int)", random_.randint(5_000, 300_000)) for k in range(3)
            )
            champion = index == 0
            status = random_.choice(statuses) if champion else "pass"
            codes = {
                "pass": "WITHIN_BUDGET",
                "fail": "OVER_BUDGET",
                "inconclusive": "STRADDLES_BUDGET",
                "invalid": "NOT_BUDGETED",
                "error": "WORKLOAD_FAILED",
            }
            comparisons.append(
                comparison(
                    f"family{op % 12}/op_{op:03d}", f"impl.{index:02d}", case="typical", phase="fwd" if op % 3 else "bwd",
                    role="champion" if champion else "contender" if index == 1 else "candidate",
                    default=default, kernels=kernels,
                    seed=op, status=status, gap=2_000, half=random_.uniform(0.001, 0.02),
                    reasons=(Reason(codes[status], "synthetic", "perfgate run --op x"),) if champion else (),
                )
            )  # fmt: skip
    return result(comparisons)
