"""RNG states, contention and poisoned allocations, each by itself."""

import random

import numpy as np
import pytest
import torch

from perfgate.determinism import contention as contention_module
from perfgate.determinism.contention import ContentionWarning, contention, why_none
from perfgate.determinism.poison import poisoned_allocations
from perfgate.determinism.rng import restore_rng, seeded


def _draw():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_restore_rng_rewinds_inside_and_restores_after_an_exception():
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    values = []

    def work():
        with restore_rng() as state:
            values.append(_draw())
            state.restore()
            values.append(_draw())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    values.append(_draw())

    assert values[0] == values[1] == values[2]


def test_seeded_is_repeatable_and_leaves_the_outer_state_alone():
    torch.manual_seed(9)
    outer = torch.get_rng_state()

    with seeded(5):
        first = _draw()
    with seeded(5):
        second = _draw()
    with seeded(6):
        third = _draw()

    assert first == second != third
    assert torch.equal(outer, torch.get_rng_state())


def test_contention_says_why_there_is_none():
    with pytest.warns(ContentionWarning, match="side streams need a CUDA device"), contention("cpu") as beside:
        assert not beside.active


def test_one_hardware_queue_makes_contention_impossible(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")

    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in why_none(torch.device("cuda"))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert why_none(torch.device("cuda")) == ""


def test_a_failure_on_the_side_stream_is_raised_not_lost(monkeypatch):
    def fail(device, result, stop, ready):
        raise ValueError("cuBLAS refused")

    monkeypatch.setattr(contention_module, "_keep_busy", fail)

    with pytest.raises(RuntimeError, match="contention failed: cuBLAS refused"), contention("cuda:0"):
        pass


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(3, dtype=torch.int32),
        lambda: torch.empty_like(torch.zeros(3, dtype=torch.int32)),
        lambda: torch.empty_strided((3,), (2,), dtype=torch.int32),
        lambda: torch.zeros(1, dtype=torch.int32).new_empty(3),
    ],
    ids=["empty", "empty_like", "empty_strided", "new_empty"],
)
def test_uninitialised_memory_holds_the_pattern(allocate):
    with poisoned_allocations(byte=0x7B):
        tensor = allocate()

    assert tensor.tolist() == [0x7B7B7B7B] * 3


def test_initialised_memory_is_left_alone():
    with poisoned_allocations():
        assert float(torch.zeros(4).sum()) == 0
        assert torch.arange(3).tolist() == [0, 1, 2]
        assert torch.empty(0).numel() == 0


def test_float_poison_is_nan():
    with poisoned_allocations():
        assert all(
            bool(torch.empty(2, dtype=dtype).to(torch.float32).isnan().all())
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
        )
