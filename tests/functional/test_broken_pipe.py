"""A reader that goes away is told by the shell's own code, never by 1: that means "over budget"."""

import os
import subprocess
import sys

import pytest

from tests.functional.cli import DATA, ROOT


@pytest.mark.parametrize(
    "arguments", [("list",), ("list", "--format", "json"), ("check", DATA / "runs" / "controls", "--format", "csv")]
)
def test_a_reader_that_went_away_is_exit_141(arguments):
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "perfgate", *map(str, arguments)],
        cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=280,
    )  # fmt: skip
    os.close(writer)

    assert 141 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("list",), ("ranges", next((DATA / "nsys").glob("*.sqlite")))])
def test_a_full_disk_is_told_as_one(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perfgate", *map(str, arguments)],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=280,
        )  # fmt: skip

    assert 2 == done.returncode
    assert "error: the output can't be written: No space left on device" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_closed_output_is_no_error():
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m perfgate list >&-', sys.executable],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=280,
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stderr)
