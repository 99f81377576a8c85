"""Controls of the whole gate, declared like any workload: ``perfgate selftest`` runs them and knows what must come out.

Sizes depend on the device, so that a CPU needs milliseconds and a GPU's copies take long enough to be timed to 0.1 %.
"""

from __future__ import annotations

import os
from typing import Any

from perfgate.registry import Case, Op

COPIES = 100  # of the plain arm: every extra copy costs 1 %
MOST_EXTRA = 400
SUITE = "selftest"

same = Op("selftest/same", kind="torch-op")
slower = Op("selftest/slower", kind="torch-op")
racy = Op("selftest/racy", kind="torch-op", max_error=1e-3)
empty = Op("selftest/empty", kind="torch-op")

for _op in (same, racy, empty):
    _op.cases(control={"extra": 0})
    _op.suites(**{SUITE: ("control",)})
slower.cases(**{f"plus{extra}": {"extra": extra} for extra in range(1, MOST_EXTRA + 1)})
slower.suites(**{SUITE: ("plus5",)})
same.suites(
    pr=("control",)
)  # with tests/gpu/noise_pool.py: what is equal, and what is 5 % slower, among a pull request's cases
slower.suites(pr=("plus5",))


def _buffers(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Two buffers of 16 MiB on a GPU, of 256 KiB on a CPU."""
    import torch

    count = 2**16 if device == "cpu" else 2**22
    source = torch.randn(count, device=device, generator=generator)
    return {"source": source, "target": torch.zeros_like(source), "extra": case.extra}


def _copies(x: dict[str, Any], count: int) -> Any:
    for _ in range(count):
        x["target"].copy_(x["source"])
    return x["target"]


def _plain(x: dict[str, Any]) -> Any:
    return _copies(x, COPIES)


def _slowed(x: dict[str, Any]) -> Any:
    return _copies(x, COPIES + x["extra"])


same.inputs(_buffers)
same.default("copies")(_plain)
same.champion("copies.again")(_plain)

slower.inputs(_buffers)
slower.default("copies")(_plain)
slower.champion("copies.and_more")(_slowed)

empty.inputs(_buffers)


@empty.default("view")
def _view(x: dict[str, Any]) -> Any:
    """Launches nothing at all."""
    return x["source"].view(-1, 2)


empty.champion("view.again")(_view)


@racy.inputs
def _rows(_: Case, device: str, generator: Any) -> dict[str, Any]:
    """Values [N, W] f32 that many rows of few ids share, so that their order shows."""
    import torch

    rows, width, ids = (512, 16, 2) if device == "cpu" else (65536, 256, 64)
    return {
        "values": torch.randn(rows, width, device=device, generator=generator),
        "ids": torch.arange(rows, device=device) % ids,
        "out": torch.zeros(ids, width, device=device),
    }


@racy.default("index_add_")
def _index_add(x: dict[str, Any]) -> Any:
    return x["out"].index_add_(0, x["ids"], x["values"])


@racy.champion("index_add_.in_any_order")
def _in_any_order(x: dict[str, Any]) -> Any:
    """Claims to be deterministic and is not: atomics with the mode switched off; on a CPU, rows in an order drawn anew."""
    import torch

    values, ids = x["values"], x["ids"]
    if values.device.type == "cpu":
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
        order = torch.randperm(len(ids), generator=generator)
        values, ids = values[order], ids[order]
    before, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        return x["out"].index_add_(0, ids, values)
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
