"""What Triton's compiler makes of attention's backward for a Hopper GPU, seen without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PRODUCTS = {"exact": 32, "exact 64": 20, "exact f16": 20, "atomic": 20, "keys alone": 16, "queries alone": 12}  # a step's
SUMMED = ["exact", "exact 64", "exact f16", "atomic"]
BF16 = ["exact", "exact 64"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": os.getcwd()}
    script = Path(__file__).with_name("compile_attention.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_all_products_are_wgmma(kernel, found):
    assert PRODUCTS[kernel] == found[kernel]["wgmma.mma_async"]


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_nothing_spills_and_no_wgmma_waits_for_registers(kernel, found):
    assert found[kernel]["spilled"] == 0
    assert found[kernel]["serialised"] == 0


@pytest.mark.parametrize("kernel", ["exact 64", "exact f16", "atomic"])
def test_three_programs_of_64_columns_fit_a_multiprocessor(kernel, found):
    assert found[kernel]["registers"] * 3 * 128 <= 65536


@pytest.mark.parametrize("kernel", SUMMED)
def test_dq_is_added_by_bulk_reductions_and_nothing_else(kernel, found):
    assert found[kernel]["adds"] == found[kernel]["cp.reduce.async.bulk.tensor"] > 0
    assert "red." not in found[kernel]
    assert "atom." not in found[kernel]


@pytest.mark.parametrize("kernel", SUMMED)
def test_exact_dq_takes_no_conversion_to_integers(kernel, found):
    assert not any(one.startswith("cvt.") for one in found[kernel])


@pytest.mark.parametrize("kernel", ["keys alone", "queries alone"])
def test_two_passes_add_nothing_to_memory(kernel, found):
    assert found[kernel]["adds"] == 0
    assert not {"cp.reduce.async.bulk.tensor", "red.", "atom."} & set(found[kernel])


@pytest.mark.parametrize("kernel", SUMMED)
def test_to_be_exact_a_step_fetches_nothing_more_and_waits_for_nothing_it_asked_for(kernel, found):
    """Queries, their gradients, log-sum-exp and Δ, which carries the quantum."""
    assert found[kernel]["copies"] == 4
    assert found[kernel]["copies in the loop's way"] == 0


def test_ds_is_scaled_in_pairs_in_bf16_alone(found):
    elements = {"exact": 128 * 64 // 256, "exact 64": 64 * 64 // 128}  # of a tile, a thread

    assert {kernel: count // 2 for kernel, count in elements.items()} == {one: found[one]["mul.rn.bf16x2"] for one in BF16}
    assert "mul.rn.bf16x2" not in found["exact f16"]
