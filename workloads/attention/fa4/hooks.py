"""flash-attn-4 as three implementations: ``forward``, and ``backward`` as shipped, ordered, or with exact sums.

``surveyed_forward`` is the same forward that also notes what the exact backward must know of K and V.

Call only where :func:`.probe.unsupported` said "". No autograd, no wait for the host, no state of flash-attn-4 is changed.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from . import probe, shares

Tensors = tuple[Any, ...]
Edges = tuple[int | None, int | None]  # of the window, as flash-attn-4 resolves them

NAMES = ("fa4", "fa4_ordered", "fa4_exact")
SOURCES = ("bound.py", "shares.py", "kernels.py", "sm90.py", "survey.py", "hooks.py")  # of ours, which decide on hooked kernels


def _by_rows(tensor: Any) -> Any:
    """[B, H, S, D] as the [B, S, H, D] that flash-attn-4 takes, copied only if it could not be read as it is."""
    steps_fit = all(step > 0 and step % 8 == 0 for step in tensor.stride()[:3])
    fits = tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0 and steps_fit
    return (tensor if fits else tensor.contiguous()).transpose(1, 2)


def _check_dtype(q: Any) -> None:
    if str(q.dtype) != "torch.bfloat16":
        raise ValueError(f"flash-attn-4's hooks take bfloat16, not {q.dtype}")


def _window(causal: bool, window: int | None) -> dict[str, Any]:
    if window is None:
        return {"causal": causal, "window_size_left": None, "window_size_right": None}
    return {"causal": False, "window_size_left": window - 1, "window_size_right": 0}


def forward(q: Any, k: Any, v: Any, *, causal: bool, scale: float, window: int | None = None) -> tuple[Any, Any]:
    """``(out, lse)`` of attention: out [B, Hq, Sq, D] like q, lse [B, Hq, Sq] f32 (natural log). One split: no race."""
    from flash_attn.cute import interface  # type: ignore[import-not-found,unused-ignore]

    rows = (_by_rows(tensor) for tensor in (q, k, v))
    out, lse, *_ = interface._flash_attn_fwd(*rows, softmax_scale=scale, return_lse=True, **_window(causal, window))
    return out.transpose(1, 2), lse


def surveyed_forward(
    q: Any, k: Any, v: Any, *, causal: bool, scale: float, window: int | None = None
) -> tuple[Any, Any, Any | None]:
    """``(out, lse, extents)``: what :func:`forward` returns, bit for bit, and what :func:`backward` takes for the exact rule.

    ``extents`` [B, Hkv, 2, n] i32 are f32 bits of the largest ‖V_j‖² and |K_jd| of n parts of a kv head's rows; None where
    the warps that could survey fetch Q (:func:`.probe.surveys`). Raises ``ValueError`` for another dtype than bfloat16.
    """
    _check_dtype(q)
    batch, heads, q_rows, dim = q.shape
    kv_heads = k.shape[1]
    if not probe.surveys(dim, heads // kv_heads):
        return *forward(q, k, v, causal=causal, scale=scale, window=window), None
    import torch
    from flash_attn.cute.utils import AuxData  # type: ignore[import-not-found,unused-ignore]

    rows = tuple(_by_rows(tensor.detach()) for tensor in (q, k, v))
    mask = _window(causal, window)
    arguments, edges = _forward_plan(dim, heads // kv_heads, *mask.values())
    out = torch.empty((batch, q_rows, heads, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, q_rows), dtype=torch.float32, device=q.device)
    parts = shares.parts(q_rows, heads // kv_heads, dim)
    extents = torch.empty((batch, kv_heads, 2, parts), dtype=torch.int32, device=q.device)
    auxiliary = [*rows[1:], extents]
    inputs = (*rows, out, lse)
    kernel = _forward_kernel(inputs, auxiliary, scale, arguments, edges)
    kernel(*inputs, scale, *[None] * 5, *edges, None, None, AuxData(auxiliary, None), None, None)
    return out.transpose(1, 2), lse, extents


def backward(
    q: Any, k: Any, v: Any, out: Any, lse: Any, grad_out: Any, *,
    causal: bool, scale: float, window: int | None = None, rule: str = "exact", extents: Any | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """``(dq, dk, dv)`` like q, k, v [B, H, S, D] bf16; ``lse`` must be that of q and k.

    ``rule`` is how sums shared by several tiles are added: "atomic" in arrival order, "ordered" by flash-attn-4's semaphores,
    "exact" in arrival order without rounding. ``extents``, which the exact rule alone reads, are :func:`surveyed_forward`'s of
    these k and v; without them k and v are read once more. Raises ``ValueError`` for another rule or dtype.
    """
    if rule not in probe.RULES:
        raise ValueError(f"rule {rule!r}: one of {', '.join(probe.RULES)}")
    _check_dtype(q)
    from flash_attn.cute import interface

    rows = [_by_rows(tensor) for tensor in (q, k, v, out, grad_out)]
    if rule == "exact":
        gradients = _exact(rows, lse.contiguous(), scale, _window(causal, window), extents)
    else:
        ordered = rule == "ordered"
        gradients = interface._flash_attn_bwd(
            *rows, lse, softmax_scale=scale, deterministic=ordered, **_window(causal, window)
        )  # fmt: skip
    dq, dk, dv = (gradient.transpose(1, 2) for gradient in gradients)
    return dq, dk, dv


@lru_cache(maxsize=256)
def _plan(dim: int, group: int, causal: bool, left: int | None, right: int | None) -> tuple[Any, dict[str, Any], Edges]:
    """flash-attn-4's tile sizes (of causal attention always), the arguments of its kernel, causal/window as it resolves them.

    For full attention at head dimension 128 it would take tiles of 80 rows, whose dQ is transposed: each thread then holds
    elements of 20 rows, too many for a constant each.
    """
    from flash_attn.cute import interface

    from . import kernels

    causal, local, left, right = interface._resolve_causal_local_window(causal, left, right)
    config = interface._tile_size_bwd_sm90(dim, dim, True, local)
    rows = {config.m_block_size // config.AtomLayoutMdQ, config.n_block_size // config.AtomLayoutNdKV}
    if rows != {kernels.BLOCK} or config.dQ_swapAB or config.dKV_swapAB:
        raise ValueError(f"sums are read where warp groups hold {kernels.BLOCK} rows, not as {config} lays them")
    arguments = dict(
        head_dim=dim,
        head_dim_v=dim,
        qhead_per_kvhead=group,
        is_causal=causal,
        is_local=local,
        tile_m=config.m_block_size,
        tile_n=config.n_block_size,
        Q_stage=config.num_stages_Q,
        dO_stage=config.num_stages_dO,
        PdS_stage=config.num_stages_PdS,
        num_threads=(config.num_wg + 1) * 128,
        dQ_single_wg=config.dQ_single_wg,
        **{name: getattr(config, name) for name in ("SdP_swapAB", "dKV_swapAB", "dQ_swapAB")},
        **{name: getattr(config, name) for name in ("AtomLayoutMSdP", "AtomLayoutNdKV", "AtomLayoutMdQ")},
    )
    return config, arguments, (left, right)


@lru_cache(maxsize=256)
def _forward_plan(dim: int, group: int, causal: bool, left: int | None, right: int | None) -> tuple[dict[str, Any], Edges]:
    """The arguments of flash-attn-4's forward kernel as it would choose them, and causal/window as it resolves them."""
    from flash_attn.cute import interface

    causal, local, left, right = interface._resolve_causal_local_window(causal, left, right)
    config = interface._tile_size_fwd_sm90(dim, dim, causal, local)
    if config.m_block_size != shares.TILES[dim]:
        raise ValueError(f"keys are shared out among blocks of {shares.TILES[dim]} rows, not of {config.m_block_size}")
    arguments = dict(
        head_dim=dim,
        head_dim_v=dim,
        qhead_per_kvhead=group,
        is_causal=causal,
        is_local=local,
        pack_gqa=group > 1,
        tile_m=config.m_block_size,
        tile_n=config.n_block_size,
        num_stages=2,
        num_threads=384,
        intra_wg_overlap=config.intra_wg_overlap,
        mma_pv_is_rs=config.mma_pv_is_rs,
    )
    return arguments, (left, right)


