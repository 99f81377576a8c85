from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from perfgate.judge import foreign_no_effect, judge, undecided_blocks, verdict
from perfgate.model import Accuracy, Bits, Memory, Reason
from perfgate.reasons import CODES
from perfgate.sequential import Looks
from tests.unit import arms

THREE = Looks.plan(3, 3)
DEFAULT = arms.noisy("old", 100, seed=1)


def one(microseconds=110, *, budget="15%", looks=THREE, foreign=False, entries=(), default=DEFAULT, own=None, **facts):
    """The comparison against a default of 100 us, judged alone."""
    own = arms.noisy("new", microseconds, seed=2) if own is None else own
    made = arms.comparison(default, own, **facts)
    budgets = arms.budgets(budget, entries=entries)
    (judged,) = judge([made], budgets, looks=looks, foreign=foreign)
    return judged


def codes(judged):
    return [reason.code for reason in judged.reasons]


@pytest.mark.parametrize(
    ("microseconds", "status", "code"),
    [(110, "pass", "WITHIN_BUDGET"), (114.95, "inconclusive", "STRADDLES_BUDGET"), (120, "fail", "OVER_BUDGET")],
)
def test_three_outcomes(microseconds, status, code):
    judged = one(microseconds)

    assert (judged.status, codes(judged)) == (status, [code])
    assert pytest.approx(microseconds / 100, rel=0.005) == judged.ratio
    assert judged.ratio_low < judged.ratio < judged.ratio_high
    assert "budget +15 % (h200.toml:4)" in judged.reasons[0].text


def test_exactly_on_the_budget_passes_and_just_above_fails_when_there_is_no_noise():
    quiet = arms.arm("old", [100] * 6)

    assert "pass" == one(default=quiet, own=arms.arm("new", [115] * 6)).status
    assert "fail" == one(default=quiet, own=arms.arm("new", [115.001] * 6)).status


def test_getting_faster_never_fails_and_suggests_a_tighter_budget():
    entries = [{"range": "moe/combine", "overhead": "15%"}]
    judged = one(50, entries=entries)

    assert ("pass", ["WITHIN_BUDGET", "FASTER_THAN_BUDGET"]) == (judged.status, codes(judged))
    assert "h200.toml:10" in judged.reasons[1].next


def test_negative_budget_demands_a_win():
    assert "fail" == one(60, budget="-50%").status
    assert "pass" == one(40, budget="-50%").status


def test_verdict_agrees_with_the_shown_interval():
    for seed in range(40):
        own = arms.noisy("new", 114 + seed / 20, seed=seed, noise=0.004)
        judged = one(own=own)
        expected = "pass" if judged.ratio_high <= 1.15 else "fail" if judged.ratio_low > 1.15 else "inconclusive"

        assert expected == judged.status


def test_excess_below_the_floor_is_none():
    floored = arms.budgets("15%", abs_floor="10us")
    (judged,) = judge([arms.comparison(DEFAULT, arms.noisy("new", 120, seed=2))], floored, looks=THREE)

    assert ("pass", ["WITHIN_BUDGET"]) == (judged.status, codes(judged))
    assert "less than the floor of 10.0 us" in judged.reasons[0].text
    (judged,) = judge([arms.comparison(DEFAULT, arms.noisy("new", 130, seed=2))], floored, looks=THREE)
    assert "fail" == judged.status


def test_failure_names_the_kernel_that_costs_most():
    base = arms.comparison(DEFAULT, arms.noisy("new", 130, seed=2))
    known = [
        replace(arm, kernels=(arms.kernel("scan<float>", arm.busy_ns - 10_000), arms.kernel(extra, 10_000)))
        for arm, extra in ((base.default, "atomic"), (base.deterministic, "sort"))
    ]
    judged = one(default=known[0], own=known[1])

    assert judged.delta_ns == sum(part.delta_ns for part in judged.contributions)
    assert "most of it: slower scan<float>" in judged.reasons[0].text
    assert "raise h200.toml:4 with a reason" in judged.reasons[0].next


