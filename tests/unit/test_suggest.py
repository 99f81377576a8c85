from dataclasses import replace

import pytest

from perfgate import budgets
from perfgate.judge import judge
from perfgate.model import GateResult, Memory, RunInfo, RunVerdict
from perfgate.sequential import Looks
from perfgate.suggest import overhead, suggest
from tests.unit import arms


def result(*comparisons):
    info = RunInfo("r1", "2026-11-29T10:00:00+00:00", "perfgate run", "both", "nsys", True, "cuda:0")
    judged = judge(comparisons, arms.budgets(), looks=Looks.plan(3, 3))
    return GateResult(info, {"gpu": {"name": "NVIDIA H200"}}, judged, RunVerdict("pass", 0, {}))


def measured(microseconds=110, **facts):
    return arms.comparison(arms.noisy("old", 100, seed=1), arms.noisy("new", microseconds, seed=2), **facts)


def test_proposes_measured_cost_and_three_times_what_is_detectable():
    found = result(measured()).comparisons[0]

    assert pytest.approx(found.ratio - 1 + 3 * found.mde, abs=0.001) == overhead(found)
    assert overhead(found) >= found.ratio - 1 + 3 * found.mde - 1e-9


def test_entries_are_refused_until_reason_owner_and_expiry_are_filled_in(tmp_path):
    text = suggest(result(measured(), measured(50, case="large", memory=Memory(100 * 2**20, 120 * 2**20))))
    head = 'version = 1\nmatch = ["NVIDIA H200*"]\n'
    path = arms.write(tmp_path, "x.toml", head + text)

    with pytest.raises(budgets.UsageError) as caught:
        budgets.read(path, arms.TODAY)
    assert 6 == len(caught.value.text.splitlines())
    filled = text.replace('reason = ""', 'reason = "r"').replace('owner = ""', 'owner = "o"')
    path.write_text(head + filled.replace('expires = ""', "expires = 2027-05-31"))
    found = budgets.read(path, arms.TODAY)
    large = arms.known(found.find("moe/combine:large:fwd"))
    assert pytest.approx(-0.5, abs=0.03) == large.overhead
    assert 22 * 2**20 == large.memory_bytes
    assert "NVIDIA H200, 2026-11-29, run r1" in text


def test_range_of_a_foreign_program_is_named_by_its_op():
    assert 'range = "train:step"' in suggest(result(measured(op="train:step", case="", phase="")))


def test_what_was_not_measured_is_a_comment():
    text = suggest(result(replace(measured(), deterministic=None)))

    assert "[[budget]]" not in text
    assert "# moe/combine:typical:fwd:new: nothing to propose" in text


def test_hostile_command_stays_a_comment():
    hostile = result(measured())
    text = suggest(replace(hostile, run=replace(hostile.run, command="perfgate run\n[[budget]]")))

    assert 1 == text.count("\n[[budget]]")
