"""The geometry behind the drawings of report.html."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.model import Contribution
from perfgate.render.html.axis import LinearAxis, ratio_axis
from perfgate.render.html.kernels import kernels_of, letters_of, name_of
from perfgate.render.html.strips import describe, samples_of
from perfgate.render.html.timeline import timeline_of
from perfgate.render.html.waterfall import waterfall_of
from tests.unit.render import samples

KINDS = st.sampled_from(["added", "removed", "slower", "faster", "idle", "host"])


def changed(contributions, default_ns=1_000_000):
    """A comparison with just these contributions."""
    base = samples.comparison()
    delta = sum(part.delta_ns for part in contributions)
    default = dataclasses.replace(base.default, busy_ns=default_ns)
    other = dataclasses.replace(base.deterministic, busy_ns=default_ns + delta)
    return dataclasses.replace(base, default=default, deterministic=other, delta_ns=delta, contributions=contributions)


@given(st.lists(st.tuples(KINDS, st.integers(-400_000, 400_000)), max_size=30))
def test_the_waterfalls_steps_sum_exactly_to_the_difference(parts):
    comparison = changed(tuple(Contribution(kind, f"k{n}", ns) for n, (kind, ns) in enumerate(parts)), 20_000_000)
    fall = waterfall_of(comparison)

    assert fall.delta_ns == comparison.delta_ns == sum(step.delta_ns for step in fall.steps if step.kind != "total")
    assert (fall.steps[0].delta_ns, fall.steps[-1].delta_ns) == (fall.default_ns, fall.other_ns)
    assert all(0 <= step.left <= 100 and 0 <= step.width <= 100.001 for step in fall.steps)
    assert not [step for step in fall.steps if step.kind == "unexplained"]


def test_each_step_begins_where_the_last_one_ended():
    parts = (Contribution("added", "a", 300_000), Contribution("removed", "b", -500_000), Contribution("idle", "", 50_000))
    steps = waterfall_of(changed(parts)).steps
    ends = [(step.left, step.left + step.width) for step in steps]

    assert [step.kind for step in steps] == ["total", "added", "removed", "idle", "total"]
    assert ends[0][1] == pytest.approx(ends[1][0])
    assert ends[1][1] == pytest.approx(ends[2][1])
    assert ends[2][0] == pytest.approx(ends[3][0])
    assert ends[3][1] == pytest.approx(ends[4][1])


def test_what_no_contribution_explains_is_a_step_and_never_hidden():
    base = samples.comparison()
    fall = waterfall_of(dataclasses.replace(base, contributions=base.contributions[:1]))
    missing = base.delta_ns - base.contributions[0].delta_ns

    assert [step.delta_ns for step in fall.steps if step.kind == "unexplained"] == [missing]


def test_small_changes_are_drawn_on_an_axis_that_says_where_it_starts():
    fall = waterfall_of(changed((Contribution("slower", "a", 10_000),)))

    assert not fall.from_zero
    assert 900_000 < fall.low_ns < 1_000_000
    assert fall.steps[1].width > 30


def test_no_waterfall_and_no_samples_where_an_arm_was_not_measured():
    missing = samples.unmeasured("a/b", "x", status="error")

    assert waterfall_of(missing) is None
    assert samples_of(missing) is None


def test_every_sample_of_every_process_has_its_stroke():
    comparison = samples.comparison()
    drawn = samples_of(comparison)

    assert [strip.samples for strip in drawn.shared] == [60, 60]
    assert [strip.processes for strip in drawn.zoomed] == [6, 6]
    assert {int(stroke.split()[1].split("v")[0]) for stroke in drawn.zoomed[0].path[1:].split("M")} == {0, 4, 8, 12, 16, 20}


def test_budget_and_interval_stand_at_their_multiples_of_the_defaults_median():
    comparison = samples.comparison("moe/permute", kernels=samples.SLOW)
    drawn = samples_of(comparison)
    default, other = drawn.shared

    assert default.median < drawn.budget < drawn.interval[0] < drawn.interval[1]
    assert drawn.interval[0] < other.median < drawn.interval[1]


def test_samples_are_told_in_words_too():

    assert describe(samples_of(samples.comparison())).startswith("default: 60 samples in 6 processes, lowest, median, highest ")


def test_both_arms_share_one_scale_and_gaps_stay_blank():
    drawn = timeline_of(samples.comparison("moe/permute", kernels=samples.SLOW, gap=100_000))
    other = drawn.lanes[1].bars

    assert drawn.lanes[0].bars[0].left == 0
    assert other[0].width == pytest.approx(drawn.lanes[0].bars[0].width)
    assert other[1].left - (other[0].left + other[0].width) == pytest.approx(100 * 100_000 / 1_588_900)
    assert other[-1].left + other[-1].width == pytest.approx(100)


def test_operations_that_overlap_get_rows_of_their_own():
    base = samples.comparison()
    arm = dataclasses.replace(base.deterministic, timeline=(("a", 0, 100), ("b", 50, 150), ("c", 120, 130)))
    lane = timeline_of(dataclasses.replace(base, deterministic=arm)).lanes[1]

    assert [bar.row for bar in lane.bars] == [0, 1, 0]
    assert lane.rows == 2


def test_thousands_of_tiny_launches_are_drawn_as_few_bars_and_counted():
    base = samples.comparison()
    timeline = tuple(("tiny", n * 10, n * 10 + 5) for n in range(2000))
    arm = dataclasses.replace(base.deterministic, timeline=timeline)
    lane = timeline_of(dataclasses.replace(base, deterministic=arm)).lanes[1]

    assert len(lane.bars) < 100
    assert sum(int(bar.words.split(" × ")[0]) for bar in lane.bars if " × " in bar.words) > 1900


def test_the_kernel_table_sums_to_busy_and_its_differences_to_the_difference():
    comparison = samples.comparison("moe/permute", kernels=samples.SLOW)
    table = kernels_of(comparison)

    assert (table.default_ns, table.other_ns) == (comparison.default.busy_ns, comparison.deterministic.busy_ns)
    assert sum(launch.delta_ns for launch in table.launches) == comparison.delta_ns


def test_a_kernel_with_another_grid_is_another_row_with_the_same_letter():
    base = samples.comparison()
    again = dataclasses.replace(base.default.kernels[0], grid="1,1,1", exclusive_ns=1)
    arm = dataclasses.replace(base.default, kernels=(*base.default.kernels, again))
    table = kernels_of(dataclasses.replace(base, default=arm))

    assert sorted(row.letter for row in table.launches if row.name == again.name) == ["A", "A"]


def test_hundreds_of_kernels_are_summed_below_the_table():
    base = samples.comparison()
    one = base.default.kernels[0]
    many = tuple(dataclasses.replace(one, name=f"k{n}", exclusive_ns=1000 - n) for n in range(100))
    table = kernels_of(dataclasses.replace(base, default=dataclasses.replace(base.default, kernels=many)))

    assert table.rest + len(table.launches) == 102
    assert sum(row.default.exclusive_ns for row in table.launches if row.default) + table.rest_ns[0] == sum(range(901, 1001))


@pytest.mark.parametrize(("number", "expected"), [(0, "A"), (25, "Z"), (26, "AA"), (701, "ZZ"), (702, "AAA")])
def test_letters(number, expected):

    assert expected == name_of(number)


def test_the_dearest_kernel_is_a():

    assert min(letters_of(samples.comparison()).items(), key=lambda pair: pair[1])[0].startswith("void at::native::_scatter")


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_the_ratio_axis_is_monotonic_and_holds_one(ratios):
    axis = ratio_axis(ratios)
    places = [axis.at(ratio) for ratio in sorted(ratios)]

    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    assert axis.holds(1.0)
    assert [tick.text for tick in axis.ticks].count("0") == 1


@given(st.floats(0, 1e9), st.floats(1, 1e9))
def test_the_ticks_of_a_time_axis_are_round_few_and_name_one_unit(low, width):
    ticks = LinearAxis(low, low + width).ticks()

    assert 1 <= len(ticks) <= 7
    assert [tick.text.count(" ") for tick in ticks] == [0] * (len(ticks) - 1) + [1]
