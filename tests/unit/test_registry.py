"""The declarative API refuses what can't work, in words."""

import pytest

from perfgate import Op
from perfgate.errors import UsageError
from perfgate.registry import Registry


def sound_op(name="family/op", **options):
    op = Op(name, **options)
    op.cases(smoke=dict(rows=2), typical=dict(rows=8), edge_one_row=dict(rows=1))
    op.inputs(lambda case, device, generator: {})
    op.default("torch.a")(lambda x: x)
    op.champion("triton.b")(lambda x: x)
    return op


def test_parameters_of_a_case_read_as_attributes():
    case = sound_op().case("typical")

    assert 8 == case.rows
    assert "otherwise" == case.get("columns", "otherwise")
    with pytest.raises(AttributeError, match="columns"):
        _ = case.columns


def test_edge_cases_are_renamed_and_belong_to_their_suites():
    op = sound_op()
    op.suites(typical=("edge-one-row",), pr=("smoke",))

    assert ["smoke", "typical", "edge-one-row"] == [case.name for case in op.case_list]
    assert ["typical", "edge-one-row"] == [case.name for case in op.in_suite("typical")]
    assert ["edge-one-row"] == [case.name for case in op.in_suite("edges")]
    assert ["typical", "edge-one-row"] == [case.name for case in op.in_suite("full")]
    assert ["smoke"] == [case.name for case in op.in_suite("pr")]


def test_an_op_with_candidates_alone_would_never_be_judged():
    op = Op("family/op")
    op.cases(smoke={})
    op.inputs(lambda case, device, generator: {})
    op.default("torch.a")(lambda x: x)
    op.candidate("triton.b")(lambda x: x)

    assert ["no deterministic implementation (@op.champion or @op.stock_deterministic)"] == op.problems()


def test_an_unknown_case_names_those_there_are():
    with pytest.raises(UsageError, match="no case 'big'") as caught:
        sound_op().case("big")

    assert "smoke, typical, edge-one-row" in caught.value.mend


@pytest.mark.parametrize("name", ["combine", "Moe/combine", "moe/", "moe/com bine", "../etc/passwd"])
def test_op_names_are_family_slash_op(name):
    with pytest.raises(UsageError, match="family/op"):
        Op(name)


def test_a_backward_phase_needs_gradients():
    with pytest.raises(UsageError, match="needs gradients="):
        Op("family/op", phases=("bwd",))


def test_an_unknown_phase_is_refused():
    with pytest.raises(UsageError, match="unknown phase 'backward'"):
        Op("family/op", phases=("backward",))


def test_only_one_default_and_one_champion():
    op = sound_op()

    with pytest.raises(UsageError, match="a second champion"):
        op.champion("triton.c")
    with pytest.raises(UsageError, match="declared twice"):
        op.candidate("triton.b")
    with pytest.raises(UsageError, match="may hold letters"):
        op.candidate("triton:c")


def test_roles_give_the_mode():
    op = sound_op()
    op.contender("triton.atomic")(lambda x: x)
    op.candidate("torch.sorted")(lambda x: x)

    modes = {one.name: one.mode for one in op.implementations}

    assert {
        "torch.a": "default",
        "triton.b": "deterministic",
        "triton.atomic": "default",
        "torch.sorted": "deterministic",
    } == modes


def test_problems_name_every_missing_part():
    op = Op("family/op")
    op.suites(pr=("gone",))

    problems = op.problems()

    assert 5 == len(problems)
    assert any("@op.inputs" in one for one in problems)
    assert any("gone" in one for one in problems)
    assert [] == sound_op().problems()


def test_exempt_ops_need_a_reason_and_nothing_else():
    with pytest.raises(UsageError, match="needs a reason"):
        Op.exempt("comm/overlap", " ")

    assert [] == Op.exempt("comm/overlap", "order of arrival").problems()


def test_an_unknown_op_names_the_closest():
    registry = Registry([sound_op("moe/combine"), sound_op("moe/permute")])

    with pytest.raises(UsageError, match="no op 'moe/combin'") as caught:
        registry.op("moe/combin")

    assert "moe/combine" in caught.value.mend
