"""Attention's gradients on a GPU: every implementation against float64, bits under contention, and the race that shows."""

from __future__ import annotations

import pytest
import torch

from perfgate import discover
from perfgate.determinism.bits import bytes_equal
from perfgate.determinism.replay import assert_replays_bit_exact, clone_inputs, count_differing_replays
from perfgate.worker.bits import accuracy

from .test_kernels import job

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

registry = discover.load()
OPS = [registry.op("attention/fwd_bwd"), registry.op("attention/bwd")]
CASES = ["small", "edge-gqa4", "edge-window", "edge-129", "edge-257", "edge-cross", "edge-gqa8"]
ALL = [
    pytest.param(op.name, case, op.phases[0], one.name, id=f"{op.name}:{case}:{one.name}")
    for op in OPS
    for case in CASES
    if any(known.name == case for known in op.case_list)
    for one in op.implementations
]
DETERMINISTIC = [
    one for one in ALL if one.values[3] in ("triton_exact", "two_pass", "fa4_exact", "fa4_ordered", "torch_flash_ordered")
]


@pytest.fixture
def mode(implementation):
    """The mode that the implementation is measured in."""
    torch.use_deterministic_algorithms(implementation == "torch_flash_ordered")
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("name", "case", "phase", "implementation"), ALL)
def test_the_error_to_float64_is_within_the_ops_limit(name, case, phase, implementation, mode):
    subject = job(name, case, phase, implementation)
    x = subject.make_inputs()
    outputs = tuple(one.detach() for one in subject.ready(clone_inputs(x))())

    assert accuracy(subject, x, outputs)["error"] <= subject.op.max_error


@pytest.mark.parametrize(("name", "case", "phase", "implementation"), DETERMINISTIC)
def test_replays_under_contention_with_poisoned_memory_give_the_same_bits(name, case, phase, implementation, mode):
    subject = job(name, case, phase, implementation)
    x = subject.make_inputs()

    shown = assert_replays_bit_exact(lambda: subject.ready(clone_inputs(x))(), replays=6, contention=True, poison=True)

    assert shown.compared == 5


@pytest.mark.parametrize("implementation", ["cudnn", "torch_flash", "triton_atomic"])
def test_the_racy_ones_differ_from_replay_to_replay(implementation):
    subject = job("attention/bwd", "typical", "bwd", implementation)
    x = subject.make_inputs()

    assert count_differing_replays(lambda: subject.ready(clone_inputs(x))(), replays=10, contention=True) > 0


def test_the_exact_error_is_the_atomic_ones():
    """Rounding to 30 bits of a bound is far below bf16: the two errors agree to a hundredth."""
    errors = {}
    for implementation in ("triton_exact", "triton_atomic", "cudnn"):
        subject = job("attention/bwd", "typical", "bwd", implementation)
        x = subject.make_inputs()
        errors[implementation] = accuracy(subject, x, tuple(one.detach() for one in subject.ready(clone_inputs(x))()))["error"]

    assert errors["triton_exact"] <= 1.01 * errors["triton_atomic"]
    assert errors["triton_exact"] <= 1.1 * errors["cudnn"]


def test_another_order_of_programs_gives_the_same_bits(monkeypatch):
    kernels = discover.module("attention.backward.kernels")
    subject = job("attention/bwd", "small", "bwd", "triton_exact")
    x = subject.make_inputs()
    configured = kernels.config_for
    seen = []
    for together in (1, 3, 32):
        monkeypatch.setattr(
            kernels,
            "config_for",
            lambda name, size, tensor, together=together: {
                key: together if key == "TOGETHER" else value for key, value in configured(name, size, tensor).items()
            },
        )
        seen.append([one.detach().clone() for one in subject.ready(clone_inputs(x))()])

    assert all(bytes_equal(one, other) for run in seen[1:] for one, other in zip(seen[0], run, strict=True))


def test_a_cuda_graphs_replay_gives_the_eager_runs_bits():
    subject = job("attention/bwd", "small", "bwd", "triton_exact")
    x = subject.make_inputs()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # the forward too: backward runs on the stream of its forward
        call = subject.ready(x)
        eager = [one.detach().clone() for one in call()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = call()

    for _ in range(3):
        for one in captured:
            one.detach().zero_()
        graph.replay()
        torch.cuda.synchronize()

        assert all(bytes_equal(one, other.detach()) for one, other in zip(eager, captured, strict=True))
