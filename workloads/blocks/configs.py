"""Pinned launch configurations: a static table instead of autotuning by time, which itself changes bits.

``configs.json`` maps architecture → kernel → buckets ``[limit, options]`` in rising order of ``limit``; the first bucket whose
limit is not below the size applies, ``null`` is no limit. ``tests/benchmarks/tune_workloads.py`` regenerates it on a card.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("configs.json")


@lru_cache(maxsize=1)
def table() -> dict[str, dict[str, list[tuple[int | None, dict[str, int]]]]]:
    """The whole table as it was shipped."""
    loaded: dict[str, dict[str, list[tuple[int | None, dict[str, int]]]]] = json.loads(TABLE.read_text())
    return loaded


@lru_cache(maxsize=1)
def digest() -> str:
    """First 16 hex digits of the SHA-256 of the table's content: part of a run's evidence, equal where bits must be equal."""
    canonical = json.dumps(table(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@lru_cache(maxsize=4096)
def config(kernel: str, size: int, architecture: str) -> Mapping[str, Any]:
    """Constants and launch options of ``kernel`` for a problem of ``size`` on ``architecture`` ("sm90", "interpreter").

    An architecture without a row of its own takes "default": bits are then pinned too, only speed is not tuned.
    """
    rows = table().get(architecture, {}).get(kernel) or table()["default"][kernel]
    options = next(options for limit, options in rows if limit is None or size <= limit)
    return dict(options)


@lru_cache(maxsize=64)
def architecture_of(device: Any) -> str:
    """The table's key for a torch device: "sm90" for Hopper, "interpreter" for a CPU."""
    import torch

    if device.type != "cuda":
        return "interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def config_for(kernel: str, size: int, tensor: Any) -> Mapping[str, Any]:
    """:func:`config` for the device that ``tensor`` is on."""
    return config(kernel, size, architecture_of(tensor.device))
