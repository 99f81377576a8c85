"""Publishes a run directory: the result, its views, and one small trace per arm.

python reports/publish.py RUN reports/h200/TOPIC

The traces are the first block's, with the first ten instances of each range; nothing of the environment is in them.
Logs stay out.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

INSTANCES = 10
FILES = ("result.json", "leaderboard.csv", "run.json")
DEVICE_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")

KEPT_RANGES = """
create temp table kept as
select start, end from (
  select n.start, n.end, row_number() over (partition by coalesce(n.text, s.value) order by n.start) as instance
  from NVTX_EVENTS n left join StringIds s on s.id = n.textId
  join NVTX_EVENTS d on d.eventType = 75 and d.domainId = n.domainId and d.text = 'perfgate'
  where n.eventType = 59
) where instance <= ?
"""


def main() -> None:
    """Reads RUN and TARGET from the command line."""
    parser = argparse.ArgumentParser(description="Publish a run directory.")
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    given.target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(given.run / name, given.target / name)
    for mode in ("default", "deterministic"):
        (capture,) = sorted(given.run.glob(f"captures/time-b00-[01]-{mode}"))
        thin(capture / "trace.sqlite", given.target / f"trace-{mode}.sqlite")
    subprocess.run([sys.executable, "-m", "perfgate", "report", str(given.target)], check=True, stdout=subprocess.DEVNULL)


def thin(source: Path, target: Path) -> None:
    """Writes ``source`` with the first instances of each measured range and what they launched alone."""
    shutil.copyfile(source, target)
    with sqlite3.connect(target) as trace:
        trace.execute(KEPT_RANGES, (INSTANCES,))
        trace.execute("create index temp.kept_start on kept (start)")
        trace.execute(
            "create temp table launched as select rowid as row, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r"
            " where r.end <= (select end from kept where start <= r.start order by start desc limit 1)"
        )
        trace.execute("delete from CUPTI_ACTIVITY_KIND_RUNTIME where rowid not in (select row from launched)")
        for table in DEVICE_TABLES:
            if trace.execute("select 1 from sqlite_master where name = ?", (table,)).fetchone():
                trace.execute(f"delete from {table} where correlationId not in (select correlationId from launched)")  # noqa: S608
        trace.execute("delete from NVTX_EVENTS where eventType = 59 and start not in (select start from kept)")
    sqlite3.connect(target).execute("vacuum")


if __name__ == "__main__":
    main()