def _exact(rows: list[Any], lse: Any, scale: float, mask: dict[str, Any], extents: Any | None) -> tuple[Any, Any, Any]:
    """Prepares δ and sums, runs the hooked kernel, makes gradients of the sums and of what was kept aside."""
    import torch
    from flash_attn.cute.utils import AuxData  # type: ignore[import-not-found,unused-ignore]

    from . import kernels

    q, k, v, out, grad = rows
    batch, q_rows, heads, dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    config, arguments, edges = _plan(dim, group, mask["causal"], mask["window_size_left"], mask["window_size_right"])
    padded = -(-q_rows // config.m_block_size) * config.m_block_size
    by_head = [tensor.transpose(1, 2) for tensor in (q, k, v, out, grad)]
    delta, lse2, dq_sum = kernels.prepare(by_head[1], by_head[2], by_head[3], lse, by_head[4], padded, extents)
    dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
    auxiliary, dk_sum, dv_sum = None, dk, dv
    if group > 1:
        window = None if mask["window_size_left"] is None else mask["window_size_left"] + 1
        tiles, dk_sum, dv_sum = kernels.guess_tiles(by_head[0], by_head[2], by_head[4], mask["causal"], window)
        aside = torch.empty((2, batch, heads, dk_sum.shape[2]), dtype=torch.float32, device=q.device).unbind()
        flags = torch.empty((batch, heads, tiles.shape[2]), dtype=torch.int32, device=q.device)
        auxiliary = [tiles, *aside, flags]
    inputs = (q, k, v, grad, lse2, delta, dq_sum, dk_sum, dv_sum)
    kernel = _kernel(inputs, auxiliary, scale, arguments, edges)
    kernel(*inputs, scale, None, None, None, None, *edges, None, None, None, AuxData(auxiliary, None), None, None)
    q_halves, halves = config.num_wg // config.AtomLayoutMdQ, config.num_wg // config.AtomLayoutNdKV
    if group == 1:
        kernels.convert(dq_sum, dq.transpose(1, 2), scale, q_halves)
    else:
        gradients = (dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2))
        kernels.convert_grouped((dq_sum, dk_sum, dv_sum), gradients, aside, flags, scale, q_halves, halves)
    return dq, dk, dv