def test_budget_within_the_noise_says_so():
    noisy = [arms.noisy(name, 100, seed=seed, noise=0.03) for name, seed in (("old", 1), ("new", 2))]
    judged = one(budget="1%", default=noisy[0], own=noisy[1])

    assert ["BUDGET_BELOW_NOISE"] == codes(judged)
    assert judged.mde > 0.01


def test_budget_of_zero_is_legitimate():
    assert "pass" == one(90, budget="0%").status
    assert "fail" == one(110, budget="0%").status


def test_undecided_range_says_how_many_blocks_it_needs():
    judged = one(own=arms.noisy("new", 114.4, seed=3, noise=0.01), looks=Looks.plan(3, 24))

    assert ["STRADDLES_BUDGET"] == codes(judged)
    assert "--max-blocks" in judged.reasons[0].next
    assert [3] == undecided_blocks([judged])


def test_same_samples_give_the_same_verdict_again():
    first = one(120)
    (again,) = judge([first], arms.budgets(), looks=THREE)

    assert again == first


def test_decision_of_an_early_look_stands_whatever_comes_later():
    early = arms.noisy("new", 110, seed=2)
    late = arms.noisy("new", 200, seed=3, first_block=3)
    default = arms.noisy("old", 100, seed=1, blocks=6)
    grown = replace(early, samples=early.samples + late.samples)
    judged = one(default=default, own=grown, looks=Looks.plan(3, 24))

    assert ("pass", 3) == (judged.status, judged.blocks)
    assert pytest.approx(1.1, rel=0.01) == judged.ratio


def test_later_looks_decide_what_the_first_left_open():
    default, own = (
        arms.noisy(name, time, seed=seed, blocks=12, noise=0.01) for name, time, seed in (("old", 100, 1), ("new", 117, 2))
    )
    judged = one(default=default, own=own, looks=Looks.plan(3, 24))

    assert ("fail", 6) == (judged.status, judged.blocks)


def test_run_that_ended_before_its_first_look():
    default, own = arms.noisy("old", 100, seed=1, blocks=2), arms.noisy("new", 110, seed=2, blocks=2)
    (judged,) = judge([arms.comparison(default, own)], arms.budgets(), looks=THREE, final=False)

    assert ("inconclusive", ["TOO_FEW_SAMPLES"]) == (judged.status, codes(judged))
    assert "2 of the 3 blocks" in judged.reasons[0].text


def test_holm_over_ranges_makes_a_border_case_wait():
    own = arms.noisy("new", 115.45, seed=5)
    alone = one(own=own)
    others = [arms.comparison(DEFAULT, arms.noisy("new", 110, seed=2), case=f"c{n}") for n in range(30)]
    among = judge([arms.comparison(DEFAULT, own), *others], arms.budgets(), looks=THREE)[0]

    assert ("fail", "inconclusive") == (alone.status, among.status)
    assert among.ratio_low < alone.ratio_low


def test_process_with_another_mode_is_inconclusive_only_where_it_matters():
    times = [110, 110.1, 109.9, 110, 110, 130]
    own = arms.arm("new", times)

    assert ["MULTIMODAL"] == codes(one(own=own, budget="25%"))
    assert "inconclusive" == one(own=own, budget="25%").status
    assert "pass" == one(own=own, budget="40%").status


@pytest.mark.parametrize("side", ["default", "new"])
def test_kernels_that_change_within_an_arm_are_inconclusive_however_good_the_time(side):
    default, own = DEFAULT, arms.noisy("new", 50, seed=2)
    changed = own if side == "new" else default
    changed = replace(changed, samples=(replace(changed.samples[0], kernels="another"), *changed.samples[1:]))
    judged = one(default=default, own=changed) if side == "new" else one(default=changed, own=own)

    assert ("inconclusive", ["MULTIMODAL"]) == (judged.status, codes(judged))
    assert [] == undecided_blocks([judged])


def test_drift_is_inconclusive_where_it_could_turn_the_verdict():
    def cooling(name, start, end):
        arm = arms.arm(name, [100] * 6)
        busy = tuple(int(1000 * value) for value in np.linspace(start, end, 30))
        return replace(arm, samples=tuple(replace(sample, busy_ns=busy) for sample in arm.samples))

    steady = arms.arm("old", [100] * 6)

    assert ["DRIFT"] == codes(one(default=steady, own=cooling("new", 112, 117)))
    assert ["WITHIN_BUDGET"] == codes(one(default=steady, own=cooling("new", 100, 105)))


