from __future__ import annotations

import pytest

from perfgate.errors import UsageError
from perfgate.traces.names import bucket, display_name, grouping, strip_counters


@pytest.mark.parametrize(
    ("name", "stripped"),
    [
        ("aten::mm, seq = 12", "aten::mm"),
        ("aten::mm, op_id = 322567", "aten::mm"),
        ("aten::mm, seq = -1, op_id = 3", "aten::mm"),
        ("aten::mm, seq = 3, op_id = 3, sizes = [[1, 2]]", "aten::mm, sizes = [[1, 2]]"),
        ("attention, sequence = 3", "attention, sequence = 3"),
        ("layer seq = 3", "layer seq = 3"),
    ],
)
def test_counters(name, stripped):
    assert stripped == strip_counters(name)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("autograd::engine::evaluate_function: AddmmBackward0", "backward"),
        ("FSDP::pre_forward (encoder)", "forward"),
        ("attn_bwd", "backward"),
        ("attn.fwd", "forward"),
        ("linear-wgrad", "backward"),
        ("mm_fwd_bwd", "op"),
        ("forward-backward", "op"),
        ("aten::mm", "op"),
        ("moe/combine:dsv3:bwd:triton", "backward"),
        ("bwdx", "op"),
    ],
)
def test_buckets(name, part):
    assert part == bucket(name)


def test_grouping_by_the_first_group_or_the_whole_match():
    assert grouping(r"layer\.(\d+)", strip=False)("encoder.layer.12.mlp") == "12"
    assert grouping(r"layer\.\d+", strip=False)("encoder.layer.12.mlp") == "layer.12"


def test_what_the_pattern_does_not_find_stays():
    assert grouping("nothing", strip=False)("aten::mm") == "aten::mm"
    assert grouping("(x?)", strip=False)("aten::mm") == "aten::mm"


def test_counters_go_before_the_pattern_looks():
    assert grouping(r"mm.*", strip=True)("aten::mm, seq = 3") == "mm"
    assert grouping(None, strip=False)("aten::mm, seq = 3") == "aten::mm, seq = 3"


def test_a_pattern_that_is_none():
    with pytest.raises(UsageError, match="not a regular expression"):
        grouping("(", strip=False)


def test_display_names():
    assert ("a:b", "b") == (display_name("a", "b"), display_name("", "b"))
