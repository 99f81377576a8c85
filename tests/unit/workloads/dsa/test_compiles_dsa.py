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


def test_the_second_run_surveys_in_integers_and_then_adds_floats(instructions):
    survey, again = instructions["survey"], instructions["again"]

    assert 0 == named(survey, "red.", "f32") + named(survey, "atom.", "f32")
    assert named(survey, "max.s32") > 0
    assert named(again, "red.", "f32") + named(again, "atom.", "f32") > 0
