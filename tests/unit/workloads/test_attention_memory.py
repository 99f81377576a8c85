"""What attention declares as its workspace is what it allocates."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfgate import discover

from .attention_cases import problem

SHAPE = dict(batch=2, heads=4, kv_heads=2, q_len=100, kv_len=150)
OUTPUTS = 2 * 64 * 2 * (4 * 100 + 2 * 2 * 150)  # dq, dk, dv: 2 batches of 64 columns of 2 bytes


class Allocated(TorchDispatchMode):
    """Bytes of the tensors that are made inside the block and are not views."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and not function.is_view:
            self.bytes += made.untyped_storage().nbytes()
        return made


class Unlaunched:
    def __getitem__(self, grid):
        return lambda *_, **__: None


@pytest.fixture
def given(monkeypatch):
    """Inputs; the kernels do nothing, the forward has its blocks of 64 keys."""
    for side, names in (("forward", ("_attend",)), ("backward", ("_prepare", "_key_blocks", "_finish", "_query_blocks"))):
        kernels = discover.module(f"attention.{side}.kernels")
        for name in names:
            monkeypatch.setattr(kernels, name, Unlaunched())
        if side == "forward":
            monkeypatch.setattr(kernels, "config_for", lambda *_: {"M": 64, "N": 64, "STAGES": 1, "num_warps": 4})
    return problem("cpu", **SHAPE)


@pytest.mark.parametrize("surveyed", [True, False])
def test_the_forward_keeps_what_is_declared(surveyed, given):
    with Allocated() as allocated:
        out, *_ = given.forward(survey=surveyed)

    declared = discover.module("attention.shape").statistics_bytes(2, 4, 2, 100, 150, surveyed)
    assert allocated.bytes == declared + out.nbytes


@pytest.mark.parametrize("rule", ["two_pass", "atomic", "exact"])
def test_the_backward_needs_what_is_declared(rule, given):
    out, lse, survey = given.forward()

    with Allocated() as allocated:
        given.backward(out, lse, rule, survey)

    assert allocated.bytes == discover.module("attention.shape").backward_bytes(2, 4, 100, 64, rule) + OUTPUTS


def test_a_step_declares_the_output_and_its_gradient_too(given):
    registry = discover.load()
    op, case = registry.op("attention/fwd_bwd"), registry.op("attention/fwd_bwd").case("typical")
    out = 2 * 2 * 16 * 4096 * 128
    declared = {one.name: one.workspace(case) for one in op.implementations if one.workspace}

    assert declared["two_pass"] == 2 * out + (4 + 8) * 2 * 16 * 4096
    assert declared["triton_exact"] == 4 * out + (4 + 4 + 12) * 2 * 16 * 4096 + 12 * 2 * 16 * 8
