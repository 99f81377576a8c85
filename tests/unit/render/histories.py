"""Synthetic runs over many commits, whose truth is known."""

import dataclasses
import random

from perfgate.model import ProcessSample
from tests.unit.render import samples


def run(number, default_ns=1_000_000, deterministic_ns=600_000, *, noise=0.002, seed=0, op="moe/combine", **environment):
    """Run ``number`` of one judged range; every process's median jitters by ``noise`` (standard deviation)."""
    random_ = random.Random(f"{seed}-{number}-{op}")
    base = samples.comparison(op)
    arms = [
        _arm(arm, level, random_, noise) for arm, level in ((base.default, default_ns), (base.deterministic, deterministic_ns))
    ]
    ratio = arms[1].busy_ns / arms[0].busy_ns
    comparison = dataclasses.replace(
        base,
        default=arms[0],
        deterministic=arms[1],
        ratio=ratio,
        ratio_low=ratio * (1 - 2 * noise),
        ratio_high=ratio * (1 + 2 * noise),
        delta_ns=arms[1].busy_ns - arms[0].busy_ns,
        contributions=(),
    )
    commit = {"commit": f"{number:040x}", "dirty": False, "changes": None}
    made = samples.result([comparison], environment={**samples.ENVIRONMENT, "git": commit, **environment})
    started = f"2026-11-{1 + number // 24:02d}T{number % 24:02d}:00:00Z"
    return dataclasses.replace(made, run=dataclasses.replace(made.run, id=f"run-{number:03d}", started=started))


def _arm(arm, level, random_, noise):
    made = []
    for block in range(3):
        for position in (0, 3):
            middle = level * (1 + random_.gauss(0, noise))
            busy = tuple(round(middle * (1 + random_.gauss(0, noise / 4))) for _ in range(10))
            made.append(ProcessSample(f"time-{block}-{position}", block, position, busy, busy, busy, (1,) * 10, "k"))
    ordered = sorted(value for sample in made for value in sample.busy_ns)
    return dataclasses.replace(arm, busy_ns=ordered[len(ordered) // 2], samples=tuple(made))
