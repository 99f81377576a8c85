"""The stock torch ops of the determinism table, each as a function, its inputs and whether its backward counts.

Shapes are those of a large training step; ``tiny`` ones only prove that the code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Subject:
    """``call(*inputs)`` is replayed; tensors that are large and only read are closed over, so that they aren't copied."""

    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    shape: str
    backward: bool = False


@dataclass(frozen=True)
class StockOp:
    """A row of the table; ``make`` builds its tensors on a device."""

    name: str
    make: Callable[[str, bool], Subject]


def normal(device: str, *shape: int, dtype: torch.dtype = F32, grad: bool = False, salt: int = 0) -> torch.Tensor:
    """Seeded normal values: the same on every run of one device."""
    generator = torch.Generator(device).manual_seed(sum(shape) + salt)
    return torch.randn(*shape, generator=generator, device=device, dtype=dtype).requires_grad_(grad)


def integers(device: str, below: int, *shape: int) -> torch.Tensor:
    """Seeded integers in [0, below)."""
    generator = torch.Generator(device).manual_seed(sum(shape) + below)
    return torch.randint(below, shape, generator=generator, device=device)


def combine_scatter(device: str, tiny: bool) -> Subject:
    tokens, k, hidden = (64, 8, 32) if tiny else (16384, 8, 2048)
    rows, token = _routed(device, tokens, k, hidden)
    index = token[:, None].expand(-1, hidden)
    return Subject(
        lambda: rows.new_zeros(tokens, hidden).scatter_add_(0, index, rows), (), f"{tokens}×{k} rows × {hidden} bf16"
    )


def combine_index_add(device: str, tiny: bool) -> Subject:
    tokens, k, hidden = (64, 8, 32) if tiny else (16384, 8, 2048)
    rows, token = _routed(device, tokens, k, hidden)
    return Subject(lambda: rows.new_zeros(tokens, hidden).index_add_(0, token, rows), (), f"{tokens}×{k} rows × {hidden} bf16")


