"""What a phase means, what counts as an output, and what becomes of a failure."""

from dataclasses import replace

import pytest
import torch

from perfgate.model import RunSpec, Variant
from perfgate.registry import Op, Registry
from perfgate.worker.job import Job, attempt, flatten


def product_op(run=None, **options):
    op = Op("family/product", phases=("fwd", "bwd", "step"), gradients=("a",), **options)
    op.cases(smoke=dict(rows=4))

    @op.inputs
    def inputs(case, device, generator):
        return {name: torch.randn(case.rows, device=device, generator=generator) for name in ("a", "b")}

    op.reference(lambda x: x["a"] * x["b"])
    op.default("torch.mul")(run or (lambda x: x["a"] * x["b"]))
    op.champion("triton.mul", backend="triton")(lambda x: x["a"] * x["b"])
    return op


def job(phase="fwd", implementation="torch.mul", run=None):
    role = "default" if implementation == "torch.mul" else "champion"
    variant = Variant("family/product", "smoke", phase, implementation, role)
    spec = RunSpec("id", "bits", "default", (variant,), "cpu", seed=7)
    return Job.of(Registry([product_op(run)]), variant, spec)


def test_fwd_is_the_implementation_without_a_graph():
    one = job("fwd")
    x = one.make_inputs()

    (output,) = one.ready(x)()

    assert torch.equal(x["a"] * x["b"], output)
    assert not output.requires_grad


def test_bwd_is_the_gradient_and_can_be_called_again():
    one = job("bwd")
    x = one.make_inputs()
    call = one.ready(x)

    first, second = call(), call()

    assert torch.equal(first[0], second[0])
    cotangent = first[0] / x["b"]
    assert torch.allclose(cotangent, cotangent.to(torch.bfloat16).float(), rtol=1e-6)  # bf16 values, whatever the dtype


def test_step_computes_forward_and_backward_each_time():
    calls = []
    one = job("step", run=lambda x: calls.append(1) or x["a"] * x["b"])
    call = one.ready(one.make_inputs())

    call()
    call()

    assert 2 == len(calls)


def test_bwd_computes_the_forward_once():
    calls = []
    one = job("bwd", run=lambda x: calls.append(1) or x["a"] * x["b"])
    call = one.ready(one.make_inputs())

    call()
    call()

    assert 1 == len(calls)


def test_inputs_and_cotangents_are_the_same_in_every_process_and_arm():
    a, b = job("bwd").make_inputs(), job("bwd", run=lambda x: x["b"] * x["a"]).make_inputs()

    assert torch.equal(a["a"], b["a"])
    assert torch.equal(job("bwd").ready(a)()[0], job("bwd").ready(b)()[0])


def test_an_output_without_a_gradient_is_told():
    with pytest.raises(TypeError, match="no output depends on a"):
        job("bwd", run=lambda x: x["a"].detach() * 2).ready(job().make_inputs())


def test_triton_is_unsupported_on_a_cpu_and_never_runs():
    outcome = attempt(job(implementation="triton.mul"), lambda: pytest.fail("must not run"))

    assert "unsupported" == outcome.status
    assert "need a GPU" in outcome.text


def test_an_exception_becomes_a_failed_outcome(capsys):
    outcome = attempt(job(), lambda: (_ for _ in ()).throw(ValueError("bad shape")))

    assert ("failed", "ValueError: bad shape") == (outcome.status, outcome.text)
    assert "ValueError: bad shape" in capsys.readouterr().err


def test_a_probe_that_raises_fails_its_own_variant_only():
    def broken(case, device):
        raise KeyError("capability")

    tried = job()
    tried = replace(tried, implementation=replace(tried.implementation, supports=broken))
    outcome = attempt(tried, lambda: pytest.fail("must not run"))

    assert ("failed", "KeyError: 'capability'") == (outcome.status, outcome.text)


def test_flatten_takes_nested_tensors_in_a_fixed_order():
    a, b, c = (torch.tensor(float(value)) for value in range(3))

    assert [a, b, c] == list(flatten({"z": c, "a": (a, [b, None])}))
    with pytest.raises(TypeError, match="returned str"):
        flatten("tensor")
