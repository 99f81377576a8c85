"""What only a GPU can show: replays under contention, poisoned memory, fresh processes, CUDA graphs, more than 2³¹ elements."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from perfgate import Case, discover
from perfgate.determinism.bits import bytes_equal
from perfgate.determinism.replay import assert_replays_bit_exact, clone_inputs, count_differing_replays
from perfgate.model import Variant
from perfgate.worker.job import Job

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

registry = discover.load()
FAMILIES = ("moe/", "segment/", "embedding/")
OPS = [op for op in registry if op.name.startswith(FAMILIES)]
DETERMINISTIC = [
    pytest.param(op.name, case, phase, one.name, id=f"{op.name}:{case}:{phase}:{one.name}")
    for op in OPS
    for case in ["small", *(case.name for case in op.in_suite("edges"))]
    for phase in op.phases
    for one in op.implementations
    if one.role in ("champion", "candidate") and one.backend == "triton"
]


def job(name: str, case: str | Case, phase: str, implementation: str) -> Job:
    op = registry.op(name)
    run = next(one for one in op.implementations if one.name == implementation)
    chosen = op.case(case) if isinstance(case, str) else case
    found = Job(Variant(name, chosen.name, phase, run.name, run.role), op, chosen, run, "cuda:0", seed=0)
    if found.unsupported():
        pytest.skip(found.unsupported())
    return found


@pytest.mark.parametrize(("name", "case", "phase", "implementation"), DETERMINISTIC)
def test_replays_under_contention_with_poisoned_memory_give_the_same_bits(name, case, phase, implementation):
    subject = job(name, case, phase, implementation)
    x = subject.make_inputs()

    shown = assert_replays_bit_exact(lambda: subject.ready(clone_inputs(x))(), replays=6, contention=True, poison=True)

    assert shown.compared == 5


@pytest.mark.parametrize(("name", "case", "phase", "implementation"), DETERMINISTIC)
def test_the_error_to_float64_is_within_the_ops_limit_in_both_modes(name, case, phase, implementation):
    from perfgate.worker.bits import accuracy

    subject = job(name, case, phase, implementation)
    x = subject.make_inputs()
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            outputs = tuple(one.detach() for one in subject.ready(clone_inputs(x))())
        finally:
            torch.use_deterministic_algorithms(False)

        assert accuracy(subject, x, outputs)["error"] <= subject.op.max_error


@pytest.mark.parametrize(
    ("name", "case", "phase", "implementation"),
    [
        pytest.param(op.name, case, phase, op.with_role("champion").name, id=f"{op.name}:{case}:{phase}")
        for op in OPS
        for case in ("small", op.in_suite("edges")[0].name)
        for phase in op.phases
    ],
)
def test_a_cuda_graphs_replay_gives_the_eager_runs_bits(name, case, phase, implementation):
    subject = job(name, case, phase, implementation)
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


def test_the_racy_control_differs_from_replay_to_replay():
    subject = job("segment/index_add", "edge-one-id", "fwd", "torch.index_add_")
    x = subject.make_inputs()

    assert count_differing_replays(lambda: subject.ready(clone_inputs(x))(), replays=20, contention=True) > 0


def test_two_addends_never_differ_so_top_2_shows_that_the_harness_sees_no_ghosts():
    subject = job("moe/combine", "edge-top2", "fwd", "torch.scatter_add_")
    x = subject.make_inputs()

    assert count_differing_replays(lambda: subject.ready(clone_inputs(x))(), replays=20, contention=True) == 0


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
import test_kernels
from perfgate.determinism.bits import digest
for name in {names!r}:
    op = test_kernels.registry.op(name)
    for phase in op.phases:
        subject = test_kernels.job(name, "small", phase, op.with_role("champion").name)
        print(name, phase, digest(tuple(one.detach() for one in subject.ready(subject.make_inputs())())))
"""


def test_fresh_processes_give_the_same_bits():
    text = SCRIPT.format(folder=os.path.dirname(__file__), names=[op.name for op in OPS])

    runs = [subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout for _ in range(2)]

    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) == sum(len(op.phases) for op in OPS)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_int32_and_int64_ids_give_the_same_bits(dtype):
    sums, sort = discover.module("blocks.segment.kernels"), discover.module("blocks.sort.kernels")
    exact = discover.module("blocks.exact.kernels")
    g = torch.Generator("cuda").manual_seed(1)
    values = torch.randn(5000, 777, device="cuda", generator=g)
    ids = torch.randint(-1, 300, (5000,), device="cuda", generator=g)

    assert bytes_equal(
        sums.sum_segments(values, sort.stable_sort(ids, 300)), sums.sum_segments(values, sort.stable_sort(ids.to(dtype), 300))
    )
    assert bytes_equal(exact.exact_sum(values, ids, 300), exact.exact_sum(values, ids.to(dtype), 300))


def test_odd_strides_and_unaligned_rows_give_the_contiguous_bits():
    sums, sort = discover.module("blocks.segment.kernels"), discover.module("blocks.sort.kernels")
    g = torch.Generator("cuda").manual_seed(2)
    wide = torch.randn(3000, 1031, device="cuda", generator=g)
    ids = sort.stable_sort(torch.randint(0, 100, (3000,), device="cuda", generator=g), 100)

    for start in (1, 3):
        view = wide[:, start : start + 1000]
        assert bytes_equal(sums.sum_segments(view.contiguous(), ids), sums.sum_segments(view, ids))


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory < 60 * 2**30, reason="needs 60 GiB"
)
def test_more_than_two_to_the_31_elements():
    combine = discover.module("moe.combine.kernels")
    rows = torch.zeros(2**20 + 5, 2048, dtype=torch.bfloat16, device="cuda")
    rows[-3:] = torch.tensor([[1.0], [2.0], [4.0]], device="cuda").to(torch.bfloat16)
    slots = torch.tensor([[2**20 + 2, 2**20 + 3], [2**20 + 4, -1]], dtype=torch.int32, device="cuda")

    out = combine.combine(rows, torch.ones(rows.shape[0], device="cuda"), slots)

    assert out[:, 0].tolist() == [3.0, 4.0]
    assert out[:, -1].tolist() == [3.0, 4.0]
    del rows, out

    sums, sort = discover.module("blocks.segment.kernels"), discover.module("blocks.sort.kernels")
    exact = discover.module("blocks.exact.kernels")
    values = torch.ones(2**20 + 5, 2050, dtype=torch.bfloat16, device="cuda")
    ids = torch.full((2**20 + 5,), 3, device="cuda")
    ids[-2:] = 1_100_000

    for total in (
        sums.sum_segments(values, sort.stable_sort(ids, 1_100_001), dtype=torch.float32),
        exact.exact_sum(values, ids, 1_100_001),
    ):
        assert total[3].unique().tolist() == [2.0**20 + 3]
        assert total[1_100_000].unique().tolist() == [2.0]
        assert float(total[4:1_100_000].abs().max()) == 0.0
