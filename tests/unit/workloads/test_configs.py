import ast
import json
from pathlib import Path

import pytest
import torch

from perfgate import discover

configs = discover.module("blocks.configs")
WORKLOADS = configs.TABLE.parents[1]


def kernels_asked_for():
    """The first argument of every config_for(...) call in the workloads."""
    found = set()
    for file in WORKLOADS.glob("**/kernels.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "config_for":
                found.add(node.args[0].value)
    return found


@pytest.mark.parametrize("architecture", configs.table())
def test_buckets_rise_end_without_limit_and_name_kernels_that_ask(architecture):
    rows = configs.table()[architecture]

    assert kernels_asked_for() == set(configs.table()["default"])
    assert set(rows) <= kernels_asked_for()
    for buckets in rows.values():
        limits = [limit for limit, _ in buckets]
        assert limits[-1] is None
        assert limits[:-1] == sorted(set(limits[:-1]))
        assert all(options["num_warps"] in (1, 2, 4, 8, 16) for _, options in buckets)


def test_the_first_bucket_that_is_large_enough_applies():
    buckets = configs.table()["sm90"]["moe.combine_forward"]
    limit = buckets[0][0]

    assert configs.config("moe.combine_forward", limit, "sm90") == buckets[0][1]
    assert configs.config("moe.combine_forward", limit + 1, "sm90") == buckets[1][1]


def test_an_architecture_without_a_section_takes_the_default_one():
    assert configs.config("moe.topk", 8, "sm80") == configs.table()["default"]["moe.topk"][0][1]


def test_a_kernel_without_a_row_is_an_error_not_a_guess():
    with pytest.raises(KeyError):
        configs.config("moe.nothing", 8, "sm90")


def test_the_digest_is_of_the_content_not_of_the_layout(tmp_path, monkeypatch):
    before = configs.digest()
    other = tmp_path / "configs.json"
    try:
        for change in (False, True):
            table = json.loads(Path(configs.TABLE).read_text())
            if change:
                table["default"]["moe.topk"][0][1]["num_warps"] += 1
            other.write_text(json.dumps(table, indent=7))
            monkeypatch.setattr(configs, "TABLE", other)
            configs.table.cache_clear()
            configs.digest.cache_clear()
            assert (configs.digest() != before) == change
    finally:
        monkeypatch.undo()
        configs.table.cache_clear()
        configs.digest.cache_clear()
    assert configs.digest() == before


def test_a_cpu_is_the_interpreters_architecture():
    assert configs.architecture_of(torch.device("cpu")) == "interpreter"
