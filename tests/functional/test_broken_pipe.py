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
