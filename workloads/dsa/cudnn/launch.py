"""Launches the three stock kernels around one of the main kernel's classes, on the caller's memory.

Everything is a function of the tensors' shapes and dtypes, so compiled kernels are kept by those (``store``: on disk too).
Nothing waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import hook, shape, store

DIM_V = 512
COMPILED = store.Kept("hooks", tuple(Path(one) for one in (hook.__file__, shape.__file__, __file__)))


def _stream() -> Any:
    import cuda.bindings.driver as cuda

    return cuda.CUstream(torch.cuda.current_stream().cuda_stream)


def _described(tensor: Any, align: int = 16) -> Any:
    """What the compiler is told of an argument: dtype, alignment and which dimension is contiguous; sizes stay dynamic."""
    from cutlass.cute.runtime import from_dlpack

    if not isinstance(tensor, torch.Tensor):
        return tensor
    return from_dlpack(tensor.detach(), assumed_align=align, enable_tvm_ffi=True).mark_layout_dynamic(
        leading_dim=tensor.ndim - 1
    )


def _compiled(key: tuple[Any, ...], kernel: Callable[[], Any], arguments: tuple[Any, ...], least_aligned: int = -1) -> Any:
    """The kernel compiled under ``key``; ``kernel()`` is compiled for these arguments where neither we nor the disk have it."""
    import cutlass.cute as cute

    if key not in COMPILED:
        described = [_described(one, 4 if index == least_aligned else 16) for index, one in enumerate(arguments)]
        COMPILED[key] = cute.compile(kernel(), *described, options="--enable-tvm-ffi")
    return COMPILED[key]


@cache
def _element(dtype: torch.dtype) -> Any:
    import cutlass

    return {torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}[dtype]


def before(x: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The stock preprocess: dPsum and the log2 LSE, both [1, whole blocks of queries, H] f32."""
    queries, heads, _ = x["q"].shape
    stats = torch.empty((2, 1, shape.round_up(queries, shape.BLOCK), heads), device=x["q"].device)
    d_sink = torch.zeros((heads,), device=x["q"].device)
    arguments = (
        x["out"][None], x["dout"][None], stats[0], x["lse"][None], stats[1], x["sink"], d_sink, None, None, None, _stream()
    )  # fmt: skip
    dtype = x["q"].dtype

    def kernel() -> Any:
        return hook.stock()._FlashAttentionDSABackwardPreprocessSm90(_element(dtype), DIM_V, 90, shape.BLOCK, num_threads=256)

    _compiled(("before", dtype), kernel, arguments, least_aligned=3)(*arguments)
    return stats[0], stats[1]


def scatter(
    form: tuple[Any, ...], kernel_class: Callable[[], Any], x: dict[str, Any], stats: tuple[torch.Tensor, torch.Tensor],
    dq: torch.Tensor, memory: torch.Tensor,
) -> None:  # fmt: skip
    """The main kernel of ``kernel_class()``: writes ``dq`` and adds to ``memory`` [n] f32, of which it is handed all."""
    kernel, arguments = compiled_scatter(form, kernel_class, x, stats, dq, memory)
    kernel(*arguments)


def compiled_scatter(
    form: tuple[Any, ...], kernel_class: Callable[[], Any], x: dict[str, Any], stats: tuple[torch.Tensor, torch.Tensor],
    dq: torch.Tensor, memory: torch.Tensor,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """What :func:`scatter` calls, and with what, not called yet."""
    heads, dim = x["q"].shape[1:]
    dtype, chosen, length = x["q"].dtype, x["topk"].shape[1], x["topk_length"]

    def kernel() -> Any:
        return kernel_class()(
            _element(dtype), dim, DIM_V, heads, tile_m=shape.BLOCK, tile_n=shape.BLOCK, num_threads=2 * shape.THREADS,
            have_topk_length=length is not None, max_topk=chosen,
        )  # fmt: skip

    arguments = (
        x["q"][None], x["kv"][None, :, None], x["dout"][None], stats[1], stats[0], dq[None], memory[None, None],
        x["topk"][None], None if length is None else length[None], float(x["scale"]), _stream(),
    )  # fmt: skip
    return _compiled(("scatter", *form, dtype, heads, dim, chosen, length is not None), kernel, arguments), arguments


def after(sums: torch.Tensor, dkv: torch.Tensor) -> None:
    """The stock postprocess: ``sums`` [rows · dim] f32 with its columns put in order, rounded into ``dkv`` [S_k, dim]."""
    keys, dim = dkv.shape
    chunk = 64 if dim == 576 else 128

    def kernel() -> Any:
        return hook.stock()._FlashAttentionDSABackwardPostprocessSm90(
            _element(dkv.dtype),
            hdim_chunk=chunk,
            tile_n=shape.BLOCK,
            head_dim=dim,
            num_threads=chunk,
            N_hdim_chunks=dim // chunk,
        )

    arguments = (sums[None, None], dkv[None, :, None], keys, _stream())
    _compiled(("after", dkv.dtype, dim), kernel, arguments)(*arguments)
