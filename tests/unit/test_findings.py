from dataclasses import replace

import pytest

from perfgate.findings import findings
from perfgate.model import Memory
from perfgate.registry import Op, Registry
from tests.unit import arms

OP = Op("moe/combine", bytes_moved=lambda case, phase: 600_000_000)
OP.cases(typical={})
REGISTRY = Registry([OP])


def codes(found):
    return [one.code for one in found]


def compared(default=200, own=150, **facts):
    return arms.comparison(
        arms.noisy("old", default, seed=1), arms.noisy("new", own, seed=2), **{"ratio": own / default} | facts
    )


def test_nothing_to_say():
    assert () == findings([compared()], REGISTRY, "NVIDIA H200")


def test_more_than_the_cards_bandwidth():
    (found,) = findings([compared(own=100)], REGISTRY, "NVIDIA H200 NVL")

    assert "ROOFLINE" == found.code
    assert found.text.startswith("moe/combine:typical:fwd: new: 572.2 MiB in")


@pytest.mark.parametrize(
    ("op", "case", "card"),
    [("foreign", "", "NVIDIA H200"), ("moe/combine", "x", "NVIDIA H200"), ("moe/combine", "typical", "T4")],
)
def test_no_roofline_without_a_formula_or_a_known_card(op, case, card):
    assert () == findings([compared(own=1, op=op, case=case)], REGISTRY, card)


def test_default_that_several_implementations_share_is_named_once():
    both = [compared(default=100, own=200), compared(default=100, own=201, implementation="other")]

    assert ["ROOFLINE"] == codes(findings(both, REGISTRY, "NVIDIA H200"))


def test_each_finding_is_passed_on():
    rising = arms.arm("new", [150, 155, 150.1, 155, 150, 155.1])
    one = compared(memory=Memory(deterministic_bytes=2**30, output_bytes=2**20, declared_bytes=0))
    one = replace(one, default=replace(one.default, step_wall_ns=100), deterministic=replace(rising, step_wall_ns=150))

    assert {"MEMORY_FORMULA", "AA_DIFFERS", "CONTRADICTION"} == set(codes(findings([one], REGISTRY, "NVIDIA H200")))
