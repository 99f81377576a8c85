"""What dQ loses to each way of adding its contributions, emulated on a CPU: no GPU, no Triton.

    python -m tests.benchmarks.attention_rounding    # 20 s; one line per kind of data and length

192 random queries of one causal head (D 128, bf16), keys in blocks of 128. Every way adds the same contributions, rounded as
the kernels round (probabilities, dS and out in bf16, sums in f32), and the result is stored in bf16. Relative L2 errors to
float64 over all rows, and of the median row: f32 as it comes; integers of 2^-30 of the row's bound (a conversion's);
integers of 2^-22 of the bound; and integers of 2^-22 of what the row's share makes of it, with odd exponents and the delta that
carries them (``triton_exact``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

D, KEYS, ROWS = 128, 128, 192
KINDS: dict[str, Callable[..., object]] = {
    "normal": lambda q, k, v, g: None,
    "queries x3": lambda q, k, v, g: q.mul_(3),
    "queries x10": lambda q, k, v, g: q.mul_(10),
    "dO over six decades": lambda q, k, v, g: g.mul_(torch.logspace(-3, 3, ROWS)[:, None]),
    "one channel of K x30, none of Q": lambda q, k, v, g: (k[:, 5].mul_(30), q[:, 5].zero_()),
    "one key x1000": lambda q, k, v, g: k[k.shape[0] // 3].mul_(1000),
    "one value x1000": lambda q, k, v, g: v[v.shape[0] // 3].mul_(1000),
}


def drawn(kind: str, keys: int) -> tuple[torch.Tensor, ...]:
    """q, k, v, dO in bf16's values, and the last key that each query sees."""
    generator = torch.Generator().manual_seed(0)
    last = torch.randint(0, keys, (ROWS,), generator=generator).sort()[0]
    last[-1] = keys - 1
    q, k, v, grad_out = (torch.randn(count, D, generator=generator) for count in (ROWS, keys, keys, ROWS))
    KINDS[kind](q, k, v, grad_out)
    return (*(one.bfloat16().float() for one in (q, k, v, grad_out)), last)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad_out: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """dQ / scale in float64."""
    q, k, v, grad_out = (one.double() for one in (q, k, v, grad_out))
    hidden = torch.arange(k.shape[0])[None] > last[:, None]
    weights = (q @ k.T * D**-0.5).masked_fill(hidden, float("-inf")).softmax(dim=1)
    slopes = grad_out @ v.T
    total: torch.Tensor = (weights * (slopes - (weights * slopes).sum(dim=1, keepdim=True))) @ k
    return total


def log2_above(positive: torch.Tensor) -> torch.Tensor:
    """The kernels' logarithm."""
    return positive.view(torch.int32) * 2.0**-23 - 126.9125


def products(slopes: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
    """A contribution of each block of keys."""
    return [one @ other for one, other in zip(slopes.split(KEYS, dim=1), k.split(KEYS), strict=True)]


def carrying(delta: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
    """The f32 nearest to ``delta`` that ends in the eight bits ``carried``."""
    bits = delta.view(torch.int32)
    near = ((bits & 0x7FFFFFFF) - carried + 128).clamp(min=0) & ~255
    return (near | carried | (bits & -0x80000000)).view(torch.float32)


def sums(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad_out: torch.Tensor, last: torch.Tensor
) -> dict[str, torch.Tensor]:
    """dQ / scale by every way of adding."""
    hidden = torch.arange(k.shape[0])[None] > last[:, None]
    scores = (q @ k.T * D**-0.5).masked_fill(hidden, float("-inf"))
    weights = torch.exp(scores - torch.logsumexp(scores, dim=1, keepdim=True))
    out = (weights.bfloat16().float() @ v).bfloat16().float()
    delta = (out * grad_out).sum(dim=1)
    slopes = (weights * (grad_out @ v.T - delta[:, None])).bfloat16().float()
    parts = products(slopes, k)
    reach = grad_out.norm(dim=1) * v.norm(dim=1).max()
    unit = 2.0**-17 * 1.4427 * k.abs().max()  # scale · √D = 1
    most = unit * D**0.5 * q.abs().max()
    excess = most if most <= 0.0625 else unit * q.norm(dim=1)
    bound = (
        0.5 * log2_above(grad_out.norm(dim=1) ** 2)
        + torch.log2(v.norm(dim=1).max())
        + torch.log2(k.abs().max())
        + 0.17
        + excess
    )
    # the forward's blocks are of 64 keys; it keeps the largest of four sums each, of pairs of keys that lie eight apart
    quarters = [one.unflatten(1, (8, 4, 2)).sum(dim=(1, 3)) for one in weights.split(64, dim=1)]
    share = 2 * torch.stack(quarters).amax(dim=0).sum(dim=1)
    one = bound + log2_above(share * (1 + (delta.abs() / reach).clamp(max=1))).clamp(max=0)
    ways = {
        "2^-30 of the bound": bound.ceil() - 30,
        "2^-22 of the bound": bound.ceil() - 22,
        "shares": torch.maximum(bound.ceil() - 30, one.ceil() - 22),
    }
    found = {"f32": torch.stack(parts).cumsum(dim=0)[-1].double()}
    for name, exponent in ways.items():
        added = parts
        if name == "shares":  # odd exponents; the row's delta carries half of that of 1/quantum
            exponent = (exponent.int() | 1).float()
            seen = carrying(delta, (127 - exponent.int()) >> 1)
            added = products((weights * (grad_out @ v.T - seen[:, None])).bfloat16().float(), k)
        quantum = 2.0 ** exponent.double()[:, None]
        whole = [(part.double() / quantum).round() for part in added]
        fits = 2.0 ** (30 if name == "2^-30 of the bound" else 22)
        if max(float(one.abs().max()) for one in whole) > fits or float(sum(whole).abs().max()) >= 2**31:
            raise ArithmeticError(f"{name}: the bound does not hold")
        found[name] = sum(whole) * quantum
    return found


def main() -> None:
    for kind in KINDS:
        for keys in (1024, 4096, 16384):
            tensors = drawn(kind, keys)
            expected = exact(*tensors)
            said = []
            for name, total in sums(*tensors).items():
                wrong = total.float().bfloat16().double() - expected
                sizes = expected.norm(dim=1)
                median = float((wrong.norm(dim=1) / sizes)[sizes > 0].median())
                said.append(f"{name} {1000 * float(wrong.norm() / expected.norm()):.3f} (median row {1000 * median:.2f})")
            sys.stdout.write(f"{kind}, S {keys}, 1e-3: {', '.join(said)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
