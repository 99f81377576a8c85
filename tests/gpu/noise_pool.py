"""Records what fresh processes differ by on this card: the pr suite, twelve ABBA blocks, 48 captures, two arms.

``python tests/gpu/noise_pool.py tests/data/noise/h200.json`` measures (no bits, no confirmation) and keeps the process
medians of every judged range; ``selftest/same`` (equal arms) and ``selftest/slower`` (5 % more copies) are among them. The
decision rule is resampled over what lies in tests/data/noise by tests/unit/test_simulate.py, and by ``perfgate selftest
--simulate --recorded POOL``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from perfgate import gate
from perfgate.cli._console import err
from perfgate.cli._progress import Lines
from perfgate.config import Config
from perfgate.determinism import selftest_ops
from perfgate.noise import pool_of
from perfgate.session import Session
from perfgate.store import RunDirectory


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the noise between processes of the pr suite.")
    parser.add_argument("pool", type=Path, help="the JSON file to write")
    parser.add_argument("--suite", default="pr")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--profiler", default="nsys")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument(
        "--seconds", type=float, default=420.0, help="no block is begun after this long; what is complete counts"
    )
    parser.add_argument("--out", default="", help="the run directory")
    given = parser.parse_args()
    config = Config(
        op=tuple(given.op),
        suite=given.suite,
        workloads=(selftest_ops.__file__,),
        device=given.device,
        profiler=given.profiler,
        blocks=given.blocks,
        time_budget=given.seconds,
        confirm=False,
        judged_only=True,
        out=given.out,
    )
    directory = RunDirectory.create(config.out, datetime.now(UTC))
    command = shlex.join(["python", "tests/gpu/noise_pool.py", given.pool.name, *sys.argv[2:]])
    session = Session(gate.prepare(config), directory, command, Lines(err()))
    with session.concluded():
        session.measure_blocks()
    pool = pool_of(session.result())
    given.pool.parent.mkdir(parents=True, exist_ok=True)
    pool.write(given.pool)
    blocks = {len(arms["default"]) for arms in pool.ranges.values()}
    sys.stdout.write(f"{given.pool}: {len(pool.ranges)} ranges, {max(blocks)} blocks, {given.pool.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
