"""What is published of a run: two steps of a program per arm, the kernels of its arms, and no path of the machine."""

import importlib.util
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.render.json import dumps, loads

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("publish", ROOT / "reports" / "publish.py")
publish = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(publish)


@pytest.fixture
def trace(tmp_path):
    """Four steps of 100 ns, each with a range and a launch inside; a launch between the steps."""
    path = tmp_path / "trace.sqlite"
    with sqlite3.connect(path) as made:
        made.execute("create table NVTX_EVENTS (start int, end int, eventType int, text text, textId int, domainId int)")
        made.execute("create table StringIds (id int, value text)")
        made.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, correlationId int)")
        made.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int, correlationId int)")
        made.execute("insert into NVTX_EVENTS values (0, null, 75, 'perfgate.user', null, 1)")
        made.execute("insert into StringIds values (7, 'step')")
        for step in range(4):
            at = 1000 * step
            made.execute("insert into NVTX_EVENTS values (?, ?, 59, null, 7, 1)", (at, at + 100))
            made.execute("insert into NVTX_EVENTS values (?, ?, 59, 'forward', null, 1)", (at + 10, at + 50))
            for number, launched in ((1, at + 20), (2, at + 500)):
                made.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?)", (launched, launched + 5, at + number))
                made.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?)", (launched + 300, at + number))
    made.close()
    return path


def rows(path, query):
    return [row[0] for row in sqlite3.connect(path).execute(query)]


def test_a_programs_trace_keeps_two_steps_and_what_they_launched(trace, tmp_path):
    target = tmp_path / "thin.sqlite"

    publish.thin(trace, target, "perfgate.user", "step", 1, 3)

    assert [1000, 1010, 2000, 2010] == rows(target, "select start from NVTX_EVENTS where eventType = 59 order by start")
    assert [1001, 2001] == rows(target, "select correlationId from CUPTI_ACTIVITY_KIND_RUNTIME order by 1")
    assert [1001, 2001] == rows(target, "select correlationId from CUPTI_ACTIVITY_KIND_KERNEL order by 1")


def test_a_trace_without_cuda_keeps_its_ranges(trace, tmp_path):
    with sqlite3.connect(trace) as made:
        made.execute("drop table CUPTI_ACTIVITY_KIND_RUNTIME")
    target = tmp_path / "thin.sqlite"

    publish.thin(trace, target, "perfgate.user", "step", 0, 1)

    assert [0, 10] == rows(target, "select start from NVTX_EVENTS where eventType = 59 order by start")


def test_interpreters_lose_their_place_and_other_paths_are_found():
    text = json.dumps(
        {"command": "/opt/torch/.venv/bin/python3.12 -m perfgate", "out": "/tmp/run", "url": "https://x.org/tmp/a"}
    )

    assert '{"command": "python -m perfgate", "out": "/tmp/run", "url": "https://x.org/tmp/a"}' == publish.INTERPRETER.sub(
        r"\1", text
    )
    assert ["/tmp/run"] == publish.PATH.findall(publish.INTERPRETER.sub(r"\1", text))


def test_a_programs_long_timelines_stay_out_and_its_samples_stay():
    stored = loads((ROOT / "reports" / "h200" / "recipes" / "dense" / "result.json").read_text())
    step, other = stored.comparisons[:2]
    drawn = {length: tuple(("kernel", at, at + 1) for at in range(length)) for length in (publish.SHOWN, publish.SHOWN + 1)}
    short = replace(step, default=replace(step.default, timeline=drawn[publish.SHOWN]))
    long = replace(other, default=replace(other.default, timeline=drawn[publish.SHOWN + 1]))
    result = replace(stored, comparisons=(short, long))

    published = loads(publish.without_long_timelines(dumps(result)))

    assert result.comparisons[0] == published.comparisons[0]
    assert replace(long, default=other.default) == published.comparisons[1]
