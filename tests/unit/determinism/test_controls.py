import pytest

from perfgate.determinism.controls import Sensitivity, control_of, sensitivity_by_op
from perfgate.model import ArmFigures, Bits, Comparison
from perfgate.registry import Op


def _op(racy="atomics add in arrival order", **options):
    op = Op("moe/combine", racy=racy, **options)
    op.cases(smoke={"n": 1}, small={"n": 2}, typical={"n": 3}, edge_empty={"n": 0})
    op.default("torch.index_add_")(lambda x: x)
    op.champion("triton.gather")(lambda x: x)
    op.contender("triton.atomic")(lambda x: x)
    op.inputs(lambda case, device, generator: {})
    return op


def _comparison(case, differing, replays, op="moe/combine"):
    bits = Bits(replays=7, differing=0, default_differing=differing, default_replays=replays)
    return Comparison(op, case, "fwd", "triton.gather", "champion", True, default=ArmFigures("torch.index_add_"), bits=bits)


@pytest.mark.parametrize(
    ("seen", "text", "proven"),
    [
        (Sensitivity("x at typical", 5, 8), "this harness saw x at typical differ in 5 of 8 replays", True),
        (Sensitivity("x at smoke", 0, 8), "unproven sensitivity: the control x at smoke did not differ in 8 replays", False),
        (Sensitivity("", None, 0), "unproven sensitivity: no racy control ran", False),
        (Sensitivity("x", 0, 0), "unproven sensitivity: no racy control ran (x)", False),
    ],
)
def test_sensitivity_is_told_and_never_read_as_proof_without_a_difference(seen, text, proven):
    assert text == str(seen)
    assert proven == seen.proven


def test_the_control_is_the_default_at_its_largest_case_unless_the_op_names_one():
    assert control_of(_op()) == ("torch.index_add_", "typical")
    assert control_of(_op(control="triton.atomic", control_case="small")) == ("triton.atomic", "small")
    assert control_of(_op(racy="")) == ("", "")


def test_a_control_that_does_not_exist_is_a_problem_of_the_op():
    problems = _op(control="triton.none", control_case="huge").problems()

    expected = [
        "control names an implementation that does not exist: triton.none",
        "control_case names a case that does not exist: huge",
    ]
    assert expected == problems


def test_one_working_control_speaks_for_all_cases_of_its_op():
    seen = sensitivity_by_op(
        [
            _comparison("small", 0, 8),
            _comparison("typical", 5, 8),
            _comparison("edge", None, 0),
            _comparison("small", 0, 8, op="norm/rms"),
            _comparison("small", None, 0, op="conv/one"),
        ]
    )

    expected = {
        "moe/combine": Sensitivity("torch.index_add_ at typical:fwd", 5, 8),
        "norm/rms": Sensitivity("torch.index_add_ at small:fwd", 0, 8),
        "conv/one": Sensitivity("torch.index_add_ at small:fwd", None, 0),
    }
    assert expected == seen
