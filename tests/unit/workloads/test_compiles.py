"""What Triton's compiler makes of the kernels for a Hopper GPU, seen without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def instructions(tmp_path_factory):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": os.getcwd()}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def named(counts, *parts):
    return sum(number for name, number in counts.items() if all(part in name for part in parts))


@pytest.mark.parametrize("kernel", ["_gather_forward", "_gather_backward", "_fold", "_add_rounded"])
def test_no_multiplication_is_contracted_into_an_addition(kernel, instructions):
    assert named(instructions[kernel], "fma.", "f32") == 0
    assert named(instructions[kernel], "add.", "f32") > 0


def test_rounding_to_a_quantum_is_neither_folded_nor_reordered(instructions):
    adds = named(instructions["_add_rounded"], "add.", "f32") - named(instructions["_add_rounded"], "red.")

    assert adds == named(instructions["_add_rounded"], "sub.", "f32") > 0


@pytest.mark.parametrize(
    ("kernel", "width"), [("_add_atomically", "v4.f32"), ("_scatter_atomic", "v8.bf16"), ("_add_rounded", "v4.f32")]
)
def test_atomics_are_as_wide_as_the_hardware_allows(kernel, width, instructions):
    assert named(instructions[kernel], "red.", width) > 0


@pytest.mark.parametrize("kernel", ["_gather_forward", "_fold"])
def test_rows_are_read_and_written_16_bytes_at_a_time(kernel, instructions):
    assert named(instructions[kernel], "ld.global", "v4.b32") >= 8  # as many rows are under way at once
    assert named(instructions[kernel], "st.global", "v4.b32") > 0


def test_top_k_reduces_by_the_warps_own_instruction(instructions):
    assert named(instructions["_topk"], "redux.") > 0


@pytest.mark.parametrize("kernel", ["_gather_forward", "_gather_backward", "_fold", "_topk"])
def test_champions_hold_no_atomics(kernel, instructions):
    assert named(instructions[kernel], "red.") + named(instructions[kernel], "atom.") == 0


def test_the_sort_takes_only_integer_counts_by_atomics(instructions):
    assert named(instructions["_rank"], "red.") == named(instructions["_rank"], "red.", "add.u32") > 0
    assert named(instructions["_rank"], "atom.") == 0
