"""What runs: ABBA blocks, roles by mode, and errors that name what there is."""

import pytest

from perfgate.config import Config
from perfgate.errors import UsageError
from perfgate.plan import make_plan
from perfgate.registry import Op, Registry
from tests.unit.test_registry import sound_op


@pytest.fixture
def registry():
    op = sound_op("moe/combine", phases=("fwd", "bwd"), gradients=("rows",))
    op.contender("triton.atomic")(lambda x: x)
    op.stock_deterministic("torch.a_det")(lambda x: x)
    op.suites(nightly=("typical",))
    return Registry([op, sound_op("segment/sum"), Op.exempt("comm/overlap", "order of arrival")])


def test_blocks_alternate_abba_and_baab(registry):
    plan = make_plan(registry, Config(), "cpu", "torch")

    assert ["default", "deterministic", "deterministic", "default"] == [spec.mode for spec in plan.block(0)]
    assert ["deterministic", "default", "default", "deterministic"] == [spec.mode for spec in plan.block(1)]
    assert [0, 1, 2, 3] == [spec.position for spec in plan.block(2)]


def test_every_child_has_an_id_of_its_own(registry):
    plan = make_plan(registry, Config(), "cpu", "torch")
    specs = [*plan.bits(), *plan.confirmation(), *plan.block(0), *plan.block(1)]

    assert len(specs) == len({spec.id for spec in specs})


def test_default_children_hold_default_and_contender(registry):
    plan = make_plan(registry, Config(op=("moe/combine",)), "cpu", "torch")

    roles = {spec.mode: {variant.role for variant in spec.variants} for spec in plan.block(0)}

    assert {"default": {"default", "contender"}, "deterministic": {"champion", "stock_deterministic"}} == roles


def test_only_timing_children_are_profiled(registry):
    plan = make_plan(registry, Config(), "cuda:0", "nsys")

    assert {"nsys"} == {spec.profiler for spec in plan.block(0)}
    assert {"none"} == {spec.profiler for spec in (*plan.bits(), *plan.confirmation())}


def test_deterministic_bits_are_checked_in_two_processes(registry):
    plan = make_plan(registry, Config(), "cpu", "torch")

    assert ["default", "deterministic", "deterministic"] == [spec.mode for spec in plan.bits()]


def test_one_mode_alone(registry):
    plan = make_plan(registry, Config(mode="deterministic", confirm=False), "cpu", "torch")

    assert ["deterministic", "deterministic"] == [spec.mode for spec in plan.block(0)]
    assert [] == plan.confirmation()


def test_suites_follow_the_device(registry):
    assert {"smoke"} == {variant.case for variant in make_plan(registry, Config(), "cpu", "torch").variants}
    assert {"typical"} == {variant.case for variant in make_plan(registry, Config(), "cuda:0", "nsys").variants}


def test_a_filter_on_implementations_keeps_the_default(registry):
    plan = make_plan(registry, Config(op=("moe/combine",), implementation=("triton.b",)), "cpu", "torch")

    assert {"torch.a", "triton.b"} == {variant.implementation for variant in plan.variants}


@pytest.mark.parametrize(
    ("device", "roles"),
    [("cuda:0", {"default", "champion"}), ("cpu", {"default", "champion", "stock_deterministic"})],
)
def test_judged_only_leaves_out_what_is_only_ranked(registry, device, roles):
    plan = make_plan(registry, Config(op=("moe/combine",), case=("smoke",), judged_only=True), device, "torch")

    assert roles == {variant.role for variant in plan.variants}


def test_a_filter_on_implementations_leaves_out_the_ops_that_have_none_of_them(registry):
    plan = make_plan(registry, Config(implementation=("triton.atomic",)), "cpu", "torch")

    assert {"moe/combine"} == {one.op for one in plan.variants}


@pytest.mark.parametrize(
    ("formulas", "said"),
    [
        (dict(workspace=lambda case: case.columns), "a formula raised AttributeError: case has no parameter 'columns'"),
        (dict(workspace=lambda case: case.rows / 4), "workspace= gives 0.5, not a whole number"),
        (dict(bytes_moved=lambda case, phase: None), "bytes_moved= gives None, not a whole number"),
        (dict(flops=lambda case, phase: 1e12), "flops= gives 1000000000000.0, not a whole number"),
    ],
)
def test_a_broken_formula_is_told_before_anything_is_measured(formulas, said):
    op = sound_op(bytes_moved=formulas.get("bytes_moved"), flops=formulas.get("flops"))
    op.stock_deterministic("torch.a_det", workspace=formulas.get("workspace"))(lambda x: x)

    with pytest.raises(UsageError) as caught:
        make_plan(Registry([op]), Config(), "cpu", "torch")

    assert caught.value.text.startswith("family/op:smoke:fwd:")
    assert said in caught.value.text


def test_exempt_ops_are_carried_along(registry):
    assert ["comm/overlap"] == [one.op for one in make_plan(registry, Config(), "cpu", "torch").exempt]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(op=("moe/comb",)), "no op 'moe/comb'"),
        (dict(op=("moe/combine",), case=("huge",)), "no case 'huge'"),
        (dict(case=("huge",)), "no case 'huge'"),
        (dict(case=("smoke", "huge")), "no case 'huge'"),
        (dict(op=("moe/combine", "segment/sum"), suite="nightly"), "op segment/sum has no case in suite 'nightly'"),
        (
            dict(op=("moe/combine", "segment/sum"), implementation=("triton.atomic",)),
            "op segment/sum has none of the wanted implementations",
        ),
        (dict(suite="weekly"), "no case in suite 'weekly'"),
        (dict(implementation=("triton.z",)), "no implementation 'triton.z'"),
        (dict(op=("comm/overlap",)), "is exempt: order of arrival"),
    ],
)
def test_what_was_asked_for_and_is_not_there_is_refused(registry, options, said):
    with pytest.raises(UsageError) as caught:
        make_plan(registry, Config(**options), "cpu", "torch")

    assert said in caught.value.text
    assert caught.value.mend
