"""A recipe as a user runs it: alone, and as a program of ``perfgate run`` with three arms."""

import json

from tests.functional.cli import UNLESS_NOISY, perfgate


def test_three_arms_of_a_recipe_agree_in_every_bit_with_themselves(tmp_path):
    out = tmp_path / "run"
    arguments = ("--mode", "both", "--device", "cpu", "--blocks", "1", "--profiled-blocks", "0", "--steps", "1:5", "--out", out)

    done = perfgate("run", "--recipe", "dense", *arguments, "--", "--steps", "5")

    result = json.loads((out / "result.json").read_text())
    arms = {arm["arm"]: (arm["mode"], arm["metric_values"]) for arm in result["program"]["arms"]}
    files = {arm: out.glob(f"captures/*-{arm}/program/kernels.json") for arm in arms}
    used = {arm: {json.loads(file.read_text())["embedding"] for file in files[arm]} for arm in arms}
    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert {"default": ("default", 15), "deterministic": ("deterministic", 15), "champion": ("deterministic", 15)} == arms
    assert {"champion": {"triton.sorted_fold"}, "deterministic": {"torch.embedding"}, "default": {"torch.embedding"}} == used


def test_a_name_that_is_none_is_told_with_those_there_are():
    for arguments in (("recipe", "gpt"), ("recipe", "moe", "--kernel", "moe"), ("run", "--recipe", "gpt")):
        done = perfgate(*arguments)

        assert (2, "error: ") == (done.returncode, done.stderr[:7]), done.stderr
