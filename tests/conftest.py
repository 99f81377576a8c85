"""What a test needs that the machine may lack: a GPU, nsys, chromium. In CI (CI=true) only the GPU may be missing."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

# ignored under nohup or `&`, by children too: the tests that interrupt theirs must reach them
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHROMIUM = Path("/usr/bin/chromium")


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("-m") or ""
    if "benchmark" not in wanted:
        kept = [item for item in items if "benchmark" not in item.keywords]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not _gpu():
        pytest.skip("needs an NVIDIA GPU")
    for marker, present, mend in (
        ("nsys", _nsys(), "bash .ci/install-nsys"),
        ("browser", CHROMIUM.exists(), "apt-get install chromium"),
    ):
        if item.get_closest_marker(marker) and not present:
            text = f"{marker} tests need what this machine lacks: {mend}"
            if os.environ.get("CI") == "true":
                pytest.fail(text)
            pytest.skip(text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """One test at a time uses nsys, with all that it sets up: one that is killed while another starts can lock all out."""
    if not item.get_closest_marker("nsys"):
        return (yield)
    with (Path(tempfile.gettempdir()) / f"perfgate-tests-nsys-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


def _gpu():
    from perfgate.nvml import describe

    return not describe("cuda:0")[1]


def _nsys():
    return bool(os.environ.get("PERFGATE_NSYS") or shutil.which("nsys"))
