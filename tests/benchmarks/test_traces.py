"""How fast and in how much memory traces of 0.1, 1 and 10 million kernels are read, attributed and summed up.

    python -m pytest -m benchmark tests/benchmarks/test_traces.py -s

What counts is the whole command as a user meets it, `perfgate ranges TRACE --format json`: the least wall time and the least
processor time (user and system, of all threads) of several runs, and the most memory, for each `--attribution`. Beside it stand
the stages in one process, warm and alone, and what Python takes to start and to import numpy, below which no command can come.
Everything printed was measured on this machine, now; where other work runs on it, only processor time can be compared.

    PERFGATE_BENCHMARK_KERNELS=100000,1000000  the sizes
    PERFGATE_BENCHMARK_RUNS=5                  runs of each command; of a trace of more than 1 million kernels, half as many
    PERFGATE_BENCHMARK_REPORT=nvtx_gpu_proj_sum  also time `nsys stats` with this report on the same file, once. It needs nsys
                                               2023 or newer. Before, the report is called nvtxgpuproj, and takes more than
                                               ten minutes for 100,000 kernels
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.generate_trace import write
from tests.functional.cli import ROOT

pytestmark = pytest.mark.benchmark

SIZES = [int(size) for size in os.environ.get("PERFGATE_BENCHMARK_KERNELS", "100000,1000000,10000000").split(",")]
RUNS = int(os.environ.get("PERFGATE_BENCHMARK_RUNS", "5"))
REPORT = os.environ.get("PERFGATE_BENCHMARK_REPORT", "")
START = "import numpy"
PERFGATE = Path(sys.executable).with_name("perfgate")
MEASURE = """
import json, sys, time
from pathlib import Path
from perfgate import traces
from perfgate.measure import measure
from perfgate.measure.summary import summarize
best = {}
for _ in range(int(sys.argv[2])):
    laps = [time.perf_counter()]
    trace = traces.read(Path(sys.argv[1]), geometry=False)
    laps.append(time.perf_counter())
    measurement = measure(trace)
    laps.append(time.perf_counter())
    summarize(measurement)
    laps.append(time.perf_counter())
    for name, after, before in zip(("read", "measure", "summarize"), laps[1:], laps):
        best[name] = min(after - before, best.get(name, 1e9))
print(json.dumps(best))
"""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kernels", SIZES)
def test_trace(kernels, tmp_path):
    path = tmp_path / "trace.sqlite"
    write(path, kernels)
    runs = RUNS if kernels <= 1_000_000 else max(1, RUNS // 2)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}  # as where installed
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path / "bytecode")
    say(f"{kernels:,} kernels, launches and ranges ({path.stat().st_size / 2**20:,.0f} MiB), {os.cpu_count()} processors")
    say(f"  import numpy and nothing else: {best_of([sys.executable, '-c', START], RUNS, environment)}")
    for attribution in ("auto", "process", "same-thread"):
        command = [PERFGATE, "ranges", path, "--format", "json", "--attribution", attribution]
        say(f"  perfgate ranges --attribution {attribution}: {best_of(command, runs, environment)}")
    command = [sys.executable, "-c", MEASURE, str(path), str(runs)]
    stages = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    say(f"  in one process: {', '.join(f'{name} {seconds:.3f} s' for name, seconds in stages.items())}")
    if REPORT:
        from perfgate.profilers.nsys_found import find_nsys

        command = [find_nsys(), "stats", "--report", REPORT, "--format", "csv", path]
        say(f"  nsys stats --report {REPORT}: {best_of(command, 1, dict(os.environ))}")
    done = subprocess.run([PERFGATE, "ranges", path, "--format", "json"], cwd=ROOT, capture_output=True, text=True, check=True)
    (about,) = json.loads(done.stdout)["trace"]["files"]

    assert kernels == about["ranges"]
    assert kernels == sum(one["instances"] for one in json.loads(done.stdout)["ranges"])


def best_of(command, runs, environment):
    """The least wall and processor time of some runs after one that warms up, and the most memory of any, in words."""
    taken = [figures(command, environment) for _ in range(runs + (runs > 1))][runs > 1 :]
    wall, cpu, memory = (choose(side) for choose, side in zip((min, min, max), zip(*taken, strict=True), strict=True))
    return f"{wall:.3f} s ({cpu:.3f} s of processor time), {memory / 1024:,.0f} MiB, {runs} runs"


def figures(command, environment):
    """Wall seconds, processor seconds and the most memory (KiB) of one run."""
    begin = time.perf_counter()
    child = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    assert 0 == child.returncode
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss


def say(line):
    sys.stdout.write(f"\n{line}")