def _kernel(inputs: Tensors, auxiliary: list[Any] | None, scale: float, arguments: dict[str, Any], edges: Edges) -> Any:
    """The hooked kernel, compiled once per shape class: a single block of rows has a layout of its own."""
    import torch

    q, k = inputs[:2]
    single = (q.shape[1] <= arguments["tile_m"], k.shape[1] <= arguments["tile_n"])
    card = torch.cuda.get_device_capability(q.device)
    key = (str(q.dtype), card, single, edges[0] is None, *arguments.values())
    compiled = _cache()
    if key not in compiled:
        compiled[key] = _compile(inputs, auxiliary, scale, arguments, edges)
    return compiled[key]


def _forward_kernel(inputs: Tensors, auxiliary: list[Any], scale: float, arguments: dict[str, Any], edges: Edges) -> Any:
    """The hooked forward, compiled once for each kind of shape."""
    import torch

    card = torch.cuda.get_device_capability(inputs[0].device)
    key = ("forward", str(inputs[0].dtype), card, edges[0] is None, *arguments.values())
    compiled = _cache()
    if key not in compiled:
        compiled[key] = _compile_forward(inputs, auxiliary, scale, arguments, edges)
    return compiled[key]


@cache
def _cache() -> Any:
    """Compiled kernels by key: flash-attn-4's own cache, on disk too where ``FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED`` is 1.

    Its folder is named after flash-attn-4's sources and versions, and the name in it after ours: neither ever meets a kernel of
    other sources.
    """
    from flash_attn.cute.cache_utils import get_jit_cache  # type: ignore[import-not-found,unused-ignore]

    ours = hashlib.sha256(b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    return get_jit_cache(f"perfgate_exact_{ours}")


def _compile(inputs: Tensors, auxiliary: list[Any] | None, scale: float, arguments: dict[str, Any], edges: Edges) -> Any:
    import cutlass.cute as cute  # type: ignore[import-not-found,unused-ignore]
    from flash_attn.cute import interface
    from flash_attn.cute.utils import AuxData

    from . import sm90

    tensors = [interface.to_cute_tensor(tensor) for tensor in inputs]
    extra = AuxData(auxiliary and [interface.to_cute_tensor(tensor) for tensor in auxiliary], None)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel = sm90.ExactBackward(interface.torch2cute_dtype_map[inputs[0].dtype], **arguments)
    return cute.compile(
        kernel, *tensors, scale, None, None, None, None, *edges, None, None, None, extra, None, None, stream,
        options="--enable-tvm-ffi",
    )  # fmt: skip


def _compile_forward(inputs: Tensors, auxiliary: list[Any], scale: float, arguments: dict[str, Any], edges: Edges) -> Any:
    import cutlass.cute as cute
    from flash_attn.cute import interface
    from flash_attn.cute.utils import AuxData

    from . import survey

    *rows, lse = inputs
    tensors = [*map(interface.to_cute_tensor, rows), interface.to_cute_tensor(lse, assumed_align=4)]
    extra = AuxData([interface.to_cute_tensor(tensor) for tensor in auxiliary], None)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    kernel = survey.SurveyingForward(interface.torch2cute_dtype_map[inputs[0].dtype], **arguments)
    return cute.compile(
        kernel, *tensors, scale, *[None] * 5, *edges, None, None, extra, None, None, stream, options="--enable-tvm-ffi"
    )
