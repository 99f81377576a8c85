"""Rows without a champion: what stock torch does in both modes, against their own float64 reference."""

import pytest
import torch

from perfgate import discover
from perfgate.worker.job import flatten

registry = discover.load()
NAMES = [op.name for op in registry if not op.exempt_reason and op.with_role("champion") is None]


def in_float64(x, gradients):
    made = {}
    for key, value in x.items():
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        made[key] = value.detach().double().requires_grad_(key in gradients) if floating else value
    return made


def relative(actual, expected):
    actual, expected = actual.detach().double(), expected.detach()
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_within_the_ops_own_limit(name, device, generator):
    op = registry.op(name)
    x = op.make_inputs(op.case("smoke"), device, generator)
    wanted = [x[key].requires_grad_() for key in op.gradients]
    exact = in_float64(x, op.gradients)
    expected = flatten(op.compute_reference(exact))

    for implementation in op.implementations:
        outputs = flatten(implementation.run(x))

        assert [one.shape for one in expected] == [one.shape for one in outputs]
        assert max(relative(one, other) for one, other in zip(outputs, expected, strict=True)) <= op.max_error
        if wanted:
            cotangents = [torch.randn(one.shape, device=device, generator=generator).to(one.dtype) for one in outputs]
            actual = torch.autograd.grad(outputs, wanted, cotangents)
            in_double = [one.double() for one in cotangents]
            truth = torch.autograd.grad(expected, [exact[key] for key in op.gradients], in_double, retain_graph=True)
            assert max(relative(one, other) for one, other in zip(actual, truth, strict=True)) <= op.max_error


def test_the_catalog_names_what_nobody_can_make_deterministic():
    exempt = {op.name: op.exempt_reason for op in registry if op.exempt_reason}

    assert set(exempt) == {"comm/tp_overlap", "comm/float_collectives"}
    assert all(len(reason) > 40 for reason in exempt.values())


@pytest.mark.parametrize("op", [op for op in registry if not op.exempt_reason], ids=lambda op: op.name)
def test_every_op_has_the_cases_that_suites_ask_for(op):
    names = {case.name for case in op.case_list}

    assert {"smoke", "small", "typical", "large"} <= names
    assert op.in_suite("edges")
    assert op.bytes_moved is not None
    assert op.compute_reference is not None
    for case in op.case_list:
        for phase in op.phases:
            assert op.bytes_moved(case, phase) > 0
        for one in op.implementations:
            assert one.workspace is None or one.workspace(case) >= 0


def test_the_pull_request_suite_is_small_and_covers_every_champion():
    chosen = [(op.name, case.name) for op in registry if not op.exempt_reason for case in op.in_suite("pr")]

    assert 0 < len(chosen) <= 15
    assert {op.name for op in registry if op.with_role("champion")} <= {name for name, _ in chosen}


def test_a_skewed_group_and_empty_groups_still_cover_all_rows(device, generator):
    op = registry.op("gemm/grouped_wgrad")

    for name in ("edge-skewed", "edge-empty-groups"):
        case = op.case(name)
        small = type(case)(name, {**case.parameters, "rows": 256, "width": 16, "out": 16})
        ends = op.make_inputs(small, device, generator)["ends"].tolist()

        assert ends == sorted(ends)
        assert ends[-1] == 256
        assert all(end % 16 == 0 for end in ends)
