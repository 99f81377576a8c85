"""flash-attn-4's hooks on Hopper: gradients against float64, bits over replays, tiles kept aside, the forward's survey.

A kernel takes about ten seconds to compile for each kind of shape, so every kind is measured by a process of its own.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from perfgate import discover

probe = discover.module("attention.fa4.probe")
ASKED = {"dim": 128, "heads": 4, "kv_heads": 4, "q_len": 257, "kv_len": 257, "causal": True, "window": None, "rule": "exact"}
reason = probe.unsupported("cuda" if torch.cuda.is_available() else "cpu", **ASKED)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(reason), reason=reason)]

# batch, heads, kv heads, query rows, kv rows, head dimension, causal, window
SHAPES = {
    "causal": (2, 4, 4, 512, 512, 128, True, None),
    "full, 4 a group": (1, 8, 2, 257, 257, 128, False, None),
    "causal, 8 a group, D64": (1, 8, 1, 384, 640, 64, True, None),
    "full, D64": (1, 2, 2, 129, 129, 64, False, None),
    "window": (1, 2, 2, 300, 300, 128, True, 100),
    "window, 4 a group, D64": (1, 4, 1, 512, 512, 64, True, 64),
}
LENGTHS = [(1, 1), (1, 129), (129, 1), (128, 4096), (4096, 128), (700, 257), (4096, 4096)]  # query and kv rows
LONG = {"causal": (2, 16, 16, 4096, 4096, 128, True, None), "full, 4 a group": (2, 16, 4, 4096, 4096, 128, False, None)}
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


def probabilities(q, k, causal, window):
    rows, keys = q.shape[2], k.shape[2]
    place = torch.arange(rows, device="cuda")[:, None] + keys - rows - torch.arange(keys, device="cuda")[None, :]
    hidden = (place < 0) if causal else torch.zeros_like(place, dtype=torch.bool)
    if window is not None:
        hidden |= place >= window
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[3])).masked_fill(hidden, -math.inf).softmax(dim=-1)


def reference(q, k, v, grad, causal, window):
    inputs = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    k64, v64 = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in inputs[1:])
    return torch.autograd.grad(probabilities(inputs[0], k64, causal, window) @ v64, inputs, grad.double())


def options_of(shape):
    return {"causal": shape[6], "window": shape[7], "scale": shape[5] ** -0.5}


def gradients(tensors, shape, rule):
    """As ``rule`` says; "unsurveyed" is the exact one after a forward as shipped."""
    hooks = discover.module("attention.fa4.hooks")
    q, k, v, grad = tensors
    options = options_of(shape)
    if rule == "exact":
        out, lse, extents = hooks.surveyed_forward(q, k, v, **options)
        return lambda: hooks.backward(q, k, v, out, lse, grad, extents=extents, **options)
    out, lse = hooks.forward(q, k, v, **options)
    return lambda: hooks.backward(q, k, v, out, lse, grad, rule="exact" if rule == "unsurveyed" else rule, **options)


def survey(tensors, shape):
    """Of the forward that surveys: whether out and LSE have the bits of the one as shipped, whether the extents are the same in
    10 replays, whether |K|'s are right, and the relative error of ‖V_j‖²'s."""
    hooks = discover.module("attention.fa4.hooks")
    q, k, v, _grad = tensors
    options = options_of(shape)
    out, lse, extents = hooks.surveyed_forward(q, k, v, **options)
    shipped = hooks.forward(q, k, v, **options)
    same = torch.equal(out.view(torch.int16), shipped[0].view(torch.int16)) and torch.equal(
        lse.view(torch.int32), shipped[1].view(torch.int32)
    )
    replays = all(torch.equal(extents, hooks.surveyed_forward(q, k, v, **options)[2]) for _ in range(10))
    square, key = extents.view(torch.float32).amax(dim=3).double().unbind(dim=2)
    expected = [torch.where(tensor.isfinite(), tensor, 0).double() for tensor in (v, k)]
    squares = expected[0].square().sum(dim=-1).amax(dim=-1)
    squares = torch.where(squares < 2.0**128, squares, math.inf)
    off = torch.where(squares == square, 0.0, (square / squares - 1).abs())
    return [same, replays, torch.equal(expected[1].abs().amax(dim=(-1, -2)), key), float(off.nan_to_num(math.inf).max())]


def special(tensors):
    """NaN, Inf and rows whose square overflows among keys and values."""
    _q, k, v, _grad = tensors
    k[0, 0, 11, 3], k[0, 0, 12, 5], v[0, 0, 13, 7], v[0, 0, 14, 63] = math.nan, -math.inf, math.inf, math.nan
    k[0, -1, k.shape[2] - 1, 0] = -3.0e38
    if v.shape[1] > 1:
        v[0, 1, 15] = 2.0**65
    return tensors


def surveys(shape):
    """:func:`survey` by kind of data and by lengths."""
    found = {data: survey(problem(shape, data), shape) for data in DATA}
    found["special values"] = survey(special(problem(shape)), shape)
    batch, heads, kv_heads, _rows, _kv_rows, *others, window = shape
    for rows, kv_rows in LENGTHS:
        if window is not None and rows > kv_rows:
            continue
        other = (batch, heads, kv_heads, rows, kv_rows, *others, window)
        found[f"{rows} rows, {kv_rows} keys"] = survey(problem(other), other)
    return found


def error(got, expected):
    return float((got.double() - expected).norm() / expected.norm().clamp_min(1e-300))


def differing(run, replays):
    first = [tensor.view(torch.int16) for tensor in run()]
    return sum(not all(torch.equal(a, b.view(torch.int16)) for a, b in zip(first, run(), strict=True)) for _ in range(replays))


def constants_of(tensors):
    """C of every row of dQ [B, H, S], as the kernels make it of f32 bits."""
    bound = discover.module("attention.fa4.bound")
    _q, k, v, grad = tensors
    group = grad.shape[1] // k.shape[1]
    value, key = v.float().norm(dim=-1).amax(dim=-1), k.float().abs().amax(dim=(-1, -2))
    extents = bound.extent(value, key, lambda least, found: found.clamp_min(least)).repeat_interleave(group, dim=1)
    limits = (grad.float().norm(dim=-1) + bound.LOST) * extents[..., None]
    return bound.constant_bits(bound.exponent(limits.view(torch.int32))).view(torch.float32).double()


def rounding(tensors, shape, expected):
    """What rounding may add to dQ's error: q²/12 for each tile that a row meets, q = C/1.5·2⁻²³, and δ's last bits.

    Those cost ε·|δ|·‖Σ_j p_j K_j‖ with ε² = 2⁻³²/3.
    """
    quanta = constants_of(tensors) / 1.5 * 2.0**-23
    tiles = -(-shape[4] // 128) if shape[7] is None else -(-(shape[7] - 1) // 128) + 1
    q, k, v, grad = (tensor.double() for tensor in tensors)
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    p = probabilities(q, k, *shape[6:])
    bits = ((p @ v) * grad).sum(dim=-1).square() * (p @ k).square().sum(dim=-1) * 2.0**-32 / 3
    both = bits.sum() + quanta.square().sum() * shape[5] * tiles / 12
    return float(shape[5] ** -0.5 * both.sqrt() / expected.norm().clamp_min(1e-300))


def not_finite(shape):
    """Replays that differ when one row of the gradient and one key are not finite, and whether that row's dQ is NaN."""
    tensors = problem(shape)
    tensors[3][0, 0, 40, 3] = math.inf
    tensors[1][0, 0, 100, 3] = math.nan
    run = gradients(tensors, shape, "exact")
    return differing(run, 10), bool(run()[0][0, 0, 40].isnan().all())


