"""How fast and in how much memory traces of 0.1, 1 and 10 million kernels are read, attributed and summed up.

    python -m pytest -m benchmark tests/benchmarks/test_traces.py -s

Each size runs in a process of its own; what is written is what was measured, on this machine, now. Where an nsys is installed
its own projection runs on the same file; `nvtx_gpu_proj_sum` needs nsys 2023 or newer, `nvtxgpuproj` is what 2022.4 calls it.

    PERFGATE_BENCHMARK_KERNELS=100000,1000000  the sizes
    PERFGATE_BENCHMARK_REPORT=nvtxgpuproj      the report of nsys stats; empty leaves nsys out
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.benchmarks.generate_trace import write
from tests.functional.cli import ROOT

pytestmark = pytest.mark.benchmark

SIZES = [int(size) for size in os.environ.get("PERFGATE_BENCHMARK_KERNELS", "100000,1000000,10000000").split(",")]
REPORT = os.environ.get("PERFGATE_BENCHMARK_REPORT", "nvtx_gpu_proj_sum")
MEASURE = """
import json, resource, sys, time
laps = [time.perf_counter()]
from pathlib import Path
from perfgate import traces
from perfgate.measure import measure
from perfgate.measure.summary import summarize
laps.append(time.perf_counter())
trace = traces.read(Path(sys.argv[1]), geometry=False)
laps.append(time.perf_counter())
measurement = measure(trace)
laps.append(time.perf_counter())
rows = summarize(measurement)
laps.append(time.perf_counter())
took = dict(zip(("import", "read", "measure", "summarize"), (after - before for before, after in zip(laps, laps[1:]))))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
ops = int(measurement.instances["ops"].sum())
print(json.dumps({"took": took, "peak_mib": peak, "instances": len(measurement.instances), "ops": ops}))
"""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kernels", SIZES)
def test_trace(kernels, tmp_path):
    path = tmp_path / "trace.sqlite"
    write(path, kernels)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    laps = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found["took"].items())
    size = path.stat().st_size / 2**20
    say(f"{kernels:,} kernels, launches and ranges ({size:,.0f} MiB): {laps}; peak {found['peak_mib']:,.0f} MiB")
    whole = seconds_of([sys.executable, "-m", "perfgate", "ranges", path, "--format", "json"])
    say(f"  perfgate ranges, whole process: {whole:.2f} s")
    if REPORT:
        from perfgate.profilers.nsys_found import find_nsys

        command = [find_nsys(), "stats", "--report", REPORT, "--format", "csv", path]
        say(f"  nsys stats --report {REPORT}, whole process: {seconds_of(command):.2f} s")

    assert kernels == found["instances"]
    assert kernels <= found["ops"]


def seconds_of(command):
    """Wall time of a whole process."""
    begin = time.perf_counter()
    subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def say(line):
    sys.stdout.write(f"\n{line}")
