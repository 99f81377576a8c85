"""The kernels that table.py names, as callables: ``KERNELS[op][name]``.

Names of ``workloads/*/ops.py`` are those implementations themselves, so that a recipe runs what the gate measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere in the field

from ..embedding.ops import op as embedding_op
from ..moe.combine.ops import op as combine_op
from ..moe.routing.ops import router_topk, routing_map, tokens_per_expert
from .optimizer import AdamW
from .scan import chunked_scan

Tensor = torch.Tensor


def _declared(op: Any, name: str) -> Callable[[dict[str, Any]], Any]:
    run: Callable[[dict[str, Any]], Any] = next(known.run for known in op.implementations if known.name == name)
    return run


def _all_of(op: Any, adapted: Callable[[Callable[..., Any]], Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return {known.name: adapted(_declared(op, known.name)) for known in op.implementations}


def _lookup(run: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda weight, ids: run({"weight": weight, "ids": ids, "first": None, "padding": -1})


def _choose(run: Callable[..., Any]) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    return lambda scores, topk: run({"scores": scores, "topk": topk})


def _map(run: Callable[..., Any]) -> Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]:
    return lambda probs, ids, experts: run({"probs": probs, "ids": ids, "experts": experts})


def _count(run: Callable[..., Any]) -> Callable[[Tensor, int], Tensor]:
    return lambda ids, experts: run({"ids": ids, "experts": experts})


def _combine(run: Callable[..., Any]) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """(rows [R, H], their probabilities [R], slots [T, K], token of each row [R]) -> [T, H]."""
    return lambda rows, probs, slots, tokens: run({"rows": rows, "probs": probs, "slots": slots, "token_of_row": tokens})


def permute_stock(hidden: Tensor, probs: Tensor, ids: Tensor, _: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rows in expert order [R, H], their probabilities [R], ids in place of slots, token of each row [R])."""
    order = ids.flatten().argsort(stable=True)
    tokens = order // ids.shape[1]
    return hidden.index_select(0, tokens), probs.flatten().index_select(0, order), ids, tokens


def permute_counted(hidden: Tensor, probs: Tensor, ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by the champion, whose second call moves the probabilities as rows of one column."""
    from ..moe.permute.kernels import permute

    rows, tokens, slots = permute(hidden, ids, experts)
    moved, _, _ = permute(probs.reshape(-1, 1), ids.reshape(-1, 1), experts)
    return rows, moved.flatten(), slots, tokens


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """``rows`` [R, K] in groups that end at ``ends`` [E], each times its matrix of ``weights`` [E, K, N]."""
    product: Tensor = torch._grouped_mm(rows, weights, offs=ends)
    return product


def causal_conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [B, L, C] convolved over L with ``weight`` [C, 1, taps], depthwise; position t sees t and what is before it."""
    taps = weight.shape[-1]
    return F.conv1d(x.transpose(1, 2), weight, padding=taps - 1, groups=x.shape[2])[..., : x.shape[1]].transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [B, H, S, D], by the backend that torch picks in the mode in force."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sdpa_exact(implementation: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by the drop-in's ``implementation``, whose gradients have the same bits every time.

    Raises ``NotImplementedError`` with the reason where its probe says that it can't run here or not this shape.
    """
    from ..attention import support
    from ..attention.dropin import sdpa as drop_in
    from ..attention.fa4 import probe

    probes: dict[str, Callable[..., str]] = {
        "two_pass": support.unsupported,
        "triton_exact": support.unsupported,
        "fa4_exact": partial(probe.unsupported, rule="exact"),
    }
    heads, length, dim = q.shape[1:]
    shape = {"dim": dim, "heads": heads, "kv_heads": k.shape[1], "q_len": length, "kv_len": k.shape[2]}
    if reason := probes[implementation](str(q.device), **shape, causal=True, window=None):
        raise NotImplementedError(f"attention by {implementation}: {reason}")
    return drop_in(q, k, v, is_causal=True, implementation=implementation)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, in f32."""
    return F.cross_entropy(logits.float(), targets)


def clip_in_float32(weights: Sequence[Tensor], limit: float) -> Tensor:
    """Scales all gradients so that their norm is at most ``limit``; returns the norm before, f32 whatever their dtype."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norm: Tensor = torch.stack(torch._foreach_norm(gradients, 2.0, dtype=torch.float32)).norm()
    torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0).to(gradients[0].dtype))  # equal dtypes: one launch
    return norm


def kernels() -> dict[str, dict[str, Callable[..., Any]]]:
    """Op -> name -> callable. Kernels in Triton are imported when they are first called."""
    return {
        "embedding": {
            "torch.embedding": lambda weight, ids: F.embedding(ids, weight),
            "triton.sorted_fold": _lookup(_declared(embedding_op, "triton.sorted_fold")),
        },
        "norm": {"torch.rms_norm": lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5)},
        "linear": {"torch.linear": F.linear},
        "attention": {"torch.sdpa": sdpa}
        | {name: partial(sdpa_exact, name) for name in ("two_pass", "triton_exact", "fa4_exact")},
        "mlp": {"torch.silu_mul": lambda both: F.silu(both.chunk(2, dim=-1)[0]) * both.chunk(2, dim=-1)[1]},
        "router_topk": _all_of(router_topk, _choose),
        "routing_map": _all_of(routing_map, _map),
        "tokens_per_expert": _all_of(tokens_per_expert, _count),
        "permute": {"torch.index_select": permute_stock, "triton.counting_sort": permute_counted},
        "experts": {"torch.grouped_mm": grouped_mm},
        "combine": _all_of(combine_op, _combine),
        "conv": {"torch.conv1d": causal_conv1d},
        "scan": {"torch.chunked_scan": chunked_scan},
        "cross_entropy": {"torch.cross_entropy": cross_entropy},
        "grad_norm": {"torch._foreach_norm": clip_in_float32},
        "optimizer": {"torch._fused_adamw_": AdamW},
    }