def _routed(device: str, tokens: int, k: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    order = normal(device, tokens * k).argsort()  # rows lie by expert, so a token's rows are far apart
    return normal(device, tokens * k, hidden, dtype=BF16), torch.arange(tokens, device=device).repeat_interleave(k)[order]


def index_add(device: str, tiny: bool) -> Subject:
    n, hidden, out = (512, 16, 32) if tiny else (65536, 1024, 4096)
    rows, ids = normal(device, n, hidden), integers(device, out, n)
    return Subject(lambda: rows.new_zeros(out, hidden).index_add_(0, ids, rows), (), f"{n}×{hidden} f32 → {out}")


def index_add_small(n: int, hidden: int) -> Callable[[str, bool], Subject]:
    """All rows into one: so little work that an idle card runs it in the same order every time, a busy one may not."""

    def make(device: str, tiny: bool) -> Subject:
        rows, ids = normal(device, n, hidden), torch.zeros(n, dtype=torch.int64, device=device)
        return Subject(lambda: rows.new_zeros(1, hidden).index_add_(0, ids, rows), (), f"{n}×{hidden} f32 → 1")

    return make


def index_put(device: str, tiny: bool) -> Subject:
    n, hidden, out = (512, 16, 32) if tiny else (65536, 1024, 4096)
    rows, ids = normal(device, n, hidden), integers(device, out, n)

    def call() -> torch.Tensor:
        return rows.new_zeros(out, hidden).index_put_((ids,), rows, accumulate=True)

    return Subject(call, (), f"{n}×{hidden} f32 → {out}")


def routing_map_scatter(device: str, tiny: bool) -> Subject:
    tokens, experts, k = (64, 16, 2) if tiny else (8192, 256, 8)
    chosen = normal(device, tokens, experts).topk(k).indices
    return Subject(
        lambda: torch.zeros(tokens, experts, dtype=torch.bool, device=device).scatter(1, chosen, True),
        (),
        f"{tokens}×{experts} top-{k}",
    )


def routing_map_rows(device: str, tiny: bool) -> Subject:
    tokens, experts, k = (64, 16, 2) if tiny else (8192, 256, 8)
    chosen = normal(device, tokens, experts).topk(k).indices
    rows = torch.arange(tokens, device=device)[:, None].expand(-1, k)
    true = torch.ones((), dtype=torch.bool, device=device)

    def call() -> torch.Tensor:
        return torch.zeros(tokens, experts, dtype=torch.bool, device=device).index_put_((rows, chosen), true)

    return Subject(call, (), f"{tokens}×{experts} top-{k}")


def router_topk(device: str, tiny: bool) -> Subject:
    tokens, experts, k = (64, 16, 2) if tiny else (8192, 256, 8)
    scores = normal(device, tokens, experts)
    return Subject(lambda: tuple(scores.topk(k)), (), f"{tokens}×{experts} k={k}")


def router_stable_sort(device: str, tiny: bool) -> Subject:
    tokens, experts, k = (64, 16, 2) if tiny else (8192, 256, 8)
    scores = normal(device, tokens, experts)

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = scores.sort(dim=1, descending=True, stable=True)
        return values[:, :k], indices[:, :k]

    return Subject(call, (), f"{tokens}×{experts} k={k}")


def embedding(device: str, tiny: bool) -> Subject:
    vocabulary, width, n, used = (64, 16, 512, 8) if tiny else (8192, 1024, 32768, 64)
    ids, weight = integers(device, used, n), normal(device, vocabulary, width, grad=True)
    return Subject(lambda w: F.embedding(ids, w), (weight,), f"V{vocabulary} D{width} n{n} ({used} ids)", backward=True)


def embedding_by_indexing(device: str, tiny: bool) -> Subject:
    vocabulary, width, n, used = (64, 16, 512, 8) if tiny else (8192, 1024, 32768, 64)
    ids, weight = integers(device, used, n), normal(device, vocabulary, width, grad=True)
    return Subject(lambda w: w[ids], (weight,), f"V{vocabulary} D{width} n{n} ({used} ids)", backward=True)


def embedding_large(device: str, tiny: bool) -> Subject:
    vocabulary, width, n = (128, 16, 256) if tiny else (128256, 4096, 16384)
    ids, weight = integers(device, vocabulary, n), normal(device, vocabulary, width, dtype=BF16, grad=True)
    return Subject(lambda w: F.embedding(ids, w), (weight,), f"V{vocabulary} D{width} n{n}", backward=True)


def attention(backend: SDPBackend) -> Callable[[str, bool], Subject]:
    """Forward and backward of causal attention through one backend."""

    def make(device: str, tiny: bool) -> Subject:
        batch, heads, length, width = (1, 2, 64, 32) if tiny else (2, 16, 4096, 128)
        q, k, v = (normal(device, batch, heads, length, width, dtype=BF16, grad=True, salt=salt) for salt in range(3))

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        return Subject(call, (q, k, v), f"B{batch} H{heads} S{length} D{width} causal bf16", backward=True)

    return make


def cross_entropy(device: str, tiny: bool) -> Subject:
    tokens, vocabulary = (64, 128) if tiny else (8192, 128256)
    logits, target = normal(device, tokens, vocabulary, grad=True), integers(device, vocabulary, tokens)
    return Subject(lambda x: F.cross_entropy(x, target), (logits,), f"{tokens}×{vocabulary} f32", backward=True)


def cumsum(device: str, tiny: bool) -> Subject:
    n = 4096 if tiny else 64 << 20
    values = normal(device, n)
    return Subject(lambda: values.cumsum(0), (), f"{n} f32")


def layer_norm(device: str, tiny: bool) -> Subject:
    rows, width = (64, 32) if tiny else (16384, 2048)
    x, weight, bias = normal(device, rows, width, grad=True), normal(device, width, grad=True), normal(device, width, grad=True)
    return Subject(lambda x, w, b: F.layer_norm(x, (width,), w, b), (x, weight, bias), f"{rows}×{width} f32", backward=True)


def rms_norm(device: str, tiny: bool) -> Subject:
    rows, width = (64, 32) if tiny else (16384, 2048)
    x, weight = normal(device, rows, width, grad=True), normal(device, width, grad=True)
    return Subject(lambda x, w: F.rms_norm(x, (width,), w), (x, weight), f"{rows}×{width} f32", backward=True)


def conv1d_depthwise(device: str, tiny: bool) -> Subject:
    batch, channels, length, width = (1, 8, 64, 4) if tiny else (2, 4096, 4096, 4)
    x = normal(device, batch, channels, length, dtype=BF16, grad=True)
    weight = normal(device, channels, 1, width, dtype=BF16, grad=True)
    return Subject(
        lambda x, w: F.conv1d(x, w, padding=width - 1, groups=channels),
        (x, weight),
        f"{batch}×{channels}×{length} w{width} bf16",
        backward=True,
    )


def sparse_attention_dkv(device: str, tiny: bool) -> Subject:
    n, width, out = (1024, 16, 64) if tiny else (4 << 20, 512, 16384)
    rows, ids = normal(device, n, width, dtype=BF16), integers(device, out, n)

    def call() -> torch.Tensor:
        return torch.zeros(out, width, device=device).index_add_(0, ids, rows.float())

    return Subject(call, (), f"{n} rows × {width} bf16 → {out} f32")


def grouped_wgrad(device: str, tiny: bool) -> Subject:
    groups, tokens, m, n = (2, 16, 8, 8) if tiny else (8, 2048, 2048, 8192)
    x, dy = normal(device, groups, tokens, m, dtype=BF16), normal(device, groups, tokens, n, dtype=BF16, salt=1)
    return Subject(lambda: torch.bmm(x.transpose(1, 2), dy), (), f"{groups} groups, {tokens}×{m}×{n} bf16")


def stock_ops() -> Iterator[StockOp]:
    """Every row, in the table's order."""
    yield StockOp("MoE combine, scatter_add_", combine_scatter)
    yield StockOp("MoE combine, index_add_", combine_index_add)
    yield StockOp("index_add_", index_add)
    yield StockOp("index_add_, few blocks", index_add_small(20, 32))
    yield StockOp("index_add_, some blocks", index_add_small(32, 256))
    yield StockOp("index_add_, many blocks", index_add_small(256, 1024))
    yield StockOp("index_put_(accumulate=True)", index_put)
    yield StockOp("routing map, scatter", routing_map_scatter)
    yield StockOp("routing map, index_put_ by rows", routing_map_rows)
    yield StockOp("router, topk", router_topk)
    yield StockOp("router, stable sort", router_stable_sort)
    yield StockOp("F.embedding fwd+bwd, few ids", embedding)
    yield StockOp("weight[ids] fwd+bwd, few ids", embedding_by_indexing)
    yield StockOp("F.embedding fwd+bwd, large vocabulary", embedding_large)
    yield StockOp("attention fwd+bwd, cuDNN", attention(SDPBackend.CUDNN_ATTENTION))
    yield StockOp("attention fwd+bwd, flash", attention(SDPBackend.FLASH_ATTENTION))
    yield StockOp("attention fwd+bwd, memory-efficient", attention(SDPBackend.EFFICIENT_ATTENTION))
    yield StockOp("cross entropy fwd+bwd", cross_entropy)
    yield StockOp("cumsum", cumsum)
    yield StockOp("layer_norm fwd+bwd", layer_norm)
    yield StockOp("rms_norm fwd+bwd", rms_norm)
    yield StockOp("depthwise conv1d fwd+bwd", conv1d_depthwise)
    yield StockOp("DSA dKV stage, index_add_", sparse_attention_dkv)
    yield StockOp("grouped weight gradient, bmm", grouped_wgrad)
