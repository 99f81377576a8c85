"""Kernels run compiled where there is a GPU, else in Triton's interpreter: the same tests, the same bits expected."""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    assert "triton.language" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", (
        "triton was imported before these tests could choose its interpreter: set TRITON_INTERPRET=1"
    )
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def generator(device: str) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(20261129)
