"""What NVML says about the card: what it is, and how it stood before and after a segment of work.

Only reads; never changes a setting. Every question that a driver, a container or a MIG slice does not answer is ``None`` in
the answer and a sentence in its ``problem``: a card that can't be asked is a warning, not a crash.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# NVML's bits of the clocks' event reasons. Idle and the user's own clock setting are no trouble.
TROUBLE: Mapping[int, str] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_POWER, _THERMAL = 0, 1  # nvmlPerfPolicyType_t
_SM, _MEMORY = 1, 2  # nvmlClockType_t


@dataclass(frozen=True)
class Segment:
    """One reading of the card. MHz, degrees Celsius, watts, bytes; nanoseconds for the times.

    ``power_capped_ns`` and ``heat_capped_ns`` are the driver's running totals: their growth over a segment is what counts.
    ``others`` and ``others_bytes`` are other processes with a context on the card (our own children have ended by then).
    """

    read_ns: int = 0  # of the monotonic clock
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    sm_max_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttled: tuple[str, ...] = ()
    power_capped_ns: int | None = None
    heat_capped_ns: int | None = None
    others: int | None = None
    others_bytes: int | None = None
    problem: str = ""


def read_segment(device: str, environment: Mapping[str, str] = os.environ) -> Segment:
    """The card behind ``device`` ("cuda:0") as it stands now; an empty reading for a CPU."""
    now = time.monotonic_ns()
    if not device.startswith("cuda"):
        return Segment(read_ns=now)
    try:
        with card(device, environment) as (nvml, handle):
            return _reading(nvml, handle, now)
    except NvmlError as problem:
        return Segment(read_ns=now, problem=str(problem))


def describe(device: str, environment: Mapping[str, str] = os.environ) -> tuple[dict[str, Any], str]:
    """(what the card is, what could not be asked): name, hashed uuid, driver, memory, limits, clocks, ECC, MIG shape."""
    try:
        with card(device, environment) as (nvml, handle):
            return _description(nvml, handle), ""
    except NvmlError as problem:
        return {}, str(problem)


def visible_cards(environment: Mapping[str, str] = os.environ) -> int:
    """How many cards a program sees under CUDA_VISIBLE_DEVICES; 0 where NVML can't say."""
    try:
        with _started() as nvml:
            visible = environment.get("CUDA_VISIBLE_DEVICES")
            return int(nvml.nvmlDeviceGetCount()) if visible is None else len(_entries(visible))
    except NvmlError:
        return 0


class NvmlError(Exception):
    """NVML can't be used at all, in words."""


@contextmanager
def card(device: str, environment: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    """The pynvml module and the handle for a torch device string. Raises :class:`NvmlError`."""
    with _started() as nvml:
        try:
            yield nvml, _handle(nvml, device, environment.get("CUDA_VISIBLE_DEVICES"))
        except nvml.NVMLError as error:
            raise NvmlError(f"NVML does not know {device}: {error}") from None


@contextmanager
def _started() -> Iterator[Any]:
    """The pynvml module between its start and its end. Raises :class:`NvmlError`."""
    try:
        import pynvml
    except ImportError:
        raise NvmlError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML does not start: {error}") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML does not answer: {error}") from None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _handle(nvml: Any, device: str, visible: str | None) -> Any:
    """CUDA's number of a card, through CUDA_VISIBLE_DEVICES, as NVML's handle (a MIG slice's own one)."""
    number = int(device.partition(":")[2] or 0)
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(number)
    entries = _entries(visible)
    if number >= len(entries):
        raise NvmlError(f"{device} is not among CUDA_VISIBLE_DEVICES, which names {len(entries)}")
    entry = entries[number]
    return nvml.nvmlDeviceGetHandleByIndex(int(entry)) if entry.isdigit() else nvml.nvmlDeviceGetHandleByUUID(entry)


def _entries(visible: str) -> list[str]:
    return [entry.strip() for entry in visible.split(",") if entry.strip()]


