"""Tests that need nsys: skipped where it may be missing, red where CI promises it. Nobody notices a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

A_TEST = f"{Path(__file__).parent / 'test_nsys.py'}::test_a_cpu_program_gives_its_ranges"


@pytest.mark.parametrize(("ci", "code", "word"), [("true", 1, "1 error"), ("", 0, "1 skipped")])
def test_a_missing_nsys_is_red_in_ci_and_skipped_elsewhere(tmp_path: Path, ci: str, code: int, word: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PERFGATE_NSYS"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", A_TEST],
        env={**environment, "PATH": str(tmp_path), "CI": ci},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert (code, True, True) == (ran.returncode, word in ran.stdout, "install-nsys" in ran.stdout), ran.stdout
