"""Attention's gradients on a GPU: every implementation against float64, bits under contention, and the race that shows.

flash-attn-4's own are in test_fa4.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest
import torch

from perfgate import discover
from perfgate.determinism.bits import bytes_equal
from perfgate.determinism.replay import assert_replays_bit_exact, clone_inputs, count_differing_replays
from perfgate.model import Memory
from perfgate.signals import workspace_formula
from perfgate.worker.bits import peak_memory, relative_l2

from .test_kernels import job

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

CASES = ["small", "edge-gqa4", "edge-window", "edge-129", "edge-257", "edge-cross", "edge-gqa8"]
OURS = ["triton_exact", "two_pass", "triton_atomic"]
EVERY = [*OURS, "cudnn", "torch_flash", "torch_flash_ordered"]
SUBJECTS = [*(("attention/bwd", case) for case in CASES), ("attention/fwd_bwd", "small")]
DETERMINISTIC = ["triton_exact", "two_pass"]

# a process of its own: compiles what the case needs into Triton's cache, and prints the gradients' digest
ALONE = """
import sys
from perfgate import discover
from perfgate.determinism.bits import digest
from perfgate.model import Variant
from perfgate.worker.job import Job
case, implementation = sys.argv[1:]
op = discover.load().op("attention/bwd")
run = next(one for one in op.implementations if one.name == implementation)
job = Job(Variant(op.name, case, "bwd", run.name, run.role), op, op.case(case), run, "cuda:0", seed=0)
print(job.unsupported() or digest(tuple(one.detach() for one in job.ready(job.make_inputs())())))
"""


def alone(arguments: tuple[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr[-2000:]


@pytest.fixture(scope="module", autouse=True)
def digests():
    """Of every case's gradients by ours, from processes side by side: what one process would compile one by one."""
    wanted = [(case, one) for case in ["typical", *CASES] for one in OURS]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return dict(zip(wanted, pool.map(alone, wanted), strict=True))


@lru_cache(maxsize=2)
def exact(name: str, case: str):
    """The gradients in float64, the same for every implementation; the tests go case by case."""
    subject = job(name, case, "bwd" if name.endswith("/bwd") else "step", "triton_exact")
    x = {
        key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in subject.make_inputs().items()
    }
    return tuple(one.detach() for one in subject.ready(x, subject.op.compute_reference)())


def error(name: str, case: str, implementation: str) -> float:
    """The largest relative L2 error of any gradient."""
    subject = job(name, case, "bwd" if name.endswith("/bwd") else "step", implementation)
    actual = subject.ready(subject.make_inputs())()
    return max(relative_l2(one.detach(), other) for one, other in zip(actual, exact(name, case), strict=True))


@pytest.fixture
def mode(implementation):
    """The mode that the implementation is measured in."""
    torch.use_deterministic_algorithms(implementation == "torch_flash_ordered")
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("implementation", EVERY)
@pytest.mark.parametrize(("name", "case"), SUBJECTS)
def test_the_error_to_float64_is_within_the_ops_limit(name, case, implementation, mode):
    assert error(name, case, implementation) <= discover.load().op(name).max_error


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("implementation", DETERMINISTIC)
def test_replays_under_contention_with_poisoned_memory_give_the_same_bits(case, implementation):
    subject = job("attention/bwd", case, "bwd", implementation)
    x = subject.make_inputs()

    shown = assert_replays_bit_exact(lambda: subject.ready(clone_inputs(x))(), replays=6, contention=True, poison=True)

    assert shown.compared == 5


def test_fresh_processes_give_the_same_bits(digests):
    wanted = [(case, one) for case in ("typical", "edge-257", "edge-window", "edge-gqa8") for one in DETERMINISTIC]

    with ThreadPoolExecutor(len(wanted)) as pool:
        again = dict(zip(wanted, pool.map(alone, wanted), strict=True))

    assert all(re.fullmatch("[0-9a-f]+", one) for one in again.values()), again
    assert {one: digests[one] for one in wanted} == again


@pytest.mark.parametrize("implementation", ["cudnn", "torch_flash", "triton_atomic"])
def test_the_racy_ones_differ_from_replay_to_replay(implementation):
    subject = job("attention/bwd", "typical", "bwd", implementation)
    x = subject.make_inputs()

    assert count_differing_replays(lambda: subject.ready(clone_inputs(x))(), replays=10, contention=True) > 0


def test_the_exact_error_is_the_atomic_ones():
    """Rounding to 22 bits of what a contribution can be is far below bf16: the two errors agree to a hundredth."""
    errors = {one: error("attention/bwd", "typical", one) for one in ("triton_exact", "triton_atomic", "cudnn")}

    assert errors["triton_exact"] <= 1.01 * errors["triton_atomic"]
    assert errors["triton_exact"] <= 1.1 * errors["cudnn"]


@pytest.mark.parametrize("case", ["typical", "edge-gqa4"])
@pytest.mark.parametrize("implementation", OURS)
@pytest.mark.parametrize(("name", "phase"), [("attention/bwd", "bwd"), ("attention/fwd_bwd", "step")])
def test_the_peak_is_the_declared_workspace(name, phase, implementation, case):
    subject = job(name, case, phase, implementation)
    outputs = sum(one.nbytes for one in subject.ready(subject.make_inputs())())

    peak = peak_memory(subject, subject.make_inputs())["peak_bytes"]

    declared = subject.implementation.workspace(subject.case)
    memory = Memory(deterministic_bytes=peak, declared_bytes=declared, output_bytes=outputs)
    assert workspace_formula(memory, implementation) is None


@pytest.mark.parametrize(("option", "values"), [("TOGETHER", (1, 32)), ("BULK", (1, 0))])
def test_neither_another_order_of_programs_nor_quanta_counted_behind_the_product_change_bits(option, values, monkeypatch):
    """Without bulk reductions dQ's product takes dS itself, and its result is divided by the quantum."""
    kernels = discover.module("attention.backward.kernels")
    subject = job("attention/bwd", "small", "bwd", "triton_exact")
    x = subject.make_inputs()
    configured = kernels.config_for
    seen = []
    for chosen in values:
        monkeypatch.setattr(
            kernels,
            "config_for",
            lambda name, size, tensor, chosen=chosen: {
                key: chosen if key == option else value for key, value in configured(name, size, tensor).items()
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