def sums_of(tensors, shape):
    """dQ as returned, and the float32 sums it was converted from."""
    kernels = discover.module("attention.fa4.kernels")
    kept, convert = [], kernels.convert

    def keeping(total, *others):
        kept.append(total.clone())
        convert(total, *others)

    kernels.convert = keeping
    try:
        dq = gradients(tensors, shape, "exact")()[0]
    finally:
        kernels.convert = convert
    return dq, kept[0]


def on_the_grid(shape):
    """Whether every sum of dQ is a whole number of half quanta of its row's C, as computed here; and of how many rows whose
    gradient is not about 0 the sums are whole numbers of two quanta too."""
    tensors = problem(shape, "six decades")
    q = tensors[0]
    dq, sums = sums_of(tensors, shape)
    # blocks of 64 rows; of each warp group's 64 columns the accumulators of 128 threads, four at a time
    by_part = sums.view(*q.shape[:2], -1, 2, 8, 4, 8, 4, 2, 2)  # block, group, four, warp, lane / 4, lane % 4, row half, column
    by_row = by_part.permute(0, 1, 2, 5, 8, 6, 3, 4, 7, 9).reshape(*q.shape[:2], -1, q.shape[3])[:, :, : q.shape[2]]
    steps = by_row.double() / (constants_of(tensors)[..., None] / 1.5 * 2.0**-24)
    coarse = (steps / 4 == (steps / 4).round()).all(dim=-1)[:, :, 64:]
    return torch.equal((by_row * shape[5] ** -0.5).bfloat16(), dq), bool((steps == steps.round()).all()), int(coarse.sum())


