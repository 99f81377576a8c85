"""A module's parameters, buffers and gradients, kept while it is run again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from perfgate.determinism.cloning import clone_tensor


@contextmanager
def kept_state(module: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Yields a function that puts parameters and buffers back and clears ``.grad``; on exit all is as it was found."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    values = {key: clone_tensor(tensor.detach()) for key, tensor in tensors.items()}
    gradients = {key: tensor.grad for key, tensor in tensors.items()}

    def rewind() -> None:
        with torch.no_grad():
            for key, tensor in tensors.items():
                tensor.copy_(values[key])
                tensor.grad = None

    try:
        yield rewind
    finally:
        rewind()
        for key, tensor in tensors.items():
            tensor.grad = gradients[key]
