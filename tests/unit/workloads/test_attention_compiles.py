"""What Triton's compiler makes of attention's backward for a Hopper GPU, seen without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": os.getcwd()}
    script = Path(__file__).with_name("compile_attention.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", ["exact", "keys alone", "queries alone"])
def test_all_products_are_wgmma(kernel, found):
    assert found[kernel]["wgmma.mma_async"] >= 12


def test_exact_dq_is_added_by_bulk_reductions_and_nothing_else(found):
    assert found["exact"]["adds"] == found["exact"]["cp.reduce.async.bulk.tensor"] > 0
    assert "red." not in found["exact"]
    assert "atom." not in found["exact"]


def test_exact_dq_takes_no_conversion_to_integers(found):
    assert not any(one.startswith("cvt.") for one in found["exact"])


@pytest.mark.parametrize("kernel", ["keys alone", "queries alone"])
def test_two_passes_add_nothing_to_memory(kernel, found):
    assert found[kernel] == {"wgmma.mma_async": found[kernel]["wgmma.mma_async"], "adds": 0, "copies in the loop's way": 0}


def test_what_exact_dq_needs_is_fetched_ahead(found):
    assert found["exact"]["copies in the loop's way"] == 0