@pytest.mark.parametrize("instances", [1, 2])
def test_too_few_instances_are_inconclusive(instances):
    default, own = (arms.arm(name, [time] * 6, instances=instances) for name, time in (("old", 100), ("new", 50)))
    judged = one(default=default, own=own)

    assert ("inconclusive", {"TOO_FEW_SAMPLES"}) == (judged.status, set(codes(judged)))


def test_one_process_per_arm_is_not_a_verdict():
    judged = one(default=arms.arm("old", [100]), own=arms.arm("new", [50]))

    assert "inconclusive" == judged.status
    assert {"TOO_FEW_SAMPLES"} == set(codes(judged))


def test_nothing_inside_the_range_is_not_a_pass():
    judged = one(default=arms.arm("old", [0] * 6), own=arms.arm("new", [0] * 6))

    assert ("invalid", ["NOTHING_MEASURED"]) == (judged.status, codes(judged))


def test_metric_of_the_budget_that_was_not_measured_is_not_a_pass():
    judged = one(entries=[{"range": "moe/combine", "overhead": "15%", "metric": "step_wall"}])

    assert ("invalid", "step_wall", ["NOTHING_MEASURED"]) == (judged.status, judged.metric, codes(judged))


def test_step_time_of_unprofiled_children_is_judged_where_a_budget_says_so():
    arms_ = [arms.noisy(name, time, seed=seed, metric="step_wall") for name, time, seed in (("old", 100, 1), ("new", 130, 2))]
    judged = one(default=arms_[0], own=arms_[1], entries=[{"range": "moe/combine", "overhead": "15%", "metric": "step_wall"}])

    assert ("fail", "step_wall") == (judged.status, judged.metric)


def test_vanished_and_never_measured():
    assert ["VANISHED"] == codes(replace_arm(deterministic=None))
    assert ["NOTHING_MEASURED"] == codes(replace_arm(default=None))
    assert {"invalid"} == {replace_arm(deterministic=None).status, replace_arm(default=None).status}


def replace_arm(**facts):
    made = replace(arms.comparison(DEFAULT, arms.noisy("new", 50, seed=2)), **facts)
    (judged,) = judge([made], arms.budgets(), looks=THREE)
    return judged


def test_range_without_a_budget():
    judged = one(50, budget=None)

    assert ("invalid", ["NOT_BUDGETED"]) == (judged.status, codes(judged))


@pytest.mark.parametrize("code", sorted(code for code, meaning in CODES.items() if meaning.status in ("error", "invalid")))
def test_problems_of_earlier_stages_are_kept(code):
    judged = one(50, signals=(Reason(code, "words", "mend"),))

    assert (judged.status, judged.reasons[0]) == (CODES[code].status, Reason(code, "words", "mend"))


def test_unsupported_is_skipped_whatever_else_is_missing():
    judged = one(signals=(Reason("UNSUPPORTED", "needs SM100"),), bits=Bits())

    assert ("skipped", ["UNSUPPORTED"]) == (judged.status, codes(judged))


def test_a_failure_beside_unsupported_is_an_error():
    judged = one(signals=(Reason("UNSUPPORTED", "needs SM100"), Reason("WORKLOAD_FAILED", "the default: ValueError")))

    assert ("error", "WORKLOAD_FAILED") == (judged.status, judged.reasons[0].code)


def test_differing_bits_outweigh_a_good_time():
    judged = one(50, bits=Bits(replays=20, differing=3, first_difference="output 0, element 7"))

    assert ("fail", ["BITS_DIFFER", "WITHIN_BUDGET"]) == (judged.status, codes(judged))
    assert "3 of 20 replays differ" in judged.reasons[0].text
    assert "element 7" in judged.reasons[0].text


