import json
import sys
from datetime import date

import pytest

from perfgate import recipes
from perfgate.budgets import choose
from perfgate.determinism.metrics import read_run
from perfgate.discover import bundled_folder
from perfgate.errors import UsageError, WorkloadError
from perfgate.lint import lint


@pytest.mark.parametrize(
    ("arm", "environ", "expected"),
    [
        (None, {}, ("default", "default")),
        ("champion", {}, ("champion", "deterministic")),
        (None, {"PERFGATE_ARM": "champion", "PERFGATE_MODE": "deterministic"}, ("champion", "deterministic")),
        (None, {"PERFGATE_MODE": "deterministic"}, ("deterministic", "deterministic")),
        ("deterministic", {"PERFGATE_ARM": "with-fill", "PERFGATE_MODE": "deterministic"}, ("deterministic", "deterministic")),
    ],
)
def test_the_arm_is_the_one_asked_for_else_the_environments(arm, environ, expected):
    assert expected == recipes.arm_and_mode(arm, environ)


@pytest.mark.parametrize(("arm", "mode"), [("default", "deterministic"), ("champion", "default")])
def test_an_arm_against_the_mode_is_refused(arm, mode):
    with pytest.raises(UsageError, match=f"PERFGATE_MODE={mode}"):
        recipes.arm_and_mode(arm, {"PERFGATE_MODE": mode})


@pytest.mark.parametrize("text", ["attention", "=torch.sdpa", "attention="])
def test_a_kernel_without_op_or_name_is_refused(text):
    with pytest.raises(UsageError, match="OP=KERNEL"):
        recipes.chosen_kernels([text])


def test_the_run_of_a_recipe_has_three_arms_and_its_budgets():
    options = recipes.run_options("moe", "h200", ("--seed", "3"))

    command = [sys.executable, "-m", "perfgate", "recipe", "moe", "--size", "h200", "--steps", "41", "--seed", "3"]
    assert command == options["command"]
    champion = "champion=--arm champion --kernel attention=two_pass"
    arms = ["default=--arm default", "deterministic=--arm deterministic", champion]
    assert (arms, "champion") == (options["mode_args"], options["judge"])
    assert ("step", "11:41") == (options["step_range"], options["steps"])
    assert options["thresholds"].endswith("thresholds/recipes/moe.toml")


@pytest.mark.parametrize(("size", "gpu"), [("tiny", True), ("h200", False)])
def test_only_whole_steps_on_a_gpu_have_the_recipes_budgets(size, gpu):
    assert "thresholds" not in recipes.run_options("moe", size, gpu=gpu)


@pytest.mark.parametrize(("recipe", "size", "text"), [("gpt", "tiny", "no recipe 'gpt'"), ("moe", "huge", "no size 'huge'")])
def test_names_that_are_none_are_refused(recipe, size, text):
    with pytest.raises(UsageError, match=text):
        recipes.run_options(recipe, size)


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # so that what a run on the CPU sets is put back


def trained(**given):
    options = {"arm": "default", "mode": "default", "steps": 2, "device": "cpu", "seed": 0, "kernels": {}, "memory_fill": False}
    paths = {"metrics": None, "run_dir": None, "told": lambda line: None}
    return recipes.train("dense", "tiny", **{**options, **paths, **given})


def test_what_was_used_and_what_came_out_is_written(tmp_path):
    lines = []

    rows = trained(metrics=tmp_path / "metrics", run_dir=tmp_path, told=lines.append)

    values = [scalar.value for stream in read_run(tmp_path / "metrics").streams.values() for scalar in stream.scalars.values()]
    used = json.loads((tmp_path / "kernels.json").read_text())
    assert sorted(value for row in rows for value in row.values()) == sorted(values)
    assert [f"kernel  {op:<18} {kernel}" for op, kernel in used.items()] == lines[1:]
    assert "recipe dense, size tiny, arm default (default mode), 2 steps on cpu, seed 0" == lines[0]


def test_a_folder_with_another_runs_scalars_is_refused(tmp_path):
    (tmp_path / "scalars.jsonl").write_text("{}\n")

    with pytest.raises(UsageError, match="would mix"):
        trained(metrics=tmp_path)


def test_a_device_that_is_none_is_refused():
    with pytest.raises(UsageError, match="no device 'gpu'"):
        trained(device="gpu")


@pytest.mark.parametrize("wrong", [{"arm": "fast"}, {"kernels": {"combine": "triton.gather"}}])
def test_an_arm_or_kernel_that_is_none_is_a_bad_request(wrong):
    with pytest.raises(UsageError, match=r"no arm 'fast': arms are|no op 'combine': it has"):
        trained(**wrong)


def test_a_kernel_that_can_not_run_here_is_told_as_one():
    with pytest.raises(WorkloadError, match="attention by triton_exact: head dimension 16"):
        trained(arm="champion", mode="deterministic", kernels={"attention": "triton_exact"})


@pytest.mark.parametrize("recipe", ["dense", "moe", "hybrid"])
def test_each_recipe_has_budgets_that_hold_no_error(recipe):
    file = bundled_folder("thresholds") / "recipes" / f"{recipe}.toml"
    found = lint([file], [], date(2026, 11, 29))
    step = choose(file.parent, "NVIDIA H200", date(2026, 11, 29), file).find("step::")

    assert {"UNMATCHED_BUDGET"} >= {one.code for one in found.errors}
    assert ("step_wall", 0.10, 0.05) == (step.metric, step.overhead, step.goal)