def _asked(question: Callable[[], T]) -> T | None:
    """The answer, or ``None`` where this card, driver or NVML has none.

    Bindings that don't fit the driver raise anything (AttributeError, ctypes and decoding errors): none of it ends a run.
    """
    try:
        return question()
    except Exception:
        return None


def _physical(nvml: Any, handle: Any) -> Any:
    """The card that a MIG slice lies on; the handle itself where it is no slice."""
    return _asked(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle


def _reading(nvml: Any, handle: Any, now: int) -> Segment:
    whole = _physical(nvml, handle)
    bits = _asked(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole))
    others = _asked(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if others is not None:
        others = [process for process in others if process.pid != os.getpid()]
    sm = _asked(lambda: int(nvml.nvmlDeviceGetClockInfo(whole, _SM)))
    return Segment(
        read_ns=now,
        sm_mhz=sm,
        memory_mhz=_asked(lambda: int(nvml.nvmlDeviceGetClockInfo(whole, _MEMORY))),
        sm_max_mhz=_asked(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(whole, _SM))),
        temperature_c=_asked(lambda: int(nvml.nvmlDeviceGetTemperature(whole, 0))),
        power_w=_watts(_asked(lambda: nvml.nvmlDeviceGetPowerUsage(whole))),
        power_limit_w=_watts(_asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(whole))),
        throttled=tuple(name for bit, name in TROUBLE.items() if bits is not None and bits & bit),
        power_capped_ns=_asked(lambda: int(nvml.nvmlDeviceGetViolationStatus(whole, _POWER).violationTime)),
        heat_capped_ns=_asked(lambda: int(nvml.nvmlDeviceGetViolationStatus(whole, _THERMAL).violationTime)),
        others=None if others is None else len(others),
        others_bytes=None if others is None else sum(process.usedGpuMemory or 0 for process in others),
        problem="" if sm is not None else "NVML tells no clocks of this card",
    )


def _description(nvml: Any, handle: Any) -> dict[str, Any]:
    whole = _physical(nvml, handle)
    uuid = _asked(lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    memory = _asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _asked(lambda: nvml.nvmlDeviceGetCudaComputeCapability(whole))
    cuda = _asked(lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    ecc = _asked(lambda: nvml.nvmlDeviceGetEccMode(whole))
    return {
        "name": _asked(lambda: _text(nvml.nvmlDeviceGetName(whole))),
        "id": hashlib.sha256(uuid.encode()).hexdigest()[:12] if uuid else None,
        "driver": _asked(lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "compute_capability": ".".join(str(part) for part in capability) if capability else None,
        "memory_bytes": int(memory.total) if memory else None,
        "power_limit_w": _watts(_asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(whole))),
        "power_limit_default_w": _watts(_asked(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(whole))),
        "sm_max_mhz": _asked(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(whole, _SM))),
        "memory_max_mhz": _asked(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(whole, _MEMORY))),
        "memory_bus_bits": _asked(lambda: int(nvml.nvmlDeviceGetMemoryBusWidth(whole))),
        "application_sm_mhz": _asked(lambda: int(nvml.nvmlDeviceGetApplicationsClock(whole, _SM))),
        "ecc": bool(ecc[0]) if ecc else None,
        "mig": _mig(nvml, handle, whole),
    }


def _mig(nvml: Any, handle: Any, whole: Any) -> str | None:
    """The slice's shape as nvidia-smi writes it ("3g.71gb"); "on" for a whole card in MIG mode, "off" out of it."""
    mode = _asked(lambda: nvml.nvmlDeviceGetMigMode(whole))
    if mode is None:
        return None
    if not mode[0]:
        return "off"
    shape = _asked(lambda: nvml.nvmlDeviceGetAttributes(handle))
    return f"{shape.gpuInstanceSliceCount}g.{round(shape.memorySizeMB / 1024)}gb" if shape else "on"


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else round(milliwatts / 1000, 1)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
