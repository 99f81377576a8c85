"""A real nsys on a real program: what the program timed itself must come back from the trace, and none of its secrets."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from perfgate.profilers.nsys_found import find_nsys, probe
from tests.functional.cli import perfgate

pytestmark = pytest.mark.nsys

TOKEN = "ghp_PLANTEDinTheEnvironment42"  # noqa: S105
PROGRAM = """
import json, sys, threading, time
import nvtx

timed = {}

def note(name, outer, inner):
    timed.setdefault(name, []).append([outer[1] - outer[0], inner[1] - inner[0]])

def pushed(name, seconds, domain=None, within=lambda: None):
    before = time.perf_counter_ns()
    nvtx.push_range(name, domain=domain)
    began = time.perf_counter_ns()
    time.sleep(seconds)
    within()
    ends = time.perf_counter_ns()
    nvtx.pop_range(domain=domain)
    note(name, (before, time.perf_counter_ns()), (began, ends))

def ended_elsewhere(name, seconds):
    before = time.perf_counter_ns()
    handle = nvtx.start_range(name)
    began = time.perf_counter_ns()
    stamps = []
    def end():
        time.sleep(seconds)
        stamps.append(time.perf_counter_ns())
        nvtx.end_range(handle)
        stamps.append(time.perf_counter_ns())
    other = threading.Thread(target=end)
    other.start()
    other.join()
    note(name, (before, stamps[1]), (began, stamps[0]))

for turn in range(3):
    pushed("outer", 0.002, within=lambda: pushed("inner, seq = %d" % turn, 0.003, domain="perfgate.user"))
ended_elsewhere("over threads", 0.004)
workers = [threading.Thread(target=pushed, args=("worker", 0.005 * (1 + number))) for number in range(3)]
for one in workers:
    one.start()
for one in workers:
    one.join()
nvtx.push_range("never popped")
print(json.dumps(timed))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """The folder with the report, and what the program timed: (outside, inside) ns per instance of each range."""
    folder = tmp_path_factory.mktemp("captured")
    command = [str(probe(find_nsys()).path), "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", "report"]
    done = subprocess.run(
        [*command, "--force-overwrite=true", sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "HF_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    timed = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return folder, timed


@pytest.fixture(scope="module")
def answer(captured):
    folder, _ = captured
    done = perfgate("ranges", folder / "report.nsys-rep", "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_range_has_the_host_time_that_the_program_measured(captured, answer):
    _, timed = captured
    names = {row["name"].removeprefix("perfgate.user:"): row for row in answer["ranges"]}

    assert set(timed) == set(names)
    for name, instances in timed.items():
        row = names[name]
        outside, inside = (sorted(side) for side in zip(*instances, strict=True))
        assert len(instances) == row["instances"]
        slack = 20_000 + 0.001 * outside[-1]  # ns: nsys reads another clock than the program
        for figure, place in (("min", 0), ("max", -1)):
            assert inside[place] - slack <= row["host_ns"][figure] <= outside[place] + slack
        assert sum(inside) - len(instances) * slack <= row["host_ns"]["total"] <= sum(outside) + len(instances) * slack


def test_no_gpu_time_is_made_up(answer):
    assert {None} == {row["busy_ns"] for row in answer["ranges"]}
    assert any("no GPU activity" in note for note in answer["trace"]["notes"])


def test_the_open_range_is_left_out_and_counted(answer):
    assert "never popped" not in {row["name"] for row in answer["ranges"]}
    assert [1] == [one["count"] for one in answer["excluded"] if "never ended" in one["reason"]]


def test_pytorch_counters_are_grouped(captured):
    folder, _ = captured
    done = perfgate("ranges", folder / "report.nsys-rep", "--strip-ids", "--match", "inner", "--format", "json")

    assert [("perfgate.user:inner", 3)] == [(row["name"], row["instances"]) for row in json.loads(done.stdout)["ranges"]]


def test_a_stale_export_beside_the_report_is_not_read(captured, tmp_path):
    folder, _ = captured
    shutil.copy(folder / "report.nsys-rep", tmp_path)
    with closing(sqlite3.connect(tmp_path / "report.sqlite")) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER)")
    done = perfgate("ranges", tmp_path, "--format", "json")

    assert done.returncode == 0
    assert "over threads" in {row["name"] for row in json.loads(done.stdout)["ranges"]}


def test_the_environment_stays_behind(captured, tmp_path):
    folder, _ = captured
    whole = perfgate("ranges", folder / "report.nsys-rep", "--format", "json")
    done = perfgate("scrub", folder / "report.nsys-rep", "--output", tmp_path / "slim.sqlite")

    assert done.returncode == 0
    assert TOKEN not in whole.stdout + whole.stderr
    assert TOKEN.encode() in (folder / "report.nsys-rep").read_bytes() or TOKEN in exported(folder, tmp_path)
    assert TOKEN.encode() not in (tmp_path / "slim.sqlite").read_bytes()
    assert str(folder).encode() not in (tmp_path / "slim.sqlite").read_bytes()
    rows = [
        json.loads(perfgate("ranges", path, "--format", "json").stdout)["ranges"]
        for path in (tmp_path / "slim.sqlite", folder / "report.nsys-rep")
    ]
    assert rows[0] == rows[1]


def exported(folder, tmp_path):
    """The text of the whole export: the planted token must have been there to be left behind."""
    from perfgate.profilers.nsys import export

    export(probe(find_nsys()), folder / "report.nsys-rep", tmp_path / "whole.sqlite")
    return (tmp_path / "whole.sqlite").read_bytes().decode("latin-1")


def test_a_report_that_is_none(tmp_path):
    (tmp_path / "x.nsys-rep").write_bytes(b"not a report")
    done = perfgate("ranges", tmp_path / "x.nsys-rep")

    assert done.returncode == 2
    assert "nsys export failed" in done.stderr
