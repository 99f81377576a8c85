"""What the two rules that run flash-attn-4 as shipped hand to it; the exact rule runs on a card (tests/gpu/test_fa4.py)."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from perfgate import discover

OPTIONS = {"causal": True, "scale": 0.125}


def hooks():
    return discover.module("attention.fa4.hooks")


def tensors(heads=4, kv_heads=2, rows=6, dim=16):
    q, out, grad = (torch.randn(1, heads, rows, dim).bfloat16() for _ in range(3))
    k, v = (torch.randn(1, kv_heads, rows, dim).bfloat16() for _ in range(2))
    return q, k, v, out, torch.randn(1, heads, rows), grad


@pytest.fixture
def calls(monkeypatch):
    """Stands in for flash_attn.cute.interface and keeps what it is called with."""
    kept = []

    def forward(*rows, **options):
        kept.append((rows, options))
        return rows[0] + 1, torch.zeros(1), None, None, None

    def backward(*rows, **options):
        kept.append((rows, options))
        return rows[:3]

    cute = ModuleType("flash_attn.cute")
    cute.interface = SimpleNamespace(_flash_attn_fwd=forward, _flash_attn_bwd=backward)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    return kept


def test_forward_hands_over_rows_and_returns_heads(calls):
    q, k, v, *_ = tensors()
    out, _lse = hooks().forward(q, k, v, **OPTIONS)
    rows, options = calls[0]

    assert torch.equal(q + 1, out)
    assert [(1, 6, 4, 16), (1, 6, 2, 16), (1, 6, 2, 16)] == [tuple(tensor.shape) for tensor in rows]
    assert [tensor.data_ptr() for tensor in (q, k, v)] == [tensor.data_ptr() for tensor in rows]
    assert {
        "softmax_scale": 0.125, "return_lse": True, "causal": True, "window_size_left": None, "window_size_right": None
    } == options  # fmt: skip


@pytest.mark.parametrize(("rule", "deterministic"), [("atomic", False), ("ordered", True)])
def test_the_rules_as_shipped_differ_by_the_flag_alone(calls, rule, deterministic):
    q, k, v, out, lse, grad = tensors()
    gradients = hooks().backward(q, k, v, out, lse, grad, rule=rule, **OPTIONS)

    assert deterministic is calls[0][1]["deterministic"]
    assert lse is calls[0][0][5]
    assert all(torch.equal(*pair) for pair in zip((q, k, v), gradients, strict=True))


def test_a_window_counts_the_query_itself_and_replaces_causal(calls):
    q, k, v, *_ = tensors()
    hooks().forward(q, k, v, window=4, **OPTIONS)
    options = calls[0][1]

    assert (False, 3, 0) == tuple(options[name] for name in ("causal", "window_size_left", "window_size_right"))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: x[:, :1].expand(-1, 4, -1, -1),
        lambda x: torch.nn.functional.pad(x, (0, 3))[..., :16],
    ],
    ids=["columns first", "broadcast", "rows of odd length"],
)
def test_what_could_not_be_read_in_place_is_copied(calls, made):
    q, k, v, *_ = tensors()
    odd = made(q)
    hooks().forward(odd, k, v, **OPTIONS)
    given = calls[0][0][0]

    assert torch.equal(odd.transpose(1, 2), given)
    assert odd.data_ptr() != given.data_ptr()
    assert 1 == given.stride(-1)


def test_another_rule_is_refused():
    q, k, v, out, lse, grad = tensors()

    with pytest.raises(ValueError, match="rule 'sorted': one of atomic, ordered, exact"):
        hooks().backward(q, k, v, out, lse, grad, rule="sorted", **OPTIONS)


def test_another_dtype_is_refused():
    q, k, v, out, lse, grad = (tensor.half() for tensor in tensors())

    with pytest.raises(ValueError, match="take bfloat16, not torch"):
        hooks().backward(q, k, v, out, lse, grad, rule="exact", **OPTIONS)


def test_sums_laid_out_otherwise_than_they_are_read_are_refused(calls):
    interface = sys.modules["flash_attn.cute"].interface
    config = SimpleNamespace(
        m_block_size=80, n_block_size=128, AtomLayoutMdQ=1, AtomLayoutNdKV=2, dQ_swapAB=True, dKV_swapAB=False
    )
    interface._resolve_causal_local_window = lambda causal, left, right: (causal, False, left, right)
    interface._tile_size_bwd_sm90 = lambda *given: config

    with pytest.raises(ValueError, match="sums are read where warp groups hold 64 rows"):
        hooks()._plan(128, 1, True, None, None)


def test_the_compiled_kernels_name_follows_our_sources(monkeypatch, tmp_path):
    """A changed hook never meets a kernel that an older one left on disk."""
    names, own = [], hooks()
    utils = ModuleType("flash_attn.cute.cache_utils")
    utils.get_jit_cache = names.append
    monkeypatch.setitem(sys.modules, "flash_attn.cute.cache_utils", utils)
    for content in ("a", "b", "a"):
        for name in own.SOURCES:
            (tmp_path / name).write_text(content if name == "sm90.py" else "")
        monkeypatch.setattr(own, "__file__", str(tmp_path / "hooks.py"))
        own._cache.__wrapped__()

    assert names[0] == names[2] != names[1]


def test_where_groups_do_not_fill_blocks_the_forward_is_as_shipped_and_surveys_nothing(calls):
    q, k, v, *_ = tensors(heads=6, kv_heads=2, dim=128)
    out, _lse, extents = hooks().surveyed_forward(q, k, v, **OPTIONS)

    assert extents is None
    assert torch.equal(q + 1, out)
    assert 1 == len(calls)


def test_a_surveyed_forward_takes_bfloat16_alone():
    q, k, v, *_ = (tensor.half() for tensor in tensors(dim=128))

    with pytest.raises(ValueError, match="take bfloat16, not torch"):
        hooks().surveyed_forward(q, k, v, **OPTIONS)


def test_blocks_of_other_sizes_than_keys_are_shared_out_among_are_refused(calls):
    interface = sys.modules["flash_attn.cute"].interface
    interface._resolve_causal_local_window = lambda causal, left, right: (causal, False, left, right)
    interface._tile_size_fwd_sm90 = lambda *given: SimpleNamespace(m_block_size=64)

    with pytest.raises(ValueError, match="among blocks of 128 rows, not of 64"):
        hooks()._forward_plan(128, 1, True, None, None)


@pytest.mark.parametrize("window", [None, 4])
def test_a_surveyed_forward_hands_the_kernel_room_for_each_part(calls, monkeypatch, window):
    own, given = hooks(), []
    interface = sys.modules["flash_attn.cute"].interface
    interface._resolve_causal_local_window = lambda causal, left, right: (causal, left is not None, left, right)
    interface._tile_size_fwd_sm90 = lambda *asked: SimpleNamespace(
        m_block_size=128, n_block_size=128, intra_wg_overlap=True, mma_pv_is_rs=True
    )
    utils = ModuleType("flash_attn.cute.utils")
    utils.AuxData = lambda tensors, scalars: (tensors, scalars)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.utils", utils)
    monkeypatch.setattr(own, "_forward_kernel", lambda *asked: lambda *arguments: given.append(arguments))
    q, k, v, *_ = tensors(heads=4, kv_heads=2, rows=300, dim=128)
    out, lse, extents = own.surveyed_forward(q, k, v, window=window, **OPTIONS)
    edges, (tensors_in_place, scalars) = given[0][11:13], given[0][15]

    assert (out.shape, lse.shape) == (q.shape, (1, 4, 300))
    assert (1, 2, 2, own.shares.parts(300, 2, 128)) == extents.shape
    assert [tensor.data_ptr() for tensor in (k, v, extents)] == [tensor.data_ptr() for tensor in tensors_in_place]
    assert scalars is None
    assert ((None, None) if window is None else (3, 0)) == edges


def test_extents_reach_what_prepares_the_exact_backward(monkeypatch):
    own, given = hooks(), []
    cute = ModuleType("flash_attn.cute")
    cute.interface = None
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    monkeypatch.setattr(own, "_exact", lambda rows, lse, scale, mask, extents: given.append(extents) or rows[:3])
    q, k, v, out, lse, grad = tensors()
    own.backward(q, k, v, out, lse, grad, extents="those", **OPTIONS)
    own.backward(q, k, v, out, lse, grad, **OPTIONS)

    assert ["those", None] == given
