"""What the Triton kernels can run; imports neither torch nor triton at module level."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

from .shape import DIMENSIONS

DTYPES = ("bfloat16", "float16")
OLDEST_TRITON = (3, 6)


def unsupported(
    device: str, *, dim: int, heads: int, kv_heads: int, q_len: int, kv_len: int, causal: bool, window: int | None
) -> str:
    """Why attention of heads × q_len × dim against kv_heads × kv_len × dim can't run on ``device`` in Triton; "" if it can.

    ``window`` is the number of keys a query sees at most and implies ``causal``.
    """
    if dim not in DIMENSIONS:
        return f"head dimension {dim}: the Triton kernels take {' and '.join(map(str, DIMENSIONS))}"
    if min(heads, kv_heads, q_len, kv_len) < 1 or heads % kv_heads:
        return f"{heads} query heads of {q_len} rows over {kv_heads} kv heads of {kv_len}: none, or no whole groups"
    if window is not None and not (causal and window >= 1):
        return f"window {window}: at least 1 key, and causal"
    return _machine(device)


@lru_cache(maxsize=16)
def _machine(device: str) -> str:
    if not device.startswith("cuda"):
        return "Triton kernels need a GPU; on a CPU only their interpreter tests run them"
    import torch

    if not torch.cuda.is_available():
        return "Triton kernels need a GPU: torch finds none"
    try:
        installed = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "needs triton"
    if tuple(int(part) for part in installed.split(".")[:2]) < OLDEST_TRITON:
        return f"needs triton {'.'.join(map(str, OLDEST_TRITON))} or newer, found {installed}"
    major, minor = torch.cuda.get_device_capability(torch.device(device))
    return "" if major >= 8 else f"needs compute capability 8.0 or newer, found {major}.{minor}"
