"""The layers, each op of them in a range of its own; which kernel computes an op is the caller's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere in the field
from torch import nn

from .sizes import Size
from .spans import within

Tensor = torch.Tensor
Kernels = Mapping[str, Callable[..., Any]]
BALANCE = 0.01  # weight of the router's load-balancing loss


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + feed forward(norm(x)); returns x and the router's balance loss (0 without a router)."""

    def __init__(self, size: Size, mixer: str, kernels: Kernels) -> None:
        super().__init__()
        self.mixer: nn.Module = MIXERS[mixer](size, kernels)
        self.feed_forward: nn.Module = FEED_FORWARDS[size.feed_forward](size, kernels)
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(size.hidden)) for _ in range(2))
        self.normed = kernels["norm"]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.mixer(within("norm", lambda x: self.normed(x, self.norms[0]), x))
        added, balance = self.feed_forward(within("norm", lambda x: self.normed(x, self.norms[1]), x))
        return x + added, balance


class Attention(nn.Module):
    """Causal, every head its own keys."""

    def __init__(self, size: Size, kernels: Kernels) -> None:
        super().__init__()
        self.heads, self.kernels = size.heads, kernels
        self.qkv = _weight(3 * size.hidden, size.hidden)
        self.out = _weight(size.hidden, size.hidden, size=size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        linear = self.kernels["linear"]
        qkv = within("attention.qkv", lambda x: linear(x, self.qkv), x)
        mixed = within("attention", lambda qkv: self._attend(qkv, batch, length), qkv)
        out: Tensor = within("attention.out", lambda x: linear(x, self.out), mixed.view(batch, length, hidden))
        return out

    def _attend(self, qkv: Tensor, batch: int, length: int) -> Tensor:
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.kernels["attention"](q, k, v)
        return mixed.transpose(1, 2).contiguous()


class StateSpace(nn.Module):
    """Mamba-2's mixer: projections, a short causal convolution, the scan, a gated norm."""

    def __init__(self, size: Size, kernels: Kernels) -> None:
        super().__init__()
        self.size, self.kernels = size, kernels
        heads, channels = size.inner // size.inner_head, size.inner + 2 * size.state
        self.widths = (size.inner, channels, heads)
        self.into = _weight(sum(self.widths), size.hidden)
        self.taps = nn.Parameter(torch.empty(channels, 1, size.taps))
        self.decay_rate = nn.Parameter(torch.linspace(1, 16, heads).log())
        self.step_bias = nn.Parameter(torch.linspace(1e-3, 1e-1, heads).expm1().log())  # softplus gives the step back
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.Parameter(torch.ones(size.inner))
        self.out = _weight(size.hidden, size.inner, size=size)

    def forward(self, x: Tensor) -> Tensor:
        linear = self.kernels["linear"]
        made = within("state_space.in", lambda x: linear(x, self.into), x)
        gate, channels, steps = made.split(self.widths, dim=-1)
        channels = within("conv", lambda x: F.silu(self.kernels["conv"](x, self.taps)), channels)
        y = within("scan", self._scan, channels, steps)
        y = within("state_space.norm", lambda y, gate: self.kernels["norm"](y * F.silu(gate), self.norm), y, gate)
        out: Tensor = within("state_space.out", lambda x: linear(x, self.out), y)
        return out

    def _scan(self, channels: Tensor, steps: Tensor) -> Tensor:
        size = self.size
        batch, length, _ = channels.shape
        x, into, out_of = channels.split((size.inner, size.state, size.state), dim=-1)
        x = x.reshape(batch, length, -1, size.inner_head)
        step = F.softplus(steps.float() + self.step_bias.float())
        log_decay = -step * self.decay_rate.float().exp()
        y: Tensor = self.kernels["scan"](x * step[..., None].to(x.dtype), log_decay, into, out_of, size.chunk)
        mixed: Tensor = (y + x * self.skip[:, None]).reshape(batch, length, size.inner)
        return mixed


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.up = _weight(2 * size.mlp_width, size.hidden)
        self.down = _weight(size.hidden, size.mlp_width, size=size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        linear = self.kernels["linear"]
        both = within("mlp.up", lambda x: linear(x, self.up), x)
        wide = within("mlp.act", self.kernels["mlp"], both)
        return within("mlp.down", lambda x: linear(x, self.down), wide), x.new_zeros((), dtype=torch.float32)


class Moe(nn.Module):
    """Router, permute, experts as grouped products, combine; no token is dropped."""

    def __init__(self, size: Size, kernels: Kernels) -> None:
        super().__init__()
        self.size, self.kernels = size, kernels
        self.router = _weight(size.experts, size.hidden)
        self.up = nn.Parameter(torch.empty(size.experts, size.hidden, 2 * size.expert_width))
        self.down = _scaled(nn.Parameter(torch.empty(size.experts, size.expert_width, size.hidden)), size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        size, kernels = self.size, self.kernels
        hidden = x.view(-1, size.hidden)
        scores = within("router", lambda x: kernels["linear"](x, self.router).float().softmax(dim=-1), hidden)
        probs, ids = within("router_topk", lambda scores: kernels["router_topk"](scores, size.topk), scores)
        dense, _ = within("routing_map", lambda probs: kernels["routing_map"](probs, ids, size.experts), probs)
        counts = within("tokens_per_expert", lambda: kernels["tokens_per_expert"](ids, size.experts))
        balance = within("balance", lambda dense: self._balance(dense, counts), dense)
        rows, weights, slots, tokens = within(
            "permute", lambda hidden, probs: kernels["permute"](hidden, probs, ids, size.experts), hidden, probs
        )
        ends = counts.cumsum(0).int()
        made = within("experts", lambda rows: self._experts(rows, ends), rows)
        out = within("combine", lambda made, weights: kernels["combine"](made, weights, slots, tokens), made, weights)
        return out.view(x.shape), balance

    def _balance(self, dense: Tensor, counts: Tensor) -> Tensor:
        """Experts × Σ share of choices × mean probability: 1 where both are even."""
        share = counts.float() / counts.sum()
        return self.size.experts * (share * dense.mean(dim=0)).sum()

    def _experts(self, rows: Tensor, ends: Tensor) -> Tensor:
        gate, value = self.kernels["experts"](rows, self.up, ends).chunk(2, dim=-1)
        made: Tensor = self.kernels["experts"](F.silu(gate) * value, self.down, ends)
        return made


def _weight(out: int, into: int, size: Size | None = None) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(out, into))
    return weight if size is None else _scaled(weight, size)


def _scaled(weight: nn.Parameter, size: Size) -> nn.Parameter:
    """Marks a weight whose product is added to the stream of all layers: drawn smaller, as in GPT-2."""
    weight.scale = (2 * len(size.mixers)) ** -0.5  # type: ignore[attr-defined]
    return weight


MIXERS = {"attention": Attention, "state_space": StateSpace}
FEED_FORWARDS = {"mlp": Mlp, "moe": Moe}
