from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.model import Capture, RunSpec, Variant
from perfgate.profilers.replay import ReplayProfiler
from perfgate.profilers.spec_file import dump_capture, dump_spec, load_capture


@pytest.fixture
def stored(tmp_path: Path, on_gpu: RunSpec) -> Path:
    """A run directory with one capture, made on a GPU under nsys."""
    return store(tmp_path / "stored", replace(on_gpu, profiler="nsys"))


def store(run: Path, spec: RunSpec, error: str = "") -> Path:
    folder = run / "captures" / spec.id
    folder.mkdir(parents=True)
    dump_spec(spec, folder / "spec.json")
    dump_capture(Capture(spec, f"captures/{spec.id}", "trace.sqlite", not error, error, 7.25), folder / "capture.json")
    (folder / "trace.sqlite").write_text("the trace")
    (folder / "done.json").write_text('{"complete": true, "variants": {}}')
    return run


def test_a_stored_capture_stands_in_for_the_gpu(stored: Path, on_gpu: RunSpec, folder: Path) -> None:
    captured = ReplayProfiler(stored).capture(on_gpu, folder, timeout_s=1)

    spec = replace(on_gpu, profiler="nsys")
    expected = Capture(spec, f"captures/{spec.id}", "trace.sqlite", True, "", 7.25)
    assert (expected, expected) == (captured, load_capture(folder / "capture.json"))
    assert ["capture.json", "done.json", "spec.json", "trace.sqlite"] == sorted(os.listdir(folder))
    assert "the trace" == (folder / "trace.sqlite").read_text()


def test_what_is_asked_may_be_a_part_of_what_is_stored(tmp_path: Path, spec: RunSpec, folder: Path) -> None:
    more = (*spec.variants, Variant("a/b", "smoke", "fwd", "x", "default"))
    run = store(tmp_path / "stored", replace(spec, variants=more))

    assert ReplayProfiler(run).capture(spec, folder, timeout_s=1).complete


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": "time-b09-0-default"}, "the stored run has no usable captures/time-b09-0-default: can't read capture.json"),
        ({"mode": "deterministic"}, "the stored time-b00-0-default is time/default, asked was time/deterministic"),
        ({"device": "cpu"}, "the stored time-b00-0-default ran on cuda:0, its run on cpu"),
        ({"purpose": "bits"}, "the stored time-b00-0-default is time/default, asked was bits/default"),
        (
            {"variants": (Variant("a/b", "smoke", "fwd", "x", "default"),)},
            "the stored time-b00-0-default lacks a/b:smoke:fwd:x (1 of 1)",
        ),
    ],
)
def test_what_is_not_stored_is_an_error_and_nothing_is_copied(
    stored: Path, on_gpu: RunSpec, tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    asked = replace(on_gpu, **change)  # type: ignore[arg-type]
    folder = tmp_path / "run" / "captures" / asked.id
    captured = ReplayProfiler(stored).capture(asked, folder, timeout_s=1)

    assert (False, "", True) == (captured.complete, captured.trace, captured.error.startswith(expected))
    assert not (folder / "trace.sqlite").exists()


def test_a_damaged_done_file_is_an_error(stored: Path, on_gpu: RunSpec, folder: Path) -> None:
    (stored / "captures" / on_gpu.id / "done.json").write_text('{"complete": true, "variants": nu')
    captured = ReplayProfiler(stored).capture(on_gpu, folder, timeout_s=1)

    assert (False, "profiler") == (captured.complete, captured.blame)
    assert "done.json is not readable" in captured.error


def test_a_stored_failure_stays_one(tmp_path: Path, spec: RunSpec, folder: Path) -> None:
    run = store(tmp_path / "stored", spec, error="the child was killed")
    captured = ReplayProfiler(run).capture(spec, folder, timeout_s=1)

    assert (False, "the child was killed") == (captured.complete, captured.error)
