from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.profilers.nsys_found import probe
from perfgate.profilers.probe_capture import problem_of

MakeNsys = Callable[..., Path]


@pytest.mark.parametrize(
    ("deeds", "program", "timeout_s", "expected"),
    [
        ({}, "raise ImportError('no nvtx')", 60, "the probe program failed (exit 1): ImportError: no nvtx"),
        ({"profile": "exit 0"}, "", 60, "nsys ended with exit 0 and wrote no report"),
        ({"profile": "exec sleep 60"}, "", 1, "nsys did not end in 1 s and was killed"),
        ({"export": "exit 1"}, "", 60, "nsys export failed (exit 1)"),
        ({"export": 'cp /dev/null "$out"'}, "", 60, "nsys export wrote a file that is no SQLite database"),
    ],
)
def test_what_breaks_the_probe_is_told(
    make_nsys: MakeNsys, tmp_path: Path, deeds: dict[str, str], program: str, timeout_s: float, expected: str
) -> None:
    facts = probe(make_nsys(**deeds))
    problem = problem_of(facts, [sys.executable, "-c", program], tmp_path, on_gpu=False, timeout_s=timeout_s)

    assert problem.startswith(expected), problem
