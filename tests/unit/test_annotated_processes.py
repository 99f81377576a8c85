"""Annotated programs in processes of their own: what they import, and what is left of them when they end or are ended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_annotations import written

ROOT = Path(__file__).resolve().parents[2]


def python(code, tmp_path, **environment):
    """Runs ``code`` in a process of its own that records steps."""
    environment = {"PYTHONPATH": str(ROOT), "PERFGATE_STEPS_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_import_needs_neither_torch_nor_nvtx_and_leaves_builtins_alone(tmp_path):
    code = """
import sys
sys.modules["nvtx"] = None
from perfgate import *
assert range(3)[1] == 1
import perfgate
with perfgate.range("x"):
    pass
for _ in perfgate.steps([1]):
    pass
assert not {"torch", "numpy", "pandas"} & set(sys.modules), set(sys.modules)
"""

    assert (0, "", "") == python(code, tmp_path)


def test_a_listening_profiler_without_nvtx_is_told_once(tmp_path):
    code = """
import sys
sys.modules["nvtx"] = None
import perfgate
for _ in perfgate.steps([1, 2]):
    pass
"""
    code, _, err = python(code, tmp_path, NVTX_INJECTION64_PATH="/none")

    assert 0 == code
    assert 1 == err.count("the nvtx package is not installed")


def test_the_end_of_the_process_writes_the_last_line(tmp_path):
    code = """
import perfgate
for _ in range(2):
    with perfgate.range("step"):
        pass
"""

    assert (0, "", "") == python(code, tmp_path)
    assert 2 == len(written(tmp_path)[1])
    assert "end_ns" in written(tmp_path)[2]


def test_an_iterator_of_the_programs_own_ends_its_last_step_with_the_process(tmp_path):
    code = """
import perfgate
batches = iter(perfgate.steps([1, 2, 3]))
next(batches); next(batches)
"""

    assert (0, "", "") == python(code, tmp_path)
    assert [0] == [one["step"] for one in written(tmp_path)[1]]
    assert "end_ns" in written(tmp_path)[2]


def test_a_killed_process_leaves_no_last_line(tmp_path):
    code = """
import os, signal, time, perfgate
from perfgate import step_recorder
step_recorder.FLUSH_SECONDS = 0
for batch in perfgate.steps([1, 2, 3]):
    if batch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    python(code, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]

    assert [0, 1] == [line["step"] for line in lines[1:]]


def test_a_process_killed_in_its_first_step_was_there(tmp_path):
    python("import os, signal, perfgate\nwith perfgate.range('step'):\n    os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]

    assert [0] == [line["rank"] for line in lines]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_process_of_a_launcher_writes_its_own_steps_once(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text("""
import multiprocessing, os, sys
import perfgate

def worker(rank):
    os.environ["RANK"] = str(rank)
    for _ in perfgate.steps(range(rank + 1)):
        pass

if __name__ == "__main__":
    started = multiprocessing.get_context(sys.argv[1])
    with perfgate.range("step"):  # the parent's own, in which it forks
        ranks = [started.Process(target=worker, args=(rank,)) for rank in (1, 2)]
        for one in ranks: one.start()
        for one in ranks: one.join()
    sys.exit(sum(one.exitcode for one in ranks))
""")
    code = f"import sys, runpy; sys.argv = ['program.py', {method!r}]; runpy.run_path({str(program)!r}, run_name='__main__')"
    steps = tmp_path / "steps"

    assert (0, "", "") == python(code, steps) if method == "fork" else run(program, method, steps)
    assert {"rank-0.jsonl": 1, "rank-1.jsonl": 2, "rank-2.jsonl": 3} == {
        path.name: len(written(steps, path.name)[1]) for path in sorted(steps.iterdir())
    }
    assert all("end_ns" in written(steps, path.name)[2] for path in steps.iterdir())


def run(program, method, steps):
    """spawn imports the program again: it must be a file."""
    environment = {"PYTHONPATH": str(ROOT), "PERFGATE_STEPS_DIR": str(steps), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, program, method], capture_output=True, text=True, env=environment, timeout=60)
    return (0, "", "") == (done.returncode, done.stdout, done.stderr)
