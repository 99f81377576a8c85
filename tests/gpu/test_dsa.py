"""dsa/backward on the card: what only it can show, for every form that the probe says runs here."""

from __future__ import annotations

import pytest
import torch

from perfgate import Case, discover
from perfgate.determinism.bits import bytes_equal
from perfgate.determinism.replay import assert_replays_bit_exact, clone_inputs, count_differing_replays
from perfgate.model import Variant
from perfgate.worker.bits import accuracy, peak_memory
from perfgate.worker.job import Job

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

op = discover.load().op("dsa/backward")
KERNELS = "dsa.backward.kernels"  # imported when a test runs: it imports triton
NAMES = ("q", "kv", "topk", "topk_length", "out", "lse", "dout", "scale")
SMALL = ["small", *(case.name for case in op.in_suite("edges"))]
TRITON = ["triton_atomic", "triton_exact", "sorted_segment"]
ORDER_FREE = [name for name in TRITON if name != "triton_atomic"]


def job(case: str | Case, implementation: str) -> Job:
    run = next(one for one in op.implementations if one.name == implementation)
    chosen = op.case(case) if isinstance(case, str) else case
    found = Job(Variant(op.name, chosen.name, "fwd", run.name, run.role), op, chosen, run, "cuda:0", seed=0)
    if found.unsupported():
        pytest.skip(found.unsupported())
    return found


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("implementation", TRITON)
def test_the_error_to_float64_is_within_the_ops_limit_in_both_modes(case, implementation):
    subject = job(case, implementation)
    x = subject.make_inputs()
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            outputs = subject.ready(clone_inputs(x))()
        finally:
            torch.use_deterministic_algorithms(False)

        assert accuracy(subject, x, outputs)["error"] <= 5e-3  # bf16: 2.3e-3 are the operands' rounding


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("implementation", ORDER_FREE)
def test_replays_under_contention_with_poisoned_memory_give_the_same_bits(case, implementation):
    subject = job(case, implementation)
    x = subject.make_inputs()

    shown = assert_replays_bit_exact(lambda: subject.ready(clone_inputs(x))(), replays=6, contention=True, poison=True)

    assert shown.compared == 5


def test_the_racy_form_differs_from_replay_to_replay():
    subject = job("small", "triton_atomic")
    x = subject.make_inputs()

    assert count_differing_replays(lambda: subject.ready(clone_inputs(x))(), replays=20, contention=True) > 0


@pytest.mark.parametrize("case", ["small", "edge-no-rows", "edge-lengths-holes", "edge-duplicates"])
def test_only_dkv_differs_between_the_racy_form_and_the_others_and_within_rounding(case):
    x = job(case, "triton_atomic").make_inputs()
    racy = job(case, "triton_atomic").ready(x)()

    for implementation in ORDER_FREE:
        dq, dkv = job(case, implementation).ready(x)()
        assert bytes_equal(racy[0], dq)
        assert float((dkv - racy[1]).float().norm() / racy[1].float().norm()) < 5e-3


@pytest.mark.parametrize("reach", [0.0, 1e-3, 1e9])
def test_rows_whose_quantum_was_too_fine_or_too_coarse_are_added_again_with_the_same_bits(reach):
    subject = job("edge-257", "triton_exact")
    x = subject.make_inputs()
    arguments = {name: x[name] for name in NAMES} | {"reach": torch.full((1,), reach, device="cuda")}

    results = [discover.module(KERNELS).backward_exact(**arguments) for _ in range(5)]

    assert all(bytes_equal(results[0][1], one[1]) for one in results[1:])
    assert accuracy(subject, x, results[0][:2])["error"] <= 5e-3


@pytest.mark.parametrize("implementation", ORDER_FREE)
def test_a_cuda_graphs_replay_gives_the_eager_runs_bits(implementation):
    subject = job("small", implementation)
    x = subject.make_inputs()
    call = subject.ready(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        eager = [one.clone() for one in call()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = call()

    for _ in range(3):
        for one in captured:
            one.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(bytes_equal(one, other) for one, other in zip(eager, captured, strict=True))


@pytest.mark.parametrize("case", ["typical", "context512k", "edge-little-workspace"])
@pytest.mark.parametrize("implementation", TRITON)
def test_the_declared_workspace_is_what_is_measured(case, implementation):
    subject = job(case, implementation)
    x = subject.make_inputs()
    outputs = x["q"].nbytes + x["kv"].nbytes

    measured = peak_memory(subject, x)["peak_bytes"] - outputs

    declared = subject.implementation.workspace(subject.case)
    assert abs(measured - declared) <= max(0.1 * declared, 2**20)
