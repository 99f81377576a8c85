from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate import compare
from perfgate.errors import UnusableError
from perfgate.model import Contribution, ProcessSample
from tests.unit import arms

ONE = [("copy", "1x1x1", 0, 30), ("add", "2x1x1", 20, 100)]
SLOW = [("copy", "1x1x1", 0, 30), ("add", "2x1x1", 40, 180)]


def sampled(measurement, capture="c", block=0, position=0):
    return compare.sample(measurement, "r", capture=capture, block=block, position=position)


def figures(*measurements, **options):
    return compare.arm("new", [(one, sampled(one, block=n)) for n, one in enumerate(measurements)], name="r", **options)


def test_sample_holds_every_instance_in_order():
    sample = sampled(arms.measured([ONE, SLOW]), capture="c7", block=2, position=3)

    assert ("c7", 2, 3) == (sample.capture, sample.block, sample.position)
    assert (100, 170) == sample.busy_ns
    assert (100, 180) == sample.span_ns
    assert (200, 280) == sample.host_ns
    assert (2, 2) == sample.ops


def test_sample_without_gpu_has_host_time_only():
    sample = sampled(arms.measured([ONE], gpu=False))

    assert ((), (), (), (200,)) == (sample.busy_ns, sample.span_ns, sample.ops, sample.host_ns)


def test_sample_of_a_range_that_is_not_there_is_refused():
    with pytest.raises(UnusableError, match="holds no range 'other'"):
        compare.sample(arms.measured([ONE]), "other", capture="c", block=0, position=0)


def test_sample_is_taken_from_its_own_domain_only():
    with pytest.raises(UnusableError, match=r"perfgate\.user"):
        compare.sample(arms.measured([ONE]), "r", domain="perfgate.user", capture="c", block=0, position=0)


@pytest.mark.parametrize(
    "other",
    [
        [("copy", "1x1x1", 0, 30), ("mul", "2x1x1", 20, 100)],
        [("copy", "1x1x1", 0, 30), ("add", "4x1x1", 20, 100)],
        [("add", "2x1x1", 20, 100), ("copy", "1x1x1", 0, 30)],
        [("copy", "1x1x1", 0, 30)],
    ],
    ids=["name", "grid", "order", "count"],
)
def test_fingerprint_tells_lists_of_kernels_apart(other):
    first, second = sampled(arms.measured([ONE, ONE])), sampled(arms.measured([other, other]))

    assert first.kernels != second.kernels
    assert "mixed" == sampled(arms.measured([ONE, other])).kernels


def test_fingerprint_does_not_depend_on_times_or_capture():
    assert sampled(arms.measured([ONE])).kernels == sampled(arms.measured([SLOW, ONE]), capture="d").kernels


def test_fingerprint_is_unknown_without_detail():
    assert "" == sampled(arms.measured([ONE], detail=False)).kernels


def test_arm_takes_low_medians_and_the_kernels_of_that_instance():
    arm = figures(arms.measured([ONE, SLOW]), arms.measured([SLOW, ONE]))

    assert (100, 100, 200, 2) == (arm.busy_ns, arm.span_ns, arm.host_ns, arm.ops)
    assert [("add", 70), ("copy", 30)] == [(one.name, one.exclusive_ns) for one in arm.kernels]
    assert (("copy", 0, 30), ("add", 20, 100)) == arm.timeline


def test_arm_of_nothing_has_no_figures():
    arm = compare.arm("new", [], name="r")

    assert (None, None, (), ()) == (arm.busy_ns, arm.host_ns, arm.samples, arm.kernels)


def test_arm_takes_step_time_from_unprofiled_children():
    confirmed = ProcessSample("x", 0, 0, (), (), (), (), step_wall_ns=(7, 5, 9))
    arm = figures(arms.measured([ONE]), confirmations=[confirmed])

    assert 7 == arm.step_wall_ns
    assert confirmed in arm.samples


def test_arm_does_not_draw_a_huge_instance():
    huge = [("k", "1x1x1", 2 * n, 2 * n + 1) for n in range(compare.TIMELINE_LIMIT + 1)]
    arm = figures(arms.measured([huge]))

    assert () == arm.timeline
    assert arm.kernels[0].count == compare.TIMELINE_LIMIT + 1


kernels = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d<e,f>"]),
        st.sampled_from(["1x1x1", "9x1x1"]),
        st.integers(0, 500),
        st.integers(1, 200),
    ).map(lambda one: (one[0], one[1], one[2], one[2] + one[3])),
    min_size=1,
    max_size=6,
).map(lambda found: sorted(found, key=lambda one: one[2]))
processes = st.lists(st.lists(kernels, min_size=1, max_size=4), min_size=1, max_size=3)


