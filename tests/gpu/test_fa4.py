"""flash-attn-4's hooks on Hopper: gradients against float64, bits over replays, and the tiles that are kept aside."""

from __future__ import annotations

import math

import pytest
import torch

from perfgate import discover

probe = discover.module("attention.fa4.probe")
ASKED = {"dim": 128, "heads": 4, "kv_heads": 4, "q_len": 257, "kv_len": 257, "causal": True, "window": None, "rule": "exact"}
reason = probe.unsupported("cuda" if torch.cuda.is_available() else "cpu", **ASKED)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(reason), reason=reason)]

# batch, heads, kv heads, query rows, kv rows, head dimension, causal, window
SHAPES = [
    (2, 4, 4, 512, 512, 128, True, None),
    (1, 8, 2, 257, 257, 128, False, None),
    (1, 8, 1, 384, 640, 64, True, None),
    (1, 2, 2, 129, 129, 64, False, None),
    (1, 2, 2, 300, 300, 128, True, 100),
    (1, 4, 1, 512, 512, 64, True, 64),
]
DATA = {
    "normal": lambda q, k, v, g: None,
    "six decades": lambda q, k, v, g: g.mul_(10.0 ** torch.arange(-3, 4, device=g.device)[torch.arange(g.shape[2]) % 7, None]),
    "sharp": lambda q, k, v, g: q.mul_(30),
    "one huge key": lambda q, k, v, g: k[:, :, k.shape[2] // 3].mul_(1000),
    "a wrong guess": lambda q, k, v, g: g[:, :, :: max(g.shape[2] // 32, 1)].zero_(),
    "tiny": lambda q, k, v, g: g.mul_(1e-12),
}


def problem(shape, data="normal"):
    batch, heads, kv_heads, rows, kv_rows, dim, *_ = shape
    generator = torch.Generator(device="cuda").manual_seed(7)
    made = [
        torch.randn(batch, count, length, dim, device="cuda", generator=generator)
        for count, length in ((heads, rows), (kv_heads, kv_rows), (kv_heads, kv_rows), (heads, rows))
    ]
    DATA[data](*made)
    return [tensor.bfloat16() for tensor in made]


def reference(q, k, v, grad, causal, window):
    rows, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    inputs = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    k64, v64 = (tensor.repeat_interleave(group, dim=1) for tensor in inputs[1:])
    place = torch.arange(rows, device="cuda")[:, None] + keys - rows - torch.arange(keys, device="cuda")[None, :]
    hidden = (place < 0) if causal else torch.zeros_like(place, dtype=torch.bool)
    if window is not None:
        hidden |= place >= window
    scores = (inputs[0] @ k64.transpose(-1, -2) / math.sqrt(q.shape[3])).masked_fill(hidden, -math.inf)
    return torch.autograd.grad(scores.softmax(dim=-1) @ v64, inputs, grad.double())


def gradients(tensors, shape, rule):
    hooks = discover.module("attention.fa4.hooks")
    q, k, v, grad = tensors
    options = {"causal": shape[6], "window": shape[7], "scale": shape[5] ** -0.5}
    out, lse = hooks.forward(q, k, v, **options)
    return lambda: hooks.backward(q, k, v, out, lse, grad, rule=rule, **options)


def error(got, expected):
    return float((got.double() - expected).norm() / expected.norm().clamp_min(1e-300))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("data", DATA)
def test_exact_sums_are_as_close_to_float64_as_the_ordered_ones(shape, data):
    tensors = problem(shape, data)
    expected = reference(*tensors, *shape[6:])
    ordered = [error(*pair) for pair in zip(gradients(tensors, shape, "ordered")(), expected, strict=True)]
    exact = [error(*pair) for pair in zip(gradients(tensors, shape, "exact")(), expected, strict=True)]

    assert all(ours <= 1.1 * theirs + 1e-6 for ours, theirs in zip(exact, ordered, strict=True)), (exact, ordered)


@pytest.mark.parametrize("rule", ["ordered", "exact"])
@pytest.mark.parametrize("shape", [(2, 16, 16, 4096, 4096, 128, True, None), (2, 16, 4, 4096, 4096, 128, False, None)], ids=str)
def test_replays_have_equal_bits(shape, rule):
    run = gradients(problem(shape), shape, rule)
    first = run()
    differing = sum(not all(torch.equal(a, b) for a, b in zip(first, run(), strict=True)) for _ in range(20))

    assert 0 == differing


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_gradient_that_is_not_finite_gives_the_same_bits_every_time(shape):
    tensors = problem(shape)
    tensors[3][0, 0, 40, 3] = math.inf
    tensors[1][0, 0, 200, 3] = math.nan
    run = gradients(tensors, shape, "exact")
    first = run()
    differing = sum(
        not all(torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(first, run(), strict=True))
        for _ in range(10)
    )

    assert 0 == differing
    assert bool(first[0][0, 0, 40].isnan().all())
