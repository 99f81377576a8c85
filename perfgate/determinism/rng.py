"""Every random state a kernel test can touch: python, numpy, torch on the CPU and on every CUDA device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class RngState:
    """The states as they were; CUDA's only where CUDA was initialised."""

    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...]

    def restore(self) -> None:
        """Puts every state back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)


def rng_state() -> RngState:
    """The states as they are now."""
    cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
    return RngState(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)


@contextmanager
def restore_rng() -> Iterator[RngState]:
    """Leaves every random state as it was found. ``restore()`` of the yielded state rewinds inside the block."""
    before = rng_state()
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seeds python, numpy and torch for the length of a ``with`` block, then puts the old states back."""
    with restore_rng():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield
