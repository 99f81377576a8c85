"""Which device a run uses, found without importing torch."""

from __future__ import annotations

from perfgate.errors import UsageError
from perfgate.nvml import describe


def choose_device(wanted: str) -> str:
    """The torch device string for ``auto``, ``cpu`` or a GPU's index: "cpu" or "cuda:N".

    ``auto`` takes GPU 0 where NVML finds one, else the CPU. Raises :class:`UsageError` where a named GPU is not there.
    """
    if wanted == "cpu":
        return "cpu"
    device = f"cuda:{0 if wanted == 'auto' else int(wanted)}"
    _, problem = describe(device)
    if not problem:
        return device
    if wanted == "auto":
        return "cpu"
    raise UsageError(f"no GPU {wanted}: {problem}", "`perfgate doctor` says what is missing; --device cpu runs without a GPU")


def why_no_gpu() -> str:
    """Why ``auto`` takes no GPU, in words; "" where it takes one."""
    return describe("cuda:0")[1]


def device_name(device: str) -> str:
    """The card's name as its driver gives it ("NVIDIA H200"), which chooses the budget file; "cpu" for the CPU."""
    if device == "cpu":
        return "cpu"
    facts, _ = describe(device)
    return str(facts.get("name") or device)
