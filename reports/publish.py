"""Publishes a run directory: the result, its views, and one small trace per arm.

python reports/publish.py RUN reports/h200/TOPIC

The traces are the first block's: of ops the first ten instances of each range, of a program two steps of its steady window.
Nothing of the environment is in them. result.json keeps every sample; of a program it loses the timelines of ranges with many
operations (a step has hundreds, and layers and ops repeat them): the traces hold them. The kernels.json of a program's arms is
published too, where it wrote one. Logs stay out; a path of the machine in what would be published is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from perfgate.model import Comparison
from perfgate.render.json import dumps, loads

INSTANCES = 10
STEPS = 2
SHOWN = 40
FILES = ("result.json", "leaderboard.csv", "run.json")
DEVICE_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
INTERPRETER = re.compile(r"/[\w./+-]*/(python)[\d.]*(?![\w./-])")
PATH = re.compile(r"(?<![\w.<:/])/(?:home|root|tmp|opt|usr|mnt|srv|data|work|workspace)/[\w./-]*")

KEPT = """
create temp table kept as
select start, end from (
  select n.start, n.end, row_number() over (partition by coalesce(n.text, s.value) order by n.start) as instance
  from NVTX_EVENTS n left join StringIds s on s.id = n.textId
  join NVTX_EVENTS d on d.eventType = 75 and d.domainId = n.domainId and d.text = ?
  where n.eventType = 59 and (? = '' or coalesce(n.text, s.value) = ?)
) where instance > ? and instance <= ?
"""
LAUNCHED = """
create temp table launched as select rowid as row, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r
where r.end <= (select end from kept where start <= r.start order by start desc limit 1)
"""
OTHER_RANGES = """
delete from NVTX_EVENTS where rowid in (
  select rowid from NVTX_EVENTS n where n.eventType = 59
  and not coalesce(n.start < (select end from kept where start <= n.start order by start desc limit 1), 0)
)
"""


def main() -> None:
    """Reads RUN and TARGET from the command line."""
    parser = argparse.ArgumentParser(description="Publish a run directory.")
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--instances", type=int, default=INSTANCES, help="of each range in the published traces")
    given = parser.parse_args()
    publish(given.run, given.target, given.instances)


def publish(run: Path, target: Path, instances: int = INSTANCES) -> None:
    """Writes what is published of ``run`` into ``target``; ``SystemExit`` where it would hold a path of this machine."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (target / name).write_text(INTERPRETER.sub(r"\1", (run / name).read_text()))
    program = json.loads((run / "result.json").read_text()).get("program")
    if program:
        (target / "result.json").write_text(without_long_timelines((target / "result.json").read_text()))
    arms = [one["arm"] for one in program["arms"]] if program else ["default", "deterministic"]
    first = program["window"][0] if program else 0
    for arm in arms:
        captures = sorted(run.glob(f"captures/time-b00-[0-9]-{arm}"))
        for capture in captures[:1] if program else captures:
            window = ("perfgate.user", "step", first, first + STEPS) if program else ("perfgate", "", 0, instances)
            thin(capture / "trace.sqlite", target / f"trace-{arm}.sqlite", *window)
    kernels = {arm: json.loads(file.read_text()) for arm in arms for file in _kernels(run, arm)}
    if kernels:
        (target / "kernels.json").write_text(json.dumps(kernels, indent=1) + "\n")
    subprocess.run([sys.executable, "-m", "perfgate", "report", str(target)], check=True, stdout=subprocess.DEVNULL)
    told = sorted({f"{file.name}: {path}" for file in target.glob("*.*") for path in _paths(file)})
    if told:
        raise SystemExit("paths of this machine would be published: " + "; ".join(told))


def without_long_timelines(text: str) -> str:
    """``result.json`` in which no comparison has a timeline of more than :data:`SHOWN` operations."""
    result = loads(text)
    return dumps(replace(result, comparisons=tuple(_shortened(one) for one in result.comparisons)))


def _shortened(comparison: Comparison) -> Comparison:
    sides = [side for side in (comparison.default, comparison.deterministic) if side is not None]
    if all(len(side.timeline) <= SHOWN for side in sides):
        return comparison
    default, other = (side and replace(side, timeline=()) for side in (comparison.default, comparison.deterministic))
    return replace(comparison, default=default, deterministic=other)


def _kernels(run: Path, arm: str) -> list[Path]:
    return sorted(run.glob(f"captures/*-b00-[0-9]-{arm}/program/kernels.json"))[:1]


def _paths(file: Path) -> list[str]:
    return PATH.findall(file.read_text()) if file.suffix in (".json", ".csv", ".html") else []


def thin(source: Path, target: Path, domain: str, name: str, after: int, until: int) -> None:
    """Writes ``source`` with what the instances ``after``+1 … ``until`` of each range of ``domain`` hold and launched alone.

    ``name``: of this range alone, "" for all.
    """
    shutil.copyfile(source, target)
    with sqlite3.connect(target) as trace:
        trace.execute(KEPT, (domain, name, name, after, until))
        trace.execute("create index temp.kept_start on kept (start)")
        there = {name for (name,) in trace.execute("select name from sqlite_master where type = 'table'")}
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in there:
            trace.execute(LAUNCHED)
            trace.execute("delete from CUPTI_ACTIVITY_KIND_RUNTIME where rowid not in (select row from launched)")
            for table in there.intersection(DEVICE_TABLES):
                trace.execute(f"delete from {table} where correlationId not in (select correlationId from launched)")  # noqa: S608
        trace.execute(OTHER_RANGES)
    sqlite3.connect(target).execute("vacuum")


if __name__ == "__main__":
    main()
