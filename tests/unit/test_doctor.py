from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfgate import doctor
from perfgate.doctor import Check, card_state, contract, disk, exit_code, gpu, importer, nvtx, torch_check, triton
from perfgate.nvml import Segment
from perfgate.profilers.nsys_found import NsysFacts

CARD = {
    "name": "NVIDIA H200",
    "driver": "580.159",
    "cuda_driver": "13.0",
    "memory_bytes": 141 << 30,
    "power_limit_default_w": 700.0,
    "mig": "off",
}
NOW = Segment(0, 1980, 3201, 1980, 40, 120.0, 700.0, (), 0, 0, 0, 0)


def test_a_gpu_is_described() -> None:
    assert Check("gpu", "ok", "NVIDIA H200, 141 GiB, driver 580.159 (CUDA 13.0), MIG off") == gpu(CARD, "")


def test_no_gpu_is_a_warning() -> None:
    found = gpu({}, "NVML does not start: Driver Not Loaded")

    assert ("warning", "none: NVML does not start: Driver Not Loaded") == (found.status, found.text)


def test_a_gpu_that_tells_only_part_is_a_warning() -> None:
    assert "warning" == gpu({**CARD, "driver": None}, "").status


@pytest.mark.parametrize(
    ("now", "status", "text"),
    [
        (NOW, "ok", "SM 1980 of 1980 MHz, 40 °C, limit 700.0 W"),
        (Segment(problem="NVML tells no clocks of this card"), "warning", "NVML tells no clocks"),
        (Segment(others=2), "warning", "2 other processes on the card"),
        (Segment(throttled=("power brake",)), "warning", "slowed down: power brake"),
        (Segment(power_limit_w=500.0), "warning", "below the card's own 700.0 W"),
    ],
)
def test_the_state_of_the_card(now: Segment, status: str, text: str) -> None:
    found = card_state(now, CARD)

    assert (status, True, status != "ok") == (found.status, text in found.text, bool(found.mend))


@pytest.mark.parametrize(
    ("torch", "card", "status", "text"),
    [
        ({"cuda": None, "gpu": ""}, {}, "ok", "built for CPU only"),
        ({"cuda": "13.0", "gpu": "NVIDIA H200"}, CARD, "ok", "CUDA 13.0; GPU: NVIDIA H200"),
        ({"cuda": None, "gpu": ""}, CARD, "error", "it sees no GPU, NVML sees NVIDIA H200"),
        ({"cuda": "13.0", "gpu": ""}, CARD, "error", "it sees no GPU, NVML sees NVIDIA H200"),
        ({"error": "ModuleNotFoundError: No module named 'torch'"}, CARD, "error", "does not start: ModuleNotFoundError"),
    ],
)
def test_torch_must_see_the_card_that_nvml_sees(torch: dict[str, Any], card: dict[str, Any], status: str, text: str) -> None:
    found = torch_check(torch, card)

    assert (status, True, status != "ok") == (found.status, text in found.text, bool(found.mend))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (SimpleNamespace(returncode=1, stderr=b"Traceback\nOSError: libcudart\n", stdout=b""), "OSError: libcudart"),
        (SimpleNamespace(returncode=-11, stderr=b"", stdout=b""), "exit -11"),
        (subprocess.TimeoutExpired("python", 120), "import torch did not end in 120 s"),
    ],
)
def test_a_torch_that_does_not_start_is_words(monkeypatch: pytest.MonkeyPatch, outcome: Any, expected: str) -> None:
    def run(*_: Any, **__: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(doctor.subprocess, "run", run)  # type: ignore[attr-defined]

    assert {"error": expected} == doctor.ask_torch()


@pytest.mark.parametrize(
    ("installed", "status"), [("0.2.10", "ok"), ("0.2.11", "ok"), ("0.2.12", "warning"), ("0.3.0", "warning"), (None, "error")]
)
def test_nvtx_versions(monkeypatch: pytest.MonkeyPatch, installed: str | None, status: str) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: lookup(installed))

    assert status == nvtx().status


def lookup(installed: str | None) -> str:
    if installed is None:
        raise PackageNotFoundError
    return installed


@pytest.mark.parametrize(("installed", "status"), [("3.6.0", "ok"), (None, "warning")])
def test_triton_versions(monkeypatch: pytest.MonkeyPatch, installed: str | None, status: str) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: lookup(installed))

    assert status == triton(on_gpu=False).status


@pytest.mark.parametrize(("on_gpu", "status"), [(True, "warning"), (False, "ok")])
def test_a_gpu_without_a_c_compiler_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_gpu: bool, status: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)

    assert status == triton(on_gpu=on_gpu).status


@pytest.mark.parametrize(
    ("path", "problem", "status"),
    [
        (Path("/x/QdstrmImporter"), "", "ok"),
        (Path("/x/QdstrmImporter"), "it lies elsewhere", "warning"),
        (None, "libdw", "error"),
    ],
)
def test_importers(path: Path | None, problem: str, status: str) -> None:
    found = importer(NsysFacts(Path("/x/nsys"), "2025.3.1", frozenset(), path, problem, "mend it" if problem else ""))

    assert (status, "mend it" if problem else "") == (found.status, found.mend)


def test_a_broken_contract_lists_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    found = contract()

    assert ("warning", True) == (found.status, "NCCL_ALGO" in found.text and "CUBLAS_WORKSPACE_CONFIG" in found.text)


@pytest.mark.parametrize(("free", "status"), [(1 << 30, "warning"), (100 << 30, "ok")])
def test_little_room_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))  # type: ignore[attr-defined]

    assert status == disk(tmp_path).status


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [(["ok"], 0), (["ok", "warning", "warning"], 0), (["warning", "error", "ok"], 6), (["error"] * 300, 6)],
)
def test_the_exit_code_is_never_a_count(statuses: list[Any], expected: int) -> None:
    assert expected == exit_code([Check("x", status, "") for status in statuses])
