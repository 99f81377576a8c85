"""What a marked test needs and this machine may lack: skipped where it may be missing, a failure where CI promises it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips gpu, nsys and browser tests without theirs; with CI=true a missing nsys or browser is a failure instead."""
    if item.get_closest_marker("gpu") and not gpu_found():
        pytest.skip("no NVIDIA GPU here")
    missing = [name for name, found in PROMISED_BY_CI.items() if item.get_closest_marker(name) and not found()]
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but {missing[0]} is missing: {MENDS[missing[0]]}", pytrace=False)
    if missing:
        pytest.skip(f"{missing[0]} is missing: {MENDS[missing[0]]}")


def gpu_found() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def nsys_found() -> bool:
    from perfgate.errors import ProfilerError
    from perfgate.profilers.nsys_found import find_nsys

    try:
        find_nsys()
    except ProfilerError:
        return False
    return True


PROMISED_BY_CI = {"nsys": nsys_found, "browser": CHROMIUM.exists}
MENDS = {"nsys": "sudo .ci/install-nsys", "browser": "sudo apt-get install chromium"}
