from dataclasses import dataclass, replace

import pytest

from perfgate import selftest
from perfgate.budgets import read
from perfgate.config import Config
from perfgate.determinism import selftest_ops
from perfgate.discover import load
from perfgate.judge import judge
from perfgate.model import Bits, GateResult, RunInfo, RunVerdict
from perfgate.plan import make_plan
from perfgate.sequential import Looks
from tests.unit import arms

BASE = Config(device="cpu", blocks=3, max_blocks=12)


@dataclass
class Done:
    result: GateResult


@dataclass
class Gate:
    """Stands in for the gate: plans for real, then "measures" what each control's declaration promises, with noise."""

    noise: float
    slowdown: bool = True
    races: bool = True
    configs: list[Config] | None = None

    def __call__(self, config):
        self.configs = [*(self.configs or []), config]
        plan = make_plan(load(config.workloads), config, "cpu", "none")
        budgets = read(arms.Path(config.thresholds), arms.TODAY)
        looks = Looks.plan(config.blocks, max(config.blocks, config.max_blocks))
        ranges = dict.fromkeys((one.op, one.case) for one in plan.variants)
        compared = [self._compare(op, case, looks.at[-1]) for op, case in ranges]
        info = RunInfo("r", "2026-11-29", "perfgate selftest", "both", "none", True, "cpu")
        return Done(GateResult(info, {}, judge(compared, budgets, looks=looks), RunVerdict("pass", 0, {})))

    def _compare(self, op, case, blocks):
        extra = int(case.removeprefix("plus")) if case.startswith("plus") and self.slowdown else 0
        metric = "busy" if op == "selftest/empty" else "host"
        own = arms.noisy("new", 1000 + 10 * extra, blocks=blocks, noise=self.noise, seed=2, metric="host")
        default = arms.noisy("old", 1000, blocks=blocks, noise=self.noise, seed=1, metric="host")
        bits = Bits(replays=7, differing=7 if op == "selftest/racy" and self.races else 0)
        return arms.comparison(default, own, op=op, case=case, metric=metric, bits=bits)


def found(tmp_path, **options):
    gate = Gate(**options)
    return selftest.selftest(BASE, tmp_path, gate, arms.TODAY), gate


def test_quiet_machine_needs_one_run_at_a_budget_of_3_percent(tmp_path):
    told, gate = found(tmp_path, noise=0.003)

    assert [True] * 4 == [one.ok for one in told.controls]
    assert (0, 0.03, 1) == (told.exit_code, told.budget, len(gate.configs))
    assert ["WITHIN_BUDGET", "OVER_BUDGET", "BITS_DIFFER", "NOTHING_MEASURED"] == [one.expected for one in told.controls]


def test_noisy_machine_gets_a_wider_budget_and_a_larger_slowdown(tmp_path):
    told, gate = found(tmp_path, noise=0.02)
    (case,) = gate.configs[1].case

    assert pytest.approx(2 * told.mde) == told.budget
    assert int(case.removeprefix("plus")) >= 100 * 2 * told.budget - 1
    assert 12 == gate.configs[1].max_blocks
    assert [True] * 4 == [one.ok for one in told.controls]


def test_slowdown_that_is_not_seen_is_wrong(tmp_path):
    told, _ = found(tmp_path, noise=0.003, slowdown=False)

    assert [True, False, True, True] == [one.ok for one in told.controls]
    assert 1 == told.exit_code


def test_race_that_is_not_seen_is_wrong(tmp_path):
    told, _ = found(tmp_path, noise=0.003, races=False)

    assert [True, True, False, True] == [one.ok for one in told.controls]
    assert 1 == told.exit_code


def test_undecided_control_is_told_apart_from_a_wrong_one(tmp_path):
    told, _ = found(tmp_path, noise=0.003)
    undecided = replace(told.controls[0], ok=False, inconclusive=True)
    wrong = replace(told.controls[1], ok=False)

    assert 4 == replace(told, controls=(undecided, *told.controls[1:])).exit_code
    assert 1 == replace(told, controls=(undecided, wrong)).exit_code


def test_runs_go_below_the_folder_that_was_asked_for(tmp_path):
    gate = Gate(noise=0.02)
    selftest.selftest(replace(BASE, out="x"), tmp_path, gate, arms.TODAY)

    assert ["x/controls", "x/slowdown"] == [config.out for config in gate.configs]


@pytest.mark.parametrize(
    ("budget", "mde", "expected"), [(0.03, 0.006, 5), (0.03, 0.015, 6), (0.1, 0.05, 20), (50, 25, selftest_ops.MOST_EXTRA)]
)
def test_extra_copies(budget, mde, expected):
    assert expected == selftest.extra_copies(budget, mde)


def test_controls_are_not_in_the_catalog_but_load_when_asked_for():
    names = {"selftest/same", "selftest/slower", "selftest/racy", "selftest/empty"}

    assert not names & {op.name for op in load()}
    assert names <= {op.name for op in load([selftest_ops.__file__])}


def test_controls_do_what_they_are_declared_to():
    import torch

    generator = torch.Generator().manual_seed(0)
    racy = selftest_ops.racy
    x = selftest_ops._rows(racy.case_list[0], "cpu", generator)
    run = arms.known(racy.with_role("champion")).run
    results = [run({**x, "out": x["out"].clone()}) for _ in range(20)]

    assert any(not torch.equal(results[0], other) for other in results[1:])
    for other in results:
        torch.testing.assert_close(results[0], other, rtol=1e-3, atol=1e-3)
    assert not torch.are_deterministic_algorithms_enabled()
    slow = selftest_ops.slower
    buffers = selftest_ops._buffers(slow.case("plus5"), "cpu", generator)
    assert torch.equal(arms.known(slow.with_role("champion")).run(buffers), buffers["source"])
    assert 5 == buffers["extra"]
