from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError

import pandas as pd
import pytest

from perfgate.profilers import checks
from perfgate.profilers.checks import lost_launches, lost_ranges_mend, missing_gpu_work, missing_ranges, profiler_said
from perfgate.traces.schema import LAUNCHES, OPS, RANGES, Trace, check

PROCESS = 0x1000001000000


def frame(rows: Sequence[Mapping[str, object]], columns: dict[str, str]) -> pd.DataFrame:
    blank = {name: "" if kind == "str" else kind == "bool" if kind == "bool" else 0 for name, kind in columns.items()}
    return check(pd.DataFrame([{**blank, **row} for row in rows], columns=list(columns)), columns, "test")


def trace(
    ranges: Sequence[Mapping[str, object]] = (),
    launches: Sequence[Mapping[str, object]] = (),
    ops: Sequence[Mapping[str, object]] = (),
    *,
    has_gpu: bool = True,
    diagnostics: tuple[str, ...] = (),
    version: str = "2025.3.1",
) -> Trace:
    return Trace(
        source="x",
        format="nsys-sqlite",
        tool_version=version,
        schema_version="",
        ops=frame(ops, OPS),
        launches=frame(launches, LAUNCHES),
        ranges=frame(ranges, RANGES),
        has_gpu=has_gpu,
        diagnostics=diagnostics,
    )


def measured(
    start: int, *, name: str = "a", domain: str = "perfgate", closed: bool = True, process: int = PROCESS
) -> dict[str, object]:
    return {"domain": domain, "name": name, "process": process, "start": start, "end": start + 50, "closed": closed}


def launch(start: int, correlation: int, *, name: str = "cudaLaunchKernel_v7000", process: int = PROCESS) -> dict[str, object]:
    return {"name": name, "process": process, "start": start, "end": start + 1, "correlation": correlation}


def kernel(correlation: int, *, process: int = PROCESS) -> dict[str, object]:
    return {"kind": "KERNEL", "process": process, "correlation": correlation, "start": 5, "end": 9}


def test_every_instance_of_every_range_was_recorded() -> None:
    held = trace([measured(0), measured(100), measured(200, name="b")])

    assert "" == missing_ranges(held, {"a": 2, "b": 1})


@pytest.mark.parametrize("count", [1, 3])
def test_a_count_that_differs_either_way_is_told(count: int) -> None:
    held = trace([measured(0), measured(100), measured(200, name="b")])

    assert missing_ranges(held, {"b": 1, "a": count}).startswith(f"range a: 2 of {count} instances recorded;")


def test_further_ranges_are_counted() -> None:
    assert "(and 2 more ranges)" in missing_ranges(trace([measured(0)]), {"a": 1, "b": 1, "c": 2, "d": 3})


@pytest.mark.parametrize("other", [{"domain": "perfgate.aux"}, {"domain": ""}, {"closed": False}])
def test_only_closed_ranges_of_our_domain_count(other: dict[str, bool]) -> None:
    held = trace([measured(0, **other)])  # type: ignore[arg-type]

    assert missing_ranges(held, {"a": 1}).startswith("the profile holds none of the 1 measured ranges; ")


@pytest.mark.parametrize(
    ("nvtx", "nsys", "blamed"),
    [
        ("0.2.11", "2022.4.2", False),
        ("0.2.12", "2022.4.2", True),
        ("0.2.14", "2024.2.3", True),
        ("0.2.17", "2024.4.1", False),
        ("0.2.17", "2025.3.1", False),
        ("0.3", "2023.4.4", True),
    ],
)
def test_nvtx_is_blamed_only_where_it_is_to_blame(monkeypatch: pytest.MonkeyPatch, nvtx: str, nsys: str, blamed: bool) -> None:
    monkeypatch.setattr(checks, "version", lambda package: nvtx)

    assert blamed == lost_ranges_mend(nsys).startswith(f"nvtx {nvtx} emits ranges that nsys {nsys} rejects: pip install")


def test_a_machine_without_nvtx_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(checks, "version", missing)

    assert "the Python package nvtx is missing" in lost_ranges_mend("2025.3.1")


@pytest.mark.parametrize("has_gpu", [True, False])
def test_ranges_without_gpu_work_are_an_empty_profile(has_gpu: bool) -> None:
    held = trace([measured(0)], [launch(10, 1)], has_gpu=has_gpu, diagnostics=("No OpenGL events", "The driver is too new"))

    assert missing_gpu_work(held).startswith(
        "the profile is empty: ranges, but no GPU activity (the profiler said: The driver is too new);"
    )


@pytest.mark.parametrize(
    ("diagnostics", "expected"),
    [
        ((), ""),
        (("No OpenGL events collected.",), ""),
        (
            ("Not all CUDA events might have been collected.", "Installed CUDA driver version (13.3)\nis not supported"),
            " (the profiler said: Installed CUDA driver version (13.3) is not supported)",
        ),
    ],
)
def test_of_the_profilers_messages_the_one_that_explains_is_quoted(diagnostics: tuple[str, ...], expected: str) -> None:
    assert expected == profiler_said(diagnostics)


def test_launches_with_their_kernels_are_whole() -> None:
    held = trace([measured(0), measured(100)], [launch(10, 1), launch(110, 2)], [kernel(1), kernel(2)])

    assert ("", (0, 2)) == (missing_gpu_work(held), lost_launches(held))


def test_launches_without_their_kernels_are_told() -> None:
    held = trace([measured(0), measured(100)], [launch(10, 1), launch(110, 2), launch(120, 3)], [kernel(1)])

    assert missing_gpu_work(held).startswith("2 of 3 measured launches have no kernel in the profile; ")


def test_a_kernel_of_another_process_does_not_stand_in() -> None:
    held = trace([measured(0)], [launch(10, 1)], [kernel(1, process=2 * PROCESS)])

    assert (1, 1) == lost_launches(held)


@pytest.mark.parametrize(
    "call",
    [
        launch(60, 9),  # after the range
        launch(-5, 9),  # before it
        launch(10, 9, process=2 * PROCESS),  # in another process
        launch(10, 9, name="cudaMalloc_v3020"),
        launch(10, 9, name="cudaLaunchHostFunc_v10000"),
        launch(10, 9, name="cudaEventRecord_v3020"),
    ],
)
def test_calls_that_need_no_kernel_are_no_loss(call: dict[str, object]) -> None:
    held = trace([measured(0), measured(0, domain="perfgate.aux", name="flush")], [launch(10, 1), call], [kernel(1)])

    assert (0, 1) == lost_launches(held)


@pytest.mark.parametrize(
    "name", ["cuLaunchKernelEx", "cuLaunchKernel", "cudaGraphLaunch_v10000", "cudaLaunchCooperativeKernel_v9000"]
)
def test_every_way_to_launch_counts(name: str) -> None:
    assert (1, 1) == lost_launches(trace([measured(0)], [launch(10, 1, name=name)]))
