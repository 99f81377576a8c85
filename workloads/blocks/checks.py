"""Input checks: shapes, dtypes and devices always (host only); values only under a switch, because they wait for the device.

``PERFGATE_CHECK_INPUTS=1`` turns the value checks on: one device synchronisation per check, so it is for debugging, not for
measured runs, and it can't be used while a CUDA graph is captured.
"""

from __future__ import annotations

import os
from typing import Any


def checking_values() -> bool:
    """Whether ``PERFGATE_CHECK_INPUTS`` asks for the checks that synchronise with the device."""
    return os.environ.get("PERFGATE_CHECK_INPUTS", "") not in ("", "0")


def require_shape(name: str, tensor: Any, shape: tuple[int | None, ...]) -> None:
    """Raises ``ValueError`` unless ``tensor`` has ``shape``; ``None`` stands for any length."""
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(want is not None and want != have for want, have in zip(shape, actual, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(actual)}, but [{wanted}] is needed")


def require_dtype(name: str, tensor: Any, *names: str) -> None:
    """Raises ``TypeError`` unless the tensor's dtype is one of ``names`` ("float32", "bfloat16", "int64", ...)."""
    actual = str(tensor.dtype).removeprefix("torch.")
    if actual not in names:
        raise TypeError(f"{name} is {actual}, but {' or '.join(names)} is needed")


def require_same_device(**tensors: Any) -> None:
    """Raises ``ValueError`` unless all tensors are on one device."""
    places = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(places.values())) > 1:
        raise ValueError("all inputs must be on one device: " + ", ".join(f"{name} on {at}" for name, at in places.items()))


def require_rows(name: str, tensor: Any) -> None:
    """Raises ``ValueError`` unless the last dimension is contiguous: kernels step through rows with any stride."""
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} in its last dimension, but 1 is needed: call .contiguous()")


def require_range(name: str, ids: Any, end: int) -> None:
    """Under the switch, raises ``IndexError`` for ids outside −1 .. ``end`` − 1 (−1 is the documented "dropped")."""
    if not checking_values() or ids.numel() == 0:
        return
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < -1 or highest >= end:
        raise IndexError(f"{name} holds {lowest if lowest < -1 else highest}, but ids from -1 (dropped) to {end - 1} are valid")
