"""Achieved rates in words."""

import pytest

from perfgate.model import ArmFigures, Work
from perfgate.render import _rates
from tests.unit.render import samples


@pytest.mark.parametrize(
    ("amount", "ns", "said"),
    [(604_000_000, 145_000, "4.17"), (604_000_000, None, "–"), (None, 145_000, "–"), (1_000_000_000_000, 1_500_000, "667")],
)
def test_a_rate_is_the_least_amount_over_the_time(amount, ns, said):
    assert said == _rates.bandwidth(Work(bytes=amount), ns).removesuffix(" TB/s")
    assert said == _rates.throughput(Work(flops=amount), ns).removesuffix(" TFLOP/s")


def test_operations_bound_an_op_that_declares_them():
    arm = ArmFigures("a", busy_ns=1_000_000)
    memory_bound = samples.comparison(work=Work(4_000_000_000, None))
    compute_bound = samples.comparison(work=Work(4_000_000_000, 500_000_000_000))

    assert "4 TB/s" == _rates.achieved(memory_bound, arm, "busy")
    assert "500 TFLOP/s" == _rates.achieved(compute_bound, arm, "busy")
    assert "–" == _rates.achieved(compute_bound, ArmFigures("a"), "busy")
