from dataclasses import replace

import numpy as np
import pytest

from perfgate import signals
from perfgate.compare import effect
from perfgate.model import ArmFigures, Memory
from tests.unit import arms
from tests.unit.arms import known


def warming(name, start=1.0, processes=6):
    """An arm whose first instances are ``start`` times as slow as its last."""
    arm = arms.arm(name, [100] * processes)
    busy = tuple(int(100_000 * factor) for factor in np.linspace(start, 1, 30))
    return replace(arm, samples=tuple(replace(one, busy_ns=busy) for one in arm.samples))


def test_too_few_instances():
    assert "TOO_FEW_SAMPLES" == known(signals.too_few(arms.arm("a", [100] * 6, instances=2), "busy")).code
    assert signals.too_few(arms.arm("a", [100] * 6, instances=3), "busy") is None


def test_too_few_processes():
    assert "1 process measured busy" in known(signals.too_few(arms.arm("a", [100]), "busy")).text


@pytest.mark.parametrize("kernels", ["mixed", "k2"])
def test_kernels_that_change_within_an_arm_are_modes(kernels):
    arm = arms.arm("a", [100] * 6)
    arm = replace(arm, samples=(*arm.samples[:5], replace(arm.samples[5], kernels=kernels)))

    assert "MULTIMODAL" == known(signals.changing_kernels(arm)).code
    assert ["MULTIMODAL"] == [one.code for one in effect(arm, arms.arm("b", [100] * 6), "busy").signals]
    assert () == effect(arm, arms.arm("b", [100] * 6), "host").signals


def test_same_or_unknown_kernels_are_one_mode():
    assert signals.changing_kernels(arms.arm("a", [100] * 6)) is None
    assert signals.changing_kernels(arms.arm("a", [100] * 6, kernels="")) is None


def test_drift_is_seen_and_moves_the_ratio():
    cold = warming("a", 1.3)

    assert "DRIFT" == known(signals.drift(cold, "busy")).code
    assert "−" in known(signals.drift(cold, "busy")).text
    assert signals.drift_shift(cold.samples, warming("b").samples, "busy") > 0.05
    assert pytest.approx(signals.drift_shift(cold.samples, cold.samples, "busy")) == 0.0


def test_noise_is_not_drift():
    rng = np.random.default_rng(1)
    arm = arms.arm("a", [100] * 6)
    noisy = [replace(one, busy_ns=tuple(int(value) for value in rng.normal(1e5, 5e3, 30))) for one in arm.samples]

    assert signals.drift(replace(arm, samples=tuple(noisy)), "busy") is None
    assert 0.0 == signals.drift_shift(noisy, arm.samples, "busy")


def test_more_than_peak_bandwidth_is_a_bug_of_the_workload():
    found = known(signals.roofline(ArmFigures("a", busy_ns=1000), 8_000_000, 4.8e12))

    assert "ROOFLINE" == found.code
    assert "8.00 TB/s" in found.text
    assert signals.roofline(ArmFigures("a", busy_ns=2000), 8_000_000, 4.8e12) is None
    assert signals.roofline(ArmFigures("a"), 8_000_000, 4.8e12) is None
    assert signals.roofline(ArmFigures("a", busy_ns=1000), None, 4.8e12) is None


@pytest.mark.parametrize(
    ("declared", "extra", "expected"),
    [
        (100, 100, None),
        (100, 109, None),
        (100, 111, "MEMORY_FORMULA"),
        (100, 89, "MEMORY_FORMULA"),
        (0, 0, None),
        (0, 2, "MEMORY_FORMULA"),
    ],
)
def test_workspace_formula_is_held_against_the_measured_peak(declared, extra, expected):
    mib = 2**20
    memory = Memory(deterministic_bytes=(500 + extra) * mib, output_bytes=500 * mib, declared_bytes=declared * mib)
    found = signals.workspace_formula(memory, "new")

    assert expected == (found and found.code)


def test_workspace_formula_needs_both_figures():
    assert signals.workspace_formula(Memory(output_bytes=1, deterministic_bytes=2**30), "new") is None
    assert signals.workspace_formula(Memory(declared_bytes=2**30), "new") is None


@pytest.mark.parametrize(
    ("ratio", "steps", "expected"),
    [
        (0.9, (100, 110), "CONTRADICTION"),
        (1.1, (100, 90), "CONTRADICTION"),
        (0.9, (100, 95), None),
        (0.9, (100, 101), None),
        (0.99, (100, 150), None),
        (None, (100, 150), None),
        (0.9, (100, None), None),
    ],
)
def test_contradiction_between_profiled_and_unprofiled(ratio, steps, expected):
    first, second = (ArmFigures(name, step_wall_ns=time) for name, time in zip("ab", steps, strict=True))
    found = signals.contradiction(first, second, "busy", ratio)

    assert expected == (found and found.code)


def test_arm_that_differs_from_itself_within_blocks():
    rising = arms.arm("a", [100, 103, 100.1, 103, 99.9, 103.1])

    assert "AA_DIFFERS" == known(signals.against_itself(rising, "busy")).code
    assert signals.against_itself(arms.noisy("a", 100, noise=0.01), "busy") is None
    assert signals.against_itself(arms.arm("a", [100, 103] * 2), "busy") is None
    assert signals.against_itself(arms.arm("a", [0] * 6), "busy") is None
