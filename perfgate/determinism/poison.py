"""Memory that nobody has written yet, made to hold a pattern, so that a kernel that reads it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PATTERNS = (0xFF, 0x7B, 0x00)  # NaN in every float type and −1; large finite numbers; what a fresh allocation often holds

_UNINITIALISED = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


@contextmanager
def poisoned_allocations(device: torch.device | str | None = None, byte: int = PATTERNS[0]) -> Iterator[None]:
    """Fills uninitialised memory with ``byte`` for the length of a ``with`` block.

    Every ``torch.empty`` and its kin is filled as it is made: workspaces and outputs allocated in Python, Triton's included.
    On a CUDA ``device`` the caching allocator's free blocks are filled on entry as well, which is what allocations inside
    C++ get, as long as they fit into memory this process has used before.
    """
    if device is not None and torch.device(device).type == "cuda":
        fill_free_blocks(torch.device(device), byte)
    with _Poison(byte):
        yield


class _Poison(TorchDispatchMode):
    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.byte = byte

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _UNINITIALISED and isinstance(made, torch.Tensor) and made.layout == torch.strided:
            _fill(made.untyped_storage(), self.byte)
        return made


def _fill(storage: torch.UntypedStorage, byte: int) -> None:
    if storage.nbytes() and storage.device.type != "meta":
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).fill_(byte)


def fill_free_blocks(device: torch.device, byte: int) -> int:
    """Writes ``byte`` into every free block of CUDA's caching allocator on ``device``; returns how many bytes."""
    index = torch.cuda.current_device() if device.index is None else device.index
    stream = torch.cuda.current_stream(index).cuda_stream
    sizes = sorted(
        (
            block["size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == index and segment["stream"] == stream and segment.get("segment_pool_id", (0, 0)) == (0, 0)
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ),
        reverse=True,
    )
    held: list[torch.Tensor] = []
    for size in sizes:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device=device).fill_(byte))
        except torch.OutOfMemoryError:  # the block was only free for another size class; the rest is still worth filling
            continue
    return sum(block.numel() for block in held)
