from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perfgate.card_lock import lock_file
from perfgate.nvml import Segment, describe, read_segment, visible_cards


class Refused(Exception):
    """Stands for pynvml.NVMLError."""


def refuse(*_: Any) -> Any:
    raise Refused("Not Supported")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A pynvml of one H200 with two processes on it, one of them ours."""
    import os

    fake = ModuleType("pynvml")
    answers: dict[str, Any] = {
        "NVMLError": Refused,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 8,
        "nvmlDeviceGetHandleByIndex": lambda index: f"card {index}",
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"card {uuid}",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": refuse,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-serial of {handle}",
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=150_754_820_096),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlSystemGetDriverVersion": lambda: b"580.159",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
        "nvmlDeviceGetPowerUsage": lambda handle: 120_340,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetApplicationsClock": lambda handle, kind: 1980,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
        "nvmlDeviceGetEccMode": lambda handle: [1, 1],
        "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x1,
        "nvmlDeviceGetViolationStatus": lambda handle, policy: SimpleNamespace(violationTime=[5_000, 0][policy]),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=1 << 30),
            SimpleNamespace(pid=1, usedGpuMemory=2 << 20),
        ],
    }
    for name, answer in answers.items():
        setattr(fake, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_card_is_described_without_its_serial_number(nvml: ModuleType) -> None:
    card, problem = describe("cuda:0", {})

    assert ("", "NVIDIA H200", "580.159", "13.1", "9.0", 700.0, True, "off") == (
        problem,
        *(card[name] for name in ("name", "driver", "cuda_driver", "compute_capability", "power_limit_w", "ecc", "mig")),
    )
    assert (12, False) == (len(card["id"]), "GPU-" in str(card))


def test_a_reading_leaves_our_own_process_out(nvml: ModuleType) -> None:
    reading = read_segment("cuda:0", {})

    expected = Segment(0, 1980, 3201, 1980, 41, 120.3, 700.0, (), 5_000, 0, 1, 2 << 20, "")
    assert expected == replace(reading, read_ns=0)


def test_idle_and_set_clocks_are_no_trouble_and_heat_is(nvml: ModuleType) -> None:
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x1 | 0x2 | 0x40 | 0x4  # type: ignore[attr-defined]

    assert ("power cap", "hardware thermal slowdown") == read_segment("cuda:0", {}).throttled


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda", None, "card 0"),
        ("cuda:3", None, "card 3"),
        ("cuda:1", "4,6", "card 6"),
        ("cuda:0", "GPU-abc", "card GPU-abc"),
        ("cuda:0", "MIG-abc", "card MIG-abc"),
    ],
)
def test_the_card_is_the_one_that_cuda_means(nvml: ModuleType, device: str, visible: str | None, expected: str) -> None:
    asked = []

    def name(handle: str) -> str:
        asked.append(handle)
        return "NVIDIA H200"

    nvml.nvmlDeviceGetName = name  # type: ignore[attr-defined]
    describe(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert [expected] == asked


@pytest.mark.parametrize("visible", ["", "2"])
def test_a_card_that_is_hidden_is_a_problem(nvml: ModuleType, visible: str) -> None:
    assert "cuda:1 is not among CUDA_VISIBLE_DEVICES" in describe("cuda:1", {"CUDA_VISIBLE_DEVICES": visible})[1]


def test_a_mig_slice_has_its_shape_and_its_cards_clocks(nvml: ModuleType) -> None:
    nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda handle: "the whole card"  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetMigMode = lambda handle: [1, 1]  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetAttributes = lambda handle: SimpleNamespace(gpuInstanceSliceCount=3, memorySizeMB=71_680)  # type: ignore[attr-defined]
    clocks = {"the whole card": 1980}
    nvml.nvmlDeviceGetClockInfo = lambda handle, kind: clocks[handle]  # type: ignore[attr-defined]

    assert ("3g.70gb", 1980) == (describe("cuda:0", {})[0]["mig"], read_segment("cuda:0", {}).sm_mhz)


@pytest.mark.parametrize(
    "refusal", [refuse, lambda *_: (_ for _ in ()).throw(UnicodeDecodeError("utf-8", b"", 0, 1, "x")), None]
)
def test_questions_without_an_answer_are_none_and_never_a_crash(nvml: ModuleType, refusal: Any) -> None:
    handles = ("nvmlDeviceGetHandleByIndex", "nvmlInit", "nvmlShutdown")
    for name in [name for name in vars(nvml) if name.startswith("nvml") and name not in handles]:
        if refusal is None:
            delattr(nvml, name)
        else:
            setattr(nvml, name, refusal)
    reading = asdict(read_segment("cuda:0", {}))
    card, problem = describe("cuda:0", {})

    assert ("NVML tells no clocks of this card", ()) == (reading.pop("problem"), reading.pop("throttled"))
    assert ({None}, {None}, "") == (
        {value for name, value in reading.items() if name != "read_ns"},
        set(card.values()),
        problem,
    )


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_an_nvml_that_does_not_start_is_words(nvml: ModuleType, name: str) -> None:
    setattr(nvml, name, refuse)

    assert ({}, True) == (describe("cuda:0", {})[0], "Not Supported" in describe("cuda:0", {})[1])
    assert "Not Supported" in read_segment("cuda:0", {}).problem


def test_no_binding_is_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert "nvidia-ml-py is not installed" in describe("cuda:0", {})[1]


def test_a_cpu_is_not_asked() -> None:
    assert Segment() == replace(read_segment("cpu", {}), read_ns=0)


@pytest.mark.parametrize(
    ("environment", "count"), [({}, 8), ({"CUDA_VISIBLE_DEVICES": "3, 5"}, 2), ({"CUDA_VISIBLE_DEVICES": ""}, 0)]
)
def test_how_many_cards_a_program_sees(nvml: ModuleType, environment: dict[str, str], count: int) -> None:
    assert count == visible_cards(environment)


def test_no_nvml_no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert 0 == visible_cards({})


def test_a_cards_lock_is_the_same_under_every_view_of_it(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on two cards: runs under CUDA_VISIBLE_DEVICES=0 and =1 waited for each other, both calling theirs cuda:0."""
    names = {}
    for visible in ("0", "1", "0,1", "1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        names[visible] = lock_file("cuda:0", Path("/locks")).name

    assert names["0"] == names["0,1"]
    assert names["1"] == names["1,0"]
    assert names["0"] != names["1"]
