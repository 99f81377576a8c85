"""loss/cross_entropy: unfused, over f32 logits, as F.cross_entropy computes it."""

from __future__ import annotations

from typing import Any

from perfgate import Case, Op

op = Op(
    "loss/cross_entropy",
    kind="torch-op",
    phases=("fwd", "bwd"),
    gradients=("logits",),
    max_error=5e-2,
    bytes_moved=lambda case, phase: case.tokens * case.vocab * 2 * {"fwd": 1, "bwd": 2}[phase],
    tests=("tests/unit/workloads/test_stock_ops.py",),
)
op.cases(
    smoke=dict(tokens=32, vocab=512),
    small=dict(tokens=2048, vocab=32000),
    typical=dict(tokens=8192, vocab=128256),
    large=dict(tokens=16384, vocab=151936),
    edge_ignored=dict(tokens=8192, vocab=32000, ignored=0.5),
)


@op.inputs
def inputs(case: Case, device: str, generator: Any) -> dict[str, Any]:
    """Logits [tokens, vocab] bf16, target [tokens] int64, −100 where ignored."""
    import torch

    target = torch.randint(case.vocab, (case.tokens,), device=device, generator=generator)
    ignored = torch.rand(case.tokens, device=device, generator=generator) < case.get("ignored", 0.0)
    return {
        "logits": torch.randn(case.tokens, case.vocab, device=device, generator=generator).to(torch.bfloat16),
        "target": target.masked_fill(ignored, -100),
    }


@op.reference
def reference(x: dict[str, Any]) -> Any:
    """Mean over the targets that count of log Σ exp − logit."""
    logits, counts = x["logits"], x["target"] >= 0
    chosen = logits.gather(1, x["target"].clamp(min=0)[:, None])[:, 0]
    return ((logits.logsumexp(dim=1) - chosen) * counts).sum() / counts.sum()


@op.default("torch.cross_entropy")
def cross_entropy(x: dict[str, Any]) -> Any:
    import torch.nn.functional as F  # noqa: N812

    return F.cross_entropy(x["logits"].float(), x["target"])


@op.stock_deterministic("torch.cross_entropy.deterministic")
def cross_entropy_deterministic(x: dict[str, Any]) -> Any:
    return cross_entropy(x)
