"""``sdpa``: F.scaled_dot_product_attention's place taken by the fastest deterministic implementation that runs here."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import torch

from ..blocks import checks
from . import support
from .differentiable import attention
from .fa4 import probe

log = logging.getLogger(__name__)
ORDER = ("fa4_exact", "two_pass")  # fastest first
NAMED = ("two_pass", "triton_exact", "fa4_exact")  # what a caller may name
MOST_PROGRAMS = 65535  # CUDA's limit of a grid's second dimension, which counts heads


@lru_cache(maxsize=1024)
def choose(
    device: str, dim: int, heads: int, kv_heads: int, q_len: int, kv_len: int, causal: bool, window: int | None, dtype: str,
    only: str | None = None,
) -> str:  # fmt: skip
    """Which of :data:`ORDER`, or whether ``only``, takes such a call; logged once per shape.

    Raises ``NotImplementedError`` with the reason of each that does not.
    """
    shape: dict[str, Any] = dict(
        dim=dim, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, causal=causal, window=window
    )
    reasons: dict[str, str] = {}
    for name in (only,) if only else ORDER:
        if name == "fa4_exact":
            reason = probe.unsupported(device, **shape, rule="exact")
            reason = reason or ("" if dtype == "bfloat16" else f"takes bfloat16, not {dtype}")
        else:
            reason = support.unsupported(device, **shape)
        if not reason:
            passed_over = f" ({_said(reasons)})" if reasons else ""
            log.info("attention %s on %s runs as %s%s", shape, device, name, passed_over)
            return name
        reasons[name] = reason
    raise NotImplementedError(f"no deterministic attention for {shape} in {dtype} on {device}: {_said(reasons)}")


def _said(reasons: dict[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    enable_gqa: bool = False,
    scale: float | None = None,
    window: int | None = None,
    implementation: str | None = None,
) -> torch.Tensor:
    """Attention like ``F.scaled_dot_product_attention``, whose gradients have the same bits every time; differentiable once.

    q [B, Hq, Sq, D], k, v [B, Hkv, Sk, D], bf16 or f16, D 64 or 128; Hq ≠ Hkv needs ``enable_gqa``. ``scale`` None: D^−½.
    ``window``: with ``is_causal``, how many keys a query sees at most, itself included. The implementation is the first of
    :data:`ORDER` whose probe passes: :func:`choose` says which, and logs it. Different implementations have different bits:
    name one of :data:`NAMED` in ``implementation`` where they must be equal across machines.

    Raises ``NotImplementedError`` where none supports the call: nothing else is tried. Raises ``ValueError`` for shapes that
    don't fit each other, for a ``scale`` that is not above 0, and for ``is_causal`` with Sq ≠ Sk: torch aligns such a mask at
    the top left, flash attention at the bottom right; ``differentiable.attention`` has the second. Raises ``TypeError`` for
    other dtypes.
    """
    checks.require_shape("q", q, (None, None, None, None))
    batch, heads, q_len, dim = q.shape
    checks.require_shape("k", k, (batch, None, None, dim))
    checks.require_shape("v", v, tuple(k.shape))
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        checks.require_dtype(name, tensor, str(q.dtype).removeprefix("torch."))
    checks.require_dtype("q", q, *support.DTYPES)
    checks.require_same_device(q=q, k=k, v=v)
    kv_heads, kv_len = k.shape[1:3]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(f"{heads} query heads over {kv_heads} kv heads need enable_gqa=True")
    if is_causal and q_len != kv_len:
        raise ValueError(f"is_causal with {q_len} queries and {kv_len} keys: which corner the mask starts from is not said")
    if window is not None and not is_causal:
        raise ValueError("window needs is_causal=True")
    if implementation is not None and implementation not in NAMED:
        raise ValueError(f"implementation {implementation!r}: one of {', '.join(NAMED)}, or None")
    if scale is not None and not 0 < scale < float("inf"):
        raise ValueError(f"scale {scale}: a finite number above 0, or None for D^-0.5; a sign belongs into q")
    dtype = str(q.dtype).removeprefix("torch.")
    engine = choose(str(q.device), dim, heads, kv_heads, q_len, kv_len, is_causal, window, dtype, only=implementation)
    together = heads + 2 * kv_heads if engine == "fa4_exact" and heads != kv_heads else heads  # one launch makes all gradients
    if batch * together > MOST_PROGRAMS:
        raise NotImplementedError(
            f"{batch} × {together} heads in one launch of {engine}, which takes {MOST_PROGRAMS}: split the batch"
        )
    return attention(q, k, v, engine=engine, causal=is_causal, scale=dim**-0.5 if scale is None else scale, window=window)
