from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.model import Reason
from perfgate.nvml import Segment
from perfgate.segments import one_sided, segment_guard

SECOND = 1_000_000_000
BEFORE = Segment(0, 1980, 3201, 1980, 40, 120.0, 700.0, (), 0, 0, 0, 0)
AFTER = replace(BEFORE, read_ns=10 * SECOND, temperature_c=60)


def codes(before: Segment, after: Segment) -> list[str]:
    return [reason.code for reason in segment_guard(before, after)]


def test_a_card_that_stood_still_gives_no_reason() -> None:
    assert [] == codes(BEFORE, AFTER)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"heat_capped_ns": 1}, ["THROTTLED"]),
        ({"throttled": ("hardware thermal slowdown",)}, ["THROTTLED"]),
        ({"throttled": ("power brake",)}, ["THROTTLED"]),
        ({"throttled": ("power cap",)}, []),
        ({"power_capped_ns": SECOND // 2}, []),
        ({"power_capped_ns": SECOND // 2 + 1}, ["POWER_CAPPED"]),
        ({"power_limit_w": 600.0}, ["POWER_LIMIT_CHANGED"]),
        ({"sm_max_mhz": 1500}, ["CLOCKS_CHANGED"]),
        ({"sm_mhz": 345}, []),
        ({"others": 1, "others_bytes": 0}, ["OTHER_PROCESSES"]),
        ({"others_bytes": 16 << 20}, []),
        ({"others_bytes": (16 << 20) + 1}, ["OTHER_PROCESSES"]),
        ({"heat_capped_ns": 1, "power_limit_w": 600.0, "others": 2}, ["THROTTLED", "POWER_LIMIT_CHANGED", "OTHER_PROCESSES"]),
    ],
)
def test_what_can_change_a_time_is_a_reason(change: dict[str, object], expected: list[str]) -> None:
    assert expected == codes(BEFORE, replace(AFTER, **change))  # type: ignore[arg-type]


def test_a_neighbour_who_stays_is_told_too() -> None:
    with_one = replace(BEFORE, others=1, others_bytes=1 << 30)
    found = segment_guard(with_one, replace(AFTER, others=1, others_bytes=1 << 30))

    assert ["1 other processes hold 1024 MiB of the card"] == [one.text for one in found]


def test_only_growth_counts_not_what_the_driver_has_summed_up() -> None:
    assert [] == codes(
        replace(BEFORE, heat_capped_ns=99, power_capped_ns=9 * SECOND),
        replace(AFTER, heat_capped_ns=99, power_capped_ns=9 * SECOND),
    )


@pytest.mark.parametrize("reading", [Segment(read_ns=1), Segment(read_ns=1, problem="NVML does not start")])
def test_a_card_that_tells_nothing_gives_no_reason(reading: Segment) -> None:
    assert ([], [], []) == (codes(reading, reading), codes(BEFORE, replace(reading, read_ns=9)), codes(reading, AFTER))


def test_what_only_one_arm_met_makes_its_block_invalid() -> None:
    hot, capped = Reason("THROTTLED", "slowed down", "cool it"), Reason("POWER_CAPPED", "at its limit")

    assert (Reason("ENVIRONMENT_CHANGED", "only the deterministic arm: slowed down", "cool it"),) == (
        one_sided([capped], [capped, hot])
    )
    assert ["only the default arm: slowed down"] == [one.text for one in one_sided([hot, hot], [])]


def test_what_both_arms_met_does_not() -> None:
    hot = Reason("THROTTLED", "slowed down")

    assert () == one_sided([hot, hot], [hot])
