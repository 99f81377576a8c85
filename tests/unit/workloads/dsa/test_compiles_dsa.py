"""What Triton's compiler makes of the backward's kernels for a Hopper GPU, seen without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PER_THREAD = 64 * 64 // 128  # elements of one tile of contributions


@pytest.fixture(scope="module")
def instructions(tmp_path_factory):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": os.getcwd()}
    script = Path(__file__).with_name("compile_dsa.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def named(counts, *parts):
    return sum(number for name, number in counts.items() if all(part in name for part in parts))


def starting(counts, start, part):
    return sum(number for name, number in counts.items() if name.startswith(start) and part in name)


def test_exact_contributions_are_rounded_by_one_addition_and_one_subtraction_each(instructions):
    racy, exact = instructions["racy"], instructions["exact"]

    for operation in ("add.", "sub."):
        assert PER_THREAD == starting(exact, operation, "f32") - starting(racy, operation, "f32")


def test_contributions_are_added_four_at_a_time(instructions):
    for form in ("racy", "exact"):
        assert PER_THREAD // 4 == named(instructions[form], "red.", "v4.f32")


def test_the_books_are_kept_in_integers(instructions):
    exact = instructions["exact"]

    assert named(exact, "red.", "add.u64") + named(exact, "atom.", "add.u64") > 0
    assert named(exact, "red.", "max.s32") + named(exact, "atom.", "max.s32") > 0
    assert 0 == named(exact, "atom.", "f32")


def test_the_sorted_form_holds_no_atomics(instructions):
    assert 0 == named(instructions["staged"], "red.") + named(instructions["staged"], "atom.")


def test_what_is_surveyed_and_what_is_added_comes_from_the_same_instructions(instructions):
    """One binary for both launches, and in it each of the four products once: 8 instructions a warp."""
    again = instructions["again"]

    assert {"survey": 1} == instructions["unspecialised"]
    assert 4 * (64 // 8 // 4) * (64 // 16) == named(again, "mma.", "m16n8k16")


def test_the_survey_is_kept_in_integers(instructions):
    again = instructions["again"]

    assert 1 == named(again, "red.", "max.s32") + named(again, "atom.", "max.s32")
    assert 1 == named(again, "red.", "add.u64") + named(again, "atom.", "add.u64")
    assert 16 * 64 // 128 == named(again, "red.", "add.f32") + named(again, "atom.", "add.f32")
