"""The run's verdict: the most severe exit code, counts, and what can never pass."""

from dataclasses import replace

import pytest

from perfgate.judge import verdict
from perfgate.model import Exempt, Reason
from perfgate.reasons import CODES, SEVERITY
from tests.unit import arms

DEFAULT = arms.noisy("old", 100, seed=1)


def with_codes(*found, judged=True, name="x"):
    made = arms.comparison(DEFAULT, DEFAULT, case=name, judged=judged)
    reasons = tuple(Reason(code, f"text of {code}") for code in found)
    return replace(made, reasons=reasons, status=CODES[found[0]].status)


@pytest.mark.parametrize(
    ("met", "code", "status"),
    [
        (["WITHIN_BUDGET"], 0, "pass"),
        (["WITHIN_BUDGET", "STRADDLES_BUDGET"], 4, "inconclusive"),
        (["STRADDLES_BUDGET", "OVER_BUDGET"], 1, "fail"),
        (["OVER_BUDGET", "NO_EFFECT"], 5, "invalid"),
        (["NO_EFFECT", "BITS_DIFFER"], 3, "fail"),
        (["BITS_DIFFER", "WORKLOAD_FAILED"], 6, "error"),
    ],
)
def test_most_severe_exit_code_wins_in_any_order(met, code, status):
    comparisons = [with_codes(one_code, name=one_code) for one_code in met]

    for order in (comparisons, comparisons[::-1]):
        found = verdict(order)
        assert (found.exit_code, found.status) == (code, status)


def test_a_bad_budget_file_outweighs_everything():
    found = verdict([with_codes("WORKLOAD_FAILED")], [Reason("UNMATCHED_BUDGET", "x.toml:3: ...")])

    assert (2, "x.toml:3: ... (UNMATCHED_BUDGET)") == (found.exit_code, found.text)


def test_exit_code_is_never_a_count():
    assert 1 == verdict([with_codes("OVER_BUDGET", name=f"c{n}") for n in range(256)]).exit_code


def test_every_code_has_a_place_in_the_order():
    assert {meaning.exit_code for meaning in CODES.values()} - {None} == set(SEVERITY)


@pytest.mark.parametrize("comparisons", [[], [with_codes("UNSUPPORTED")], [with_codes("WITHIN_BUDGET", judged=False)]])
def test_nothing_judged_is_invalid(comparisons):
    found = verdict(comparisons)

    assert (5, "invalid") == (found.exit_code, found.status)
    assert ["NOTHING_MEASURED"] == [reason.code for reason in found.reasons]


def test_a_finding_that_says_pass_is_no_judged_range():
    assert 5 == verdict([], [Reason("FASTER_THAN_BUDGET", "of another run")]).exit_code


def test_cut_short_can_never_pass():
    found = verdict([with_codes("WITHIN_BUDGET")], complete=False)

    assert (5, ["INCOMPLETE"]) == (found.exit_code, [reason.code for reason in found.reasons])
    assert 3 == verdict([with_codes("BITS_DIFFER")], complete=False).exit_code


def test_inconclusive_can_be_accepted_and_still_says_so():
    found = verdict([with_codes("STRADDLES_BUDGET")], on_inconclusive="pass")

    assert (0, "inconclusive") == (found.exit_code, found.status)
    assert "--on-inconclusive" in found.text
    assert 1 == verdict([with_codes("STRADDLES_BUDGET"), with_codes("OVER_BUDGET")], on_inconclusive="pass").exit_code


def test_findings_without_a_say_do_not_change_the_verdict():
    found = verdict([with_codes("WITHIN_BUDGET")], [Reason("UNATTRIBUTED_GPU_TIME", "2 %"), Reason("EXPIRED_BUDGET", "...")])

    assert (0, "1 of 1 judged ranges within budget") == (found.exit_code, found.text)


def test_counts_hold_every_status_and_the_exempt():
    met = [
        with_codes("WITHIN_BUDGET"),
        with_codes("OVER_BUDGET"),
        with_codes("UNSUPPORTED"),
        with_codes("OVER_BUDGET", judged=False),
    ]
    found = verdict(met, exempt=[Exempt("comm/x", "nobody can")])

    assert {"pass": 1, "fail": 1, "inconclusive": 0, "invalid": 0, "error": 0, "skipped": 2} == found.counts
    assert "1 of 3 judged ranges OVER_BUDGET, 2 skipped; first moe/combine:x:fwd:new: text of OVER_BUDGET" == found.text
