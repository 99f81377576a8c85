"""Attention with a gradient, by name: each engine is a forward that says what it keeps, and a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class Engine(NamedTuple):
    """A forward, and the backward that takes what it kept.

    ``forward(q, k, v, wanted, **rule)`` returns out and what to keep beside q, k, v and out; ``wanted``: whether there will be
    a backward. ``backward(q, k, v, out, *kept, grad_out, **rule)`` returns dq, dk, dv. ``rule`` is causal, scale and window.
    """

    forward: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def _triton(name: str) -> Engine:
    from .backward import kernels
    from .forward.kernels import Survey, forward

    def ahead(q: Tensor, k: Tensor, v: Tensor, wanted: bool, **rule: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        out, lse, survey = forward(q, k, v, **rule, survey=wanted and name == "exact")
        return out, (lse, *(survey or ()))

    def back(q: Tensor, k: Tensor, v: Tensor, out: Tensor, *rest: Tensor, **rule: Any) -> tuple[Tensor, Tensor, Tensor]:
        lse, *survey, grad_out = rest
        known = Survey(*survey) if survey else None
        return kernels.backward(q, k, v, out, lse, grad_out, **rule, rule=name, survey=known)

    return Engine(ahead, back)


def _flash4(name: str) -> Engine:
    from .fa4 import hooks

    def ahead(q: Tensor, k: Tensor, v: Tensor, wanted: bool, **rule: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        if not (wanted and name == "exact"):
            out, lse = hooks.forward(q, k, v, **rule)
            return out, (lse,)
        out, lse, extents = hooks.surveyed_forward(q, k, v, **rule)
        return out, (lse,) if extents is None else (lse, extents)

    def back(q: Tensor, k: Tensor, v: Tensor, out: Tensor, *rest: Tensor, **rule: Any) -> tuple[Tensor, Tensor, Tensor]:
        lse, *extents, grad_out = rest
        known = extents[0] if extents else None
        dq, dk, dv = hooks.backward(q, k, v, out, lse, grad_out, **rule, rule=name, extents=known)
        return dq, dk, dv

    return Engine(ahead, back)


ENGINES: dict[str, Callable[[], Engine]] = {
    "triton_exact": lambda: _triton("exact"),
    "triton_atomic": lambda: _triton("atomic"),
    "two_pass": lambda: _triton("two_pass"),
    "fa4": lambda: _flash4("atomic"),
    "fa4_ordered": lambda: _flash4("ordered"),
    "fa4_exact": lambda: _flash4("exact"),
}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, name: str, causal: bool, scale: float, window: int | None) -> Tensor:
        ctx.engine, ctx.rule = ENGINES[name](), {"causal": causal, "scale": scale, "window": window}
        out: Tensor
        with torch.cuda.device_of(q):  # not the current one, where q lies on another card
            out, kept = ctx.engine.forward(q, k, v, any(ctx.needs_input_grad[:3]), **ctx.rule)
        ctx.save_for_backward(q, k, v, out, *kept)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        return (*ctx.engine.backward(*ctx.saved_tensors, grad_out, **ctx.rule), None, None, None, None)


def attention(q: Tensor, k: Tensor, v: Tensor, *, engine: str, causal: bool, scale: float, window: int | None = None) -> Tensor:
    """softmax(scale·q·kᵀ)·v by ``engine``, a key of :data:`ENGINES`; unchecked: ask the engine's probe first.

    q [B, Hq, Sq, D], k, v [B, Hkv, Sk, D]. Query i sees keys j ≤ i + Sk − Sq if ``causal``, and of these the last ``window``.
    """
    result: Tensor = _Attention.apply(q, k, v, engine, causal, scale, window)
    return result
