"""What Triton's compiler makes of attention's forward for a Hopper GPU, seen without one."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": os.getcwd()}
    script = [sys.executable, "-m", "tests.unit.workloads.compile_attention_forward"]
    done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("dim", ["64", "128"])
def test_the_survey_takes_no_shared_memory_from_the_forward(dim, found):
    assert found[dim]["surveyed"]["shared"] <= found[dim]["plain"]["shared"]  # else fewer programs run at a time


@pytest.mark.parametrize("dim", ["64", "128"])
def test_norms_are_products_and_nothing_is_added_in_memory(dim, found):
    kernels = found[dim]

    assert kernels["survey alone"]["products"] > 0
    assert kernels["surveyed"]["products"] > kernels["plain"]["products"]
    assert {0} == {one["atomics"] for one in kernels.values()}
