from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.model import RunSpec
from perfgate.profilers.plain import PlainProfiler
from perfgate.profilers.spec_file import load_spec
from perfgate.profilers.torch_profiler import TorchProfiler, recording

Worker = Callable[[str], None]
RANGE = "perfgate::moe/combine:smoke:fwd:torch.index_add"
RECORDED = f"""
event = {{"ph": "X", "cat": "user_annotation", "name": {RANGE!r}, "pid": 1, "tid": 1, "dur": 5}}
events = [{{**event, "ts": 10 * i}} for i in range(3)]
(folder / "trace.json").write_text(json.dumps({{"traceEvents": events}}))
"""


def test_a_recording_holds_its_ranges(tmp_path: Path) -> None:
    import torch
    from torch.profiler import record_function

    with recording(tmp_path / "trace.json"), record_function("perfgate::x"):
        torch.ones(4).sum()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    assert 1 == sum(event.get("name") == "perfgate::x" for event in events)


def test_a_body_that_raises_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boom"), recording(tmp_path / "trace.json"):
        raise ValueError("boom")

    assert not (tmp_path / "trace.json").exists()


def test_a_good_capture_is_complete(worker: Worker, spec: RunSpec, folder: Path) -> None:
    worker(RECORDED + "done()")
    captured = TorchProfiler().capture(spec, folder, timeout_s=60)

    assert ("", "trace.json", True) == (captured.error, captured.trace, captured.complete)
    assert "torch" == load_spec(folder / "spec.json").profiler


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("done()", "torch.profiler left no trace.json"),
        (RECORDED + "done(instances=4)", "range moe/combine:smoke:fwd:torch.index_add: 3 of 4 instances recorded"),
        (RECORDED, "the worker ended without its done file"),
        ("(folder / 'trace.json').write_text('{'); done()", "captures/time-b00-0-default/trace.json"),
    ],
)
def test_a_failed_capture_says_why(worker: Worker, spec: RunSpec, folder: Path, program: str, expected: str) -> None:
    worker(program)
    captured = TorchProfiler().capture(spec, folder, timeout_s=60)

    assert (False, True) == (captured.complete, captured.error.startswith(expected)), captured.error


def test_no_profiler_needs_no_trace(worker: Worker, spec: RunSpec, folder: Path) -> None:
    worker("done()")
    captured = PlainProfiler().capture(spec, folder, timeout_s=60)

    assert (True, "", "none") == (captured.complete, captured.trace, load_spec(folder / "spec.json").profiler)


def test_no_profiler_still_needs_the_done_file(worker: Worker, spec: RunSpec, folder: Path) -> None:
    worker("pass")

    assert "the worker ended without its done file" in PlainProfiler().capture(spec, folder, timeout_s=60).error
