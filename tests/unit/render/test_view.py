import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.model import Bits, Reason
from perfgate.render import _view
from tests.unit.render import samples


def with_interval(name, low, high):
    base = samples.comparison(implementation=name, role="candidate")
    return dataclasses.replace(base, ratio=(low + high) / 2, ratio_low=low, ratio_high=high)


def places(*intervals):
    group = _view.groups(samples.result([with_interval(f"i{n}", *bounds) for n, bounds in enumerate(intervals)]))[0]
    return {entry.comparison.implementation: entry.place for entry in group.entries}


def test_disjoint_intervals_are_ranked_and_overlapping_ones_tie():

    assert places((0.4, 0.5), (0.45, 0.6), (0.7, 0.8), (0.9, 1.0)) == {"i0": "=1", "i1": "=1", "i2": "3", "i3": "4"}


def test_ties_are_not_transitive_so_the_ends_of_a_chain_keep_their_order():

    assert places((0.4, 0.5), (0.49, 0.6), (0.59, 0.7)) == {"i0": "=1", "i1": "=1", "i2": "=2"}


def test_what_was_not_measured_has_no_rank_and_comes_last():
    missing = samples.unmeasured("moe/combine", "broken", status="error")
    entries = _view.groups(samples.result([missing, samples.comparison()]))[0].entries

    assert [(entry.comparison.implementation, entry.place) for entry in entries] == [("triton.gather", "1"), ("broken", "–")]


@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)).map(sorted).map(tuple), min_size=1, max_size=8))
def test_nobody_is_ranked_behind_one_whose_interval_overlaps_or_lies_above(intervals):
    ranked = {name: int(place.lstrip("=")) for name, place in places(*intervals).items()}

    for i, (low, _) in enumerate(intervals):
        assert ranked[f"i{i}"] == 1 + sum(high < low for high in (bounds[1] for bounds in intervals))


def test_a_foreign_range_goes_by_its_own_name():
    foreign = samples.comparison("train:attention forward", case="", phase="")

    assert [group.range for group in _view.groups(samples.result([foreign]))] == ["train:attention forward"]


def test_ranges_come_worst_first():
    order = [group.head.status for group in _view.groups(samples.mixed())]
    bits_first = _view.groups(samples.mixed())[1].head.reasons[0].code

    assert order == ["error", "fail", "invalid", "fail", "inconclusive", "pass", "skipped"]
    assert bits_first == "BITS_DIFFER"


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (Bits(), "not checked"),
        (Bits(replays=3), "equal, 3 replays"),
        (Bits(replays=30, differing=2), "2 of 30 differ"),
    ],
)
def test_bits_that_were_not_checked_never_read_as_equal(bits, expected):

    assert expected == _view.bits_words(samples.comparison(bits=bits))


def test_counts_name_every_status_even_at_zero():

    assert list(_view.counts(samples.result())) == ["pass", "fail", "inconclusive", "invalid", "error", "skipped"]


def test_provisional_budgets_are_said_before_the_figures():
    finding = Reason("PROVISIONAL_BUDGET", "thresholds/h100.toml:1: nobody measured on this card yet")
    result = samples.result(findings=(finding,))

    assert _view.banners(result) == [finding]
    assert _view.findings(result) == []


def test_only_what_decides_the_exit_code_is_a_banner():
    changed, noted = Reason("ENVIRONMENT_CHANGED", "clocks fell in one arm"), Reason("UNATTRIBUTED_GPU_TIME", "2 %")
    result = samples.mixed()
    verdict = dataclasses.replace(result.verdict, reasons=(changed, noted))
    result = dataclasses.replace(result, verdict=verdict, findings=(changed, noted))

    assert _view.banners(result) == [changed]
    assert _view.findings(result) == [noted]


def test_arms_that_ran_in_unlike_environments_are_a_banner():
    reason = Reason("ENVIRONMENT_CHANGED", "clocks fell to 1200 MHz in one arm", "run again")
    banners = _view.banners(samples.result([samples.comparison(status="invalid", reasons=(reason,))]))

    assert [(banner.code, banner.next) for banner in banners] == [("ENVIRONMENT_CHANGED", "run again")]
    assert "(1 ranges): clocks fell to 1200 MHz" in banners[0].text


@pytest.mark.parametrize(
    ("judged", "status", "code", "expected"),
    [
        (True, "pass", "WITHIN_BUDGET", "pass"),
        (True, "skipped", "UNSUPPORTED", "skipped"),
        (False, "skipped", None, "ranked"),
        (False, "skipped", "UNSUPPORTED", "unsupported"),
        (False, "skipped", "BITS_DIFFER", "bits differ"),
        (False, "error", "WORKLOAD_FAILED", "workload failed"),
        (False, "error", None, "error"),
    ],
)
def test_an_unjudged_one_is_ranked_or_says_what_is_wrong_with_it_and_never_passes(judged, status, code, expected):
    reasons = () if code is None else (Reason(code, "said"),)
    comparison = samples.comparison(judged=judged, status=status, reasons=reasons)

    assert expected == _view.standing(comparison).word


def test_environment_is_flat_and_harmless():
    pairs = _view.environment(samples.result(environment={"gpu": {"name": "H200\x1b[2J", "uuid": None}, "flags": ["a", "b"]}))

    assert pairs == [("gpu.name", "H200\\x1b[2J"), ("flags", "a, b")]
