"""Runs the command line as a user does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
UNLESS_NOISY = (0, 4)  # one block on a crowded CPU may stay undecided; anything else is a bug. `make run` must exit 0


def perfgate(*arguments, cwd=ROOT, timeout=280, **environment):
    """The finished process of ``perfgate ARGUMENTS``; no traceback may ever reach the user."""
    done = subprocess.run(
        [sys.executable, "-m", "perfgate", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