def measured(name):
    """All that the tests ask about one kind of shape."""
    shape = SHAPES[name]
    found = {"errors": {}, "rounding": {}, "differing": {}, "not finite": not_finite(shape), "surveys": surveys(shape)}
    for data in DATA:
        tensors = problem(shape, data)
        expected = reference(*tensors, *shape[6:])
        runs = {rule: gradients(tensors, shape, rule) for rule in ("ordered", "exact", "unsurveyed")}
        found["errors"][data] = {
            rule: [error(*pair) for pair in zip(run(), expected, strict=True)] for rule, run in runs.items()
        }
        found["rounding"][data] = rounding(tensors, shape, expected[0])
        found["differing"][data] = differing(runs["exact"], 5)
    if name in LONG:
        found["long"] = {rule: differing(gradients(problem(LONG[name]), LONG[name], rule), 20) for rule in ("ordered", "exact")}
    if name == "causal":
        found["grid"] = on_the_grid(shape)
    return found


def measured_elsewhere(name):
    """:func:`measured`, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, __file__, name], env=environment, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def results():
    """Of each kind of shape what :func:`measured` found, from processes that run side by side."""
    with ThreadPoolExecutor(min(len(SHAPES), os.cpu_count() or 1)) as pool:
        yield {name: pool.submit(measured_elsewhere, name) for name in SHAPES}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("data", DATA)
def test_exact_sums_are_as_close_to_float64_as_the_ordered_ones(results, name, data):
    """dQ's may be larger by what rounding costs: much for rows that don't see the key that sets their head's quantum."""
    found, predicted = (results[name].result()[what][data] for what in ("errors", "rounding"))
    allowed = [math.hypot(found["ordered"][0], predicted), *found["ordered"][1:]]

    for rule in ("exact", "unsurveyed"):
        assert all(ours <= 1.1 * most + 1e-6 for ours, most in zip(found[rule], allowed, strict=True)), (rule, found, predicted)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("data", DATA)
def test_replays_of_exact_sums_have_equal_bits(results, name, data):
    assert 0 == results[name].result()["differing"][data]


@pytest.mark.parametrize("name", LONG)
def test_replays_have_equal_bits_where_many_tiles_meet(results, name):
    assert {"ordered": 0, "exact": 0} == results[name].result()["long"]


@pytest.mark.parametrize("name", SHAPES)
def test_a_gradient_that_is_not_finite_gives_the_same_bits_every_time(results, name):
    differ, row_is_nan = results[name].result()["not finite"]

    assert 0 == differ
    assert row_is_nan


@pytest.mark.parametrize("name", SHAPES)
def test_the_forward_that_surveys_is_the_one_as_shipped_and_finds_what_is_largest(results, name):
    found = results[name].result()["surveys"]

    assert [] == [what for what, one in found.items() if one[:3] != [True, True, True]]
    assert all(one[3] < 36 * 2.0**-24 for one in found.values()), found  # as many roundings deep at most


def test_every_sum_of_dq_lies_on_the_grid_that_the_bound_gives_and_no_coarser(results):
    layout_is_right, on_half_quanta, rows_on_two_quanta = results["causal"].result()["grid"]

    assert layout_is_right
    assert on_half_quanta
    assert 0 == rows_on_two_quanta


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(measured(sys.argv[1])) + "\n")