@settings(deadline=None, max_examples=40)
@given(processes, processes, st.sampled_from(["busy", "span", "host", "step_wall"]))
def test_contributions_sum_to_the_difference_exactly(default, other, metric):
    confirmed = [ProcessSample("x", 0, 0, (), (), (), (), step_wall_ns=(700, 5, 901))]
    first = figures(*map(arms.measured, default), confirmations=confirmed)
    second = figures(*map(arms.measured, other), confirmations=confirmed[:1])
    delta, parts = compare.explain(first, second, metric)

    assert getattr(second, f"{metric}_ns") - getattr(first, f"{metric}_ns") == delta
    assert delta == sum(part.delta_ns for part in parts)
    assert all(part.delta_ns for part in parts)


@settings(deadline=None, max_examples=40)
@given(processes)
def test_kernels_of_the_representative_instance_sum_to_its_busy_time(instances):
    arm = figures(*map(arms.measured, instances))

    assert arm.busy_ns == sum(one.exclusive_ns for one in arm.kernels)
    assert arm.busy_ns <= arm.span_ns


def test_contributions_name_what_came_went_and_changed():
    first = figures(arms.measured([[("same", "1", 0, 10), ("gone", "1", 10, 30), ("worse", "1", 30, 40)]]))
    second = figures(arms.measured([[("same", "1", 0, 10), ("new", "1", 10, 70), ("worse", "1", 80, 95)]]))
    delta, parts = compare.explain(first, second, "span")

    assert 55 == delta
    assert (
        Contribution("added", "new", 60),
        Contribution("removed", "gone", -20),
        Contribution("idle", "", 10),
        Contribution("slower", "worse", 5),
    ) == parts


def test_contributions_are_unknown_without_kernels():
    first, second = figures(arms.measured([ONE], detail=False)), figures(arms.measured([SLOW]))

    assert (70, ()) == compare.explain(first, second, "busy")


def test_effect_is_the_ratio_of_geometric_means():
    effect: Any = compare.effect(
        arms.arm("a", [100, 102, 98, 100, 100, 100]), arms.arm("b", [150, 150, 149, 151, 150, 150]), "busy"
    )

    assert pytest.approx(1.5, abs=0.001) == effect.ratio
    assert effect.ratio_low < effect.ratio < effect.ratio_high
    assert pytest.approx(1.5, abs=0.002) == effect.ratio_hodges_lehmann
    assert (3, ()) == (effect.blocks, effect.signals)
    assert 0 < effect.mde < 0.05


def test_linear_drift_cancels_inside_blocks():
    times = [100 * 1.01**step for step in range(12)]
    a = arms.arm("a", [times[0], times[3], times[5], times[6], times[8], times[11]])
    b = arms.arm("b", [times[1], times[2], times[4], times[7], times[9], times[10]])

    assert pytest.approx(1.0, abs=1e-5) == compare.effect(a, b, "busy").ratio


def test_contender_is_paired_by_process():
    captures = [f"c{n}" for n in range(6)]
    times = np.array([100, 130, 90, 120, 105, 80])
    effect: Any = compare.effect(
        arms.arm("a", times, captures=captures), arms.arm("b", times * 1.1, captures=captures), "busy", alpha=0.025
    )

    assert pytest.approx(1.1, abs=1e-4) == effect.ratio
    assert effect.ratio_high - effect.ratio_low < 0.001


def test_a_block_that_lost_a_process_does_not_count():
    a, b = arms.arm("a", [100, 100, 100, 100, 100, 400]), arms.arm("b", [100, 100, 100, 100, 100])
    effect = compare.effect(a, b, "busy")

    assert 2 == effect.blocks
    assert pytest.approx(effect.ratio) == 1.0


def test_one_process_per_arm_gives_a_ratio_without_an_interval():
    effect = compare.effect(arms.arm("a", [100]), arms.arm("b", [110]), "busy")

    assert (None, None, None) == (effect.ratio_low, effect.ratio_high, effect.mde)
    assert pytest.approx(effect.ratio) == 1.1
    assert ["TOO_FEW_SAMPLES", "TOO_FEW_SAMPLES"] == [one.code for one in effect.signals]


@pytest.mark.parametrize("metric", ["busy", "span"])
def test_zero_is_not_a_ratio(metric):
    effect = compare.effect(arms.arm("a", [0] * 6), arms.arm("b", [0] * 6), metric)

    assert (None, None) == (effect.ratio, effect.ratio_low)


def test_metric_that_nobody_measured_has_no_ratio():
    effect = compare.effect(arms.arm("a", [100] * 6), arms.arm("b", [100] * 6), "step_wall")

    assert (None, None, 0) == (effect.ratio, effect.delta_ns, effect.blocks)