def test_bits_that_nobody_compared_are_not_a_pass():
    assert ["INCOMPLETE", "WITHIN_BUDGET"] == codes(one(50, bits=Bits()))
    assert "invalid" == one(50, bits=Bits()).status
    assert "pass" == one(50, bits=Bits(), foreign=True).status


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        (Accuracy(1e-3, 1.09e-3), "pass"),
        (Accuracy(1e-3, 1.11e-3), "fail"),
        (Accuracy(1e-3, float("nan")), "fail"),
        (Accuracy(float("inf"), float("inf")), "fail"),
        (Accuracy(1e-3, 5e-3, limit=1e-2), "pass"),
        (Accuracy(1e-3, 1.05e-3, limit=1e-4), "fail"),
        (Accuracy(None, None), "pass"),
    ],
)
def test_accuracy(accuracy, expected):
    judged = one(50, accuracy=accuracy)

    assert expected == judged.status
    assert ("WRONG_RESULT" in codes(judged)) == (expected == "fail")


@pytest.mark.parametrize(
    ("limit", "own_mib", "expected"),
    [("10%", 110, "pass"), ("10%", 112, "fail"), ("0%", 101, "pass"), ("20MiB", 120, "pass"), ("20MiB", 122, "fail")],
)
def test_memory(limit, own_mib, expected):
    memory = Memory(default_bytes=100 * 2**20, deterministic_bytes=own_mib * 2**20)
    judged = one(
        50,
        memory=memory,
        entries=[{"range": "moe/combine", "overhead": "-50%", "memory": limit}],
        default=arms.noisy("old", 150, seed=1),
    )

    assert expected == judged.status
    assert ("MEMORY_OVER_BUDGET" in codes(judged)) == (expected == "fail")


def test_memory_budget_without_a_measured_peak_is_not_a_pass():
    entries = [{"range": "moe/combine", "overhead": "15%", "memory": "10%"}]

    assert "INCOMPLETE" == codes(one(50, entries=entries))[0]
    assert "pass" == one(50, entries=entries, foreign=True).status


def test_racy_op_whose_arms_launch_the_same_kernels_had_no_effect():
    own = arms.noisy("new", 100, seed=2, kernels="old")

    assert "NO_EFFECT" == codes(one(own=own, racy=True))[0]
    assert "invalid" == one(own=own, racy=True).status
    assert ["SAME_KERNELS", "WITHIN_BUDGET"] == codes(one(own=own, racy=False))
    assert "pass" == one(own=own).status


def test_no_effect_is_never_told_from_host_time_or_unknown_kernels():
    host = [arms.noisy(name, 100, seed=seed, metric="host", kernels="k") for name, seed in (("old", 1), ("new", 2))]
    unknown = [arms.noisy(name, 100, seed=seed, kernels="") for name, seed in (("old", 1), ("new", 2))]
    entry = [{"range": "moe/combine", "overhead": "2%", "metric": "host"}]

    assert ["WITHIN_BUDGET"] == codes(one(default=host[0], own=host[1], racy=True, entries=entry))
    assert ["WITHIN_BUDGET"] == codes(one(default=unknown[0], own=unknown[1], racy=True))


def test_unjudged_are_ranked_and_never_counted():
    slow = one(500, judged=False, role="candidate", bits=Bits(replays=5, differing=5))

    assert ("skipped", ["BITS_DIFFER"], None) == (slow.status, codes(slow), slow.budget)
    assert pytest.approx(5, rel=0.01) == slow.ratio
    assert slow.ratio_low < slow.ratio < slow.ratio_high
    assert 0 == verdict([slow, one(50)]).exit_code


def test_contender_may_race():
    assert [] == codes(one(50, judged=False, role="contender", bits=Bits(replays=5, differing=5)))


def test_expired_budget_falls_back():
    entries = [{"range": "moe/combine", "overhead": "100%", "expires": date(2020, 1, 1)}]
    judged = one(150, entries=entries)

    assert ("fail", 0.15) == (judged.status, judged.budget.overhead)


def test_foreign_run_in_which_no_kernel_changed_had_no_effect():
    same = arms.comparison(DEFAULT, arms.noisy("new", 100, seed=2, kernels="old"), case="", phase="")
    other = arms.comparison(DEFAULT, arms.noisy("new", 100, seed=2), case="", phase="")

    assert "NO_EFFECT" == arms.known(foreign_no_effect([same, same])).code
    assert foreign_no_effect([same, other]) is None
    assert foreign_no_effect([replace(same, metric="host")]) is None
    assert foreign_no_effect([]) is None
