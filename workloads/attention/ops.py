"""attention/sdpa: causal attention as F.scaled_dot_product_attention picks it, in both modes."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op


def _bytes(case: Case, phase: str) -> int:
    """bf16 q, out (and their gradients) per head, k, v (and theirs) per kv head, once."""
    per_head = case.batch * case.seq * case.dim * 2
    once = per_head * (2 * case.heads + 2 * case.get("kv_heads", case.heads))
    return int(once if phase == "fwd" else 2 * once)


def _flops(case: Case, phase: str) -> int:
    """Two products forward, five backward, half of each for the causal mask."""
    product = 2 * case.batch * case.heads * case.seq * case.seq * case.dim // 2
    return int(product * {"fwd": 2, "bwd": 5}[phase])


op = Op(
    "attention/sdpa",
    kind="external-lib",
    racy="the backward that SDPA picks (cuDNN) adds dQ with atomics",
    phases=("fwd", "bwd"),
    gradients=("q", "k", "v"),
    max_error=5e-2,
    bytes_moved=_bytes,
    flops=_flops,
    tests=("tests/unit/workloads/test_stock_ops.py",),
)
op.cases(
    smoke=dict(batch=1, heads=2, seq=64, dim=32),
    small=dict(batch=2, heads=16, seq=1024, dim=64),
    typical=dict(batch=2, heads=16, seq=4096, dim=128),
    large=dict(batch=1, heads=16, seq=16384, dim=128),
    edge_gqa=dict(batch=2, heads=16, seq=4096, dim=128, kv_heads=4),
    edge_short=dict(batch=8, heads=16, seq=512, dim=128),
)
op.suites(pr=("typical",))


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Inputs q [B, H, S, D], k and v [B, Hkv, S, D], bf16."""
    import torch

    def made(heads: int) -> Any:
        shape = (case.batch, heads, case.seq, case.dim)
        return torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)

    kv_heads = case.get("kv_heads", case.heads)
    return {"q": made(case.heads), "k": made(kv_heads), "v": made(kv_heads)}


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Softmax of the whole masked score matrix."""
    import torch

    q, group = x["q"], x["q"].shape[1] // x["k"].shape[1]
    k, v = (x[name].repeat_interleave(group, dim=1) for name in ("k", "v"))
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(future, float("-inf"))
    return scores.softmax(dim=-1) @ v


@op.default("torch.sdpa")
def sdpa(x: dict[str, Any]) -> Any:
    import torch.nn.functional as F  # noqa: N812

    grouped = x["q"].shape[1] != x["k"].shape[1]
    return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], is_causal=True, enable_gqa=grouped)


@op.stock_deterministic("torch.sdpa.deterministic")
def sdpa_deterministic(x: dict[str, Any]) -> Any:
    """The same call: in deterministic mode SDPA leaves cuDNN out and picks flash attention."""
    return sdpa(x)


@op.contender("torch.flash")
def flash(x: dict[str, Any]) -> Any:
    """Flash attention as torch ships it, dQ with atomics."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(x)
