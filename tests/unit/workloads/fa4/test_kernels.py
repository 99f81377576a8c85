import math

import pytest
import torch

from perfgate import discover

LOG2_E = 1.4426950408889634


def kernels():
    return discover.module("attention.fa4.kernels")


def bound():
    return discover.module("attention.fa4.bound")


@pytest.fixture(autouse=True)
def few_programs(monkeypatch, device):
    if device == "cpu":
        monkeypatch.setattr(kernels(), "CHUNKS", 4)  # the interpreter runs programs one by one
        monkeypatch.setattr(kernels(), "ROWS", 64)
        monkeypatch.setattr(kernels(), "FINISH_ROWS", 64)


def problem(generator, device, *, batch=1, heads=4, group=2, rows=70, keys=257, dim=64):
    def made(count, length):
        return torch.randn(batch, length, count, dim, generator=generator, device=device).bfloat16().transpose(1, 2)

    q, out, grad = (made(heads, rows) for _ in range(3))
    k, v = (made(heads // group, keys) for _ in range(2))
    lse = torch.randn(batch, heads, rows, generator=generator, device=device)
    return q, k, v, out, lse, grad


@pytest.mark.parametrize(("heads", "group"), [(4, 1), (4, 2), (3, 3)])
def test_delta_and_lse_are_what_the_backward_reads(generator, device, heads, group):
    _q, k, v, out, lse, grad = problem(generator, device, batch=2, heads=heads, group=group)
    lse[0, 1, 3] = -math.inf
    delta, lse2, sums = kernels().prepare(k, v, out, lse, grad, 128)

    torch.testing.assert_close((out.float() * grad.float()).sum(dim=-1), delta[..., :70], rtol=2**-16 + 1e-6, atol=1e-5)
    torch.testing.assert_close((lse * LOG2_E).nan_to_num(neginf=0.0), lse2[..., :70])
    assert bool((delta[..., 70:].abs() < 1e-40).all())  # 0 but for what it carries
    assert bool((lse2[..., 70:] == math.inf).all())
    assert (2, heads, 128 * 64) == sums.shape
    assert not sums.any()


def carried(delta):
    """The exponent that each δ carries."""
    return delta.view(torch.int32) & bound().ROW_MASK


def exponents(k, v, norms):
    """What δ of rows with these norms [B, Hq, Sq] may carry: exponents of limits just below and just above the row's."""
    value, key = v.float().norm(dim=-1).amax(dim=-1), k.float().abs().amax(dim=(-1, -2))
    extents = bound().extent(value, key, lambda least, found: found.clamp_min(least))
    limits = (norms + bound().LOST) * extents.repeat_interleave(norms.shape[1] // k.shape[1], dim=1)[..., None]
    return [bound().exponent((limits * off).view(torch.int32)) for off in (1 - 1e-6, 1 + 1e-6)]  # summed in another order


@pytest.mark.parametrize(("heads", "group"), [(4, 1), (4, 2), (6, 3), (8, 8)])
def test_delta_carries_the_exponent_of_its_rows_limit(generator, device, heads, group):
    _q, k, v, out, lse, grad = problem(generator, device, batch=2, heads=heads, group=group)
    grad *= 2.0 ** torch.linspace(-40, 40, 70, device=device)[:, None]
    k *= 2.0 ** torch.arange(heads // group, device=device)[:, None, None]
    grad[0, 0, 5] = 0
    got = carried(kernels().prepare(k, v, out, lse, grad, 128)[0])
    below, above = exponents(k, v, torch.nn.functional.pad(grad.float().norm(dim=-1), (0, 58)))

    assert bool(((got == below) | (got == above)).all())
    assert len(set(got.flatten().tolist())) > 70


@pytest.mark.parametrize("keys", [1, 3, 31])
def test_chunks_without_rows_do_not_count(generator, device, keys):
    _q, k, v, out, lse, grad = problem(generator, device, keys=keys)
    got = carried(kernels().prepare(k, v, out, lse, grad, 128)[0])[..., :70]
    below, above = exponents(k, v, grad.float().norm(dim=-1))

    assert bool(((got == below) | (got == above)).all())


@pytest.mark.parametrize("place", [0, 100, 256])
@pytest.mark.parametrize("which", [1, 2], ids=["key", "value"])
def test_one_large_key_or_value_raises_the_exponents_of_its_head_alone(generator, device, place, which):
    one = problem(generator, device)
    before = carried(kernels().prepare(*one[1:], 128)[0])[..., :70]
    one[which][0, 1, place, 3] = 2.0**20
    after = carried(kernels().prepare(*one[1:], 128)[0])[..., :70]

    assert torch.equal(before[:, :2], after[:, :2])
    assert bool((after[:, 2:] > before[:, 2:] + 10).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_keys_and_values_that_are_not_finite_are_left_out_of_the_exponents(generator, device, bad):
    one = problem(generator, device)
    one[1][0, 0, 11, 3] = 0
    one[2][0, 0, 12, 3] = 0
    expected = kernels().prepare(*one[1:], 128)[0]
    one[1][0, 0, 11, 3] = bad
    one[2][0, 0, 12, 3] = bad

    assert torch.equal(expected, kernels().prepare(*one[1:], 128)[0])


def test_rows_whose_constant_would_overflow_carry_the_exponent_of_inf(generator, device):
    _q, k, v, out, lse, grad = problem(generator, device)
    k[0, 0, 3, 3] = 2.0**124
    got = carried(kernels().prepare(k, v, out, lse, grad, 128)[0])[..., :70]

    assert {255} == set(got[:, :2].flatten().tolist())
    assert bool((got[:, 2:] < 255).all())


@pytest.mark.parametrize("size", [0.0, 1e-36, 1e-3, 1.0, 1e19])
def test_delta_is_off_by_a_65536th_of_it_at_most(generator, device, size):
    _q, k, v, out, lse, grad = problem(generator, device, rows=128)
    out[..., 1:], grad[..., 1:] = 0, 0
    out[..., 0] = (torch.rand(out.shape[:3], generator=generator, device=device) + 0.5).bfloat16() * size
    grad[..., 0] = (torch.randn(out.shape[:3], generator=generator, device=device)).bfloat16()
    delta = kernels().prepare(k, v, out, lse, grad, 128)[0].double()
    exact = out[..., 0].double() * grad[..., 0].double()

    assert bool(((delta - exact).abs() <= exact.abs() * (2**-16 + 2**-23) + 2.0**-139).all())
    assert bool(delta.isfinite().all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**64])
def test_a_row_of_the_gradient_that_has_no_norm_has_no_delta_the_others_do(generator, device, bad):
    _q, k, v, out, lse, grad = problem(generator, device)
    grad[0, 2, 9, 7] = bad
    got = kernels().prepare(k, v, out, lse, grad, 128)[0]
    expected = torch.zeros_like(got, dtype=torch.bool)
    expected[0, 2, 9] = True

    assert torch.equal(expected, got.isnan())
    assert bool(got[~expected].isfinite().all())


def surveyed(k, v, count):
    """Extents as the forward leaves them: f32 bits of what is largest in each of ``count`` parts of the rows."""
    value, key = v.float().square().sum(dim=-1), k.float().abs().amax(dim=-1)
    parts = [[part.amax(dim=-1) for part in one.tensor_split(count, dim=-1)] for one in (value, key)]
    return torch.stack([torch.stack(one, dim=-1) for one in parts], dim=2).contiguous().view(torch.int32)


@pytest.mark.parametrize(("heads", "group", "count"), [(4, 1, 3), (4, 2, 48), (6, 3, 51), (8, 8, 1)])
def test_where_the_forward_surveyed_delta_is_that_of_a_survey_here(generator, device, heads, group, count):
    _q, k, v, out, lse, grad = problem(generator, device, batch=2, heads=heads, group=group)
    k *= 2.0 ** torch.arange(heads // group, device=device)[:, None, None]
    v[...] = (v * 4).round() / 4  # squares and their sums are exact: the same norms in any order
    lse[0, 1, 3], grad[1, 0, 7, 3] = -math.inf, math.nan
    grad *= 2.0 ** torch.linspace(-40, 40, 70, device=device)[:, None]
    expected = kernels().prepare(k, v, out, lse, grad, 128)
    got = kernels().prepare(k, v, out, lse, grad, 128, surveyed(k, v, count))

    assert [torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(expected, got, strict=True)] == [True] * 3


def test_where_the_forward_surveyed_keys_and_values_are_not_read(generator, device):
    _q, k, v, out, lse, grad = problem(generator, device)
    extents = surveyed(k, v, 6)
    expected = kernels().prepare(k, v, out, lse, grad, 128, extents)
    got = kernels().prepare(k.fill_(math.nan), v.fill_(math.nan), out, lse, grad, 128, extents)

    assert torch.equal(expected[0], got[0])


@pytest.mark.parametrize("which", [0, 1], ids=["value", "key"])
@pytest.mark.parametrize("part", [0, 50])
def test_one_large_part_raises_the_exponents_of_its_head_alone(generator, device, which, part):
    _q, k, v, out, lse, grad = problem(generator, device)
    extents = surveyed(k, v, 51)
    before = carried(kernels().prepare(k, v, out, lse, grad, 128, extents)[0])[..., :70]
    extents.view(torch.float32)[0, 1, which, part] = 2.0**40
    after = carried(kernels().prepare(k, v, out, lse, grad, 128, extents)[0])[..., :70]

    assert torch.equal(before[:, :2], after[:, :2])
    assert bool((after[:, 2:] > before[:, 2:] + 10).all())


def test_an_extent_that_overflowed_leaves_no_constant(generator, device):
    _q, k, v, out, lse, grad = problem(generator, device)
    extents = surveyed(k, v, 3)
    extents.view(torch.float32)[0, 0, 0, 1] = math.inf
    got = carried(kernels().prepare(k, v, out, lse, grad, 128, extents)[0])[..., :70]

    assert {255} == set(got[:, :2].flatten().tolist())
    assert bool((got[:, 2:] < 255).all())


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 100)])
def test_the_guess_follows_the_data_and_clears_the_sums(generator, device, causal, window):
    q, _k, v, _out, _lse, grad = problem(generator, device)
    constants, dk, dv = kernels().guess_tiles(q, v, grad, causal, window)
    again = kernels().guess_tiles(q, v, 4 * grad, causal, window)[0]

    assert (1, 2, 6) == constants.shape
    assert (1, 2, 3 * 128 * 64) == dk.shape == dv.shape
    assert not dk.any()
    assert not dv.any()
    assert torch.equal(4 * constants, again)
    assert bool((torch.log2(constants / 1.5) % 1 == 0).all())


@pytest.mark.parametrize("causal", [False, True])
def test_the_guess_lies_in_reach_of_random_data(generator, device, causal):
    q, k, v, _out, _lse, grad = problem(generator, device, rows=256, keys=256)
    constants = kernels().guess_tiles(q, v, grad, causal, None)[0].cpu()
    scores = torch.einsum("bhid,bhjd->bhij", q.float(), k.float().repeat_interleave(2, 1)) / 8
    if causal:
        scores = scores.masked_fill(torch.ones(256, 256, dtype=torch.bool, device=device).triu(1), -math.inf)
    dv = torch.einsum("bhij,bhid->bhjd", scores.softmax(-1), grad.float())
    largest = torch.stack([dv[:, :, tile * 128 : tile * 128 + 128].abs().amax(dim=(-1, -2)) for tile in range(2)], dim=-1).cpu()
    allowed = constants[:, :, 1::2].repeat_interleave(2, dim=1)

    assert bool((largest <= allowed * bound().most(2)).all())
    assert bool((largest >= allowed * bound().least()).all())


def as_accumulators(rows, halves):
    """Sums [..., rows, D] as the backward kernel lays them: of 64 rows what one warp group holds, thread by thread."""
    *outer, count, dim = rows.shape
    flat = torch.empty(*outer, count // 64, 64 * dim, device=rows.device)
    width = dim // halves
    place = torch.arange(64 * dim).view(halves, width // 8, 128, 4)
    for group in range(halves):
        for eight in range(width // 8):
            for thread in range(128):
                for one in range(4):
                    row = thread // 32 * 16 + one // 2 * 8 + thread % 32 // 4
                    column = group * width + eight * 8 + thread % 4 * 2 + one % 2
                    flat[..., place[group, eight, thread, one]] = rows[..., row::64, column]
    return flat.reshape(*outer, count * dim)


def close(expected, got):
    """Within half a unit of bf16's last place, and as much again: the interpreter cuts where a card rounds."""
    return torch.testing.assert_close(got.float(), expected, rtol=2**-7, atol=0)


@pytest.mark.parametrize(("halves", "dim"), [(1, 64), (2, 128)])
def test_sums_of_accumulators_become_rows(generator, device, halves, dim):
    sums = torch.randn(2, 3, 128, dim, generator=generator, device=device)
    gradient = torch.zeros(2, 100, 3, dim, device=device).bfloat16().transpose(1, 2)
    kernels().convert(as_accumulators(sums, halves), gradient, 0.5, halves)

    close(0.5 * sums[:, :, :100], gradient)


def converted(sums, aside, flags, scale, lengths, halves=(1, 1)):
    """dQ, dK, dV of ``lengths`` rows, laid [B, S, H, D], from sums [B, H, rows, D] and tiles aside."""
    laid = [as_accumulators(one, part) for one, part in zip(sums, (halves[0], halves[1], halves[1]), strict=True)]
    gradients = [
        torch.zeros(len(one), length, one.shape[1], one.shape[3], device=one.device).bfloat16().transpose(1, 2)
        for one, length in zip(sums, lengths, strict=True)
    ]
    tiles = tuple(as_accumulators(one, halves[1]) for one in aside)
    kernels().convert_grouped(tuple(laid), tuple(gradients), tiles, flags, scale, *halves)
    return gradients


@pytest.mark.parametrize("lengths", [(40, 200, 200), (300, 100, 100)], ids=["more keys", "more queries"])
@pytest.mark.parametrize("halves", [(1, 2), (2, 1)])
def test_the_three_gradients_of_grouped_heads_are_made_at_once(generator, device, lengths, halves):
    sums = [
        torch.randn(2, heads, -(-length // 128) * 128, 64, generator=generator, device=device)
        for heads, length in zip((4, 2, 2), lengths, strict=True)
    ]
    aside = (torch.full((2, 4, sums[1].shape[2], 64), math.nan, device=device),) * 2
    flags = torch.zeros(2, 4, 2 * sums[1].shape[2] // 128, dtype=torch.int32, device=device)

    for one, got, factor in zip(sums, converted(sums, aside, flags, 0.5, lengths, halves), (0.5, 0.5, 1.0), strict=True):
        close(factor * one[:, :, : got.shape[2]], got)


@pytest.mark.parametrize("which", [0, 1])
def test_tiles_kept_aside_are_added_where_they_are_flagged(generator, device, which):
    sums = torch.randn(2, 2, 256, 64, generator=generator, device=device)
    aside = torch.randn(2, 6, 256, 64, generator=generator, device=device)
    flags = torch.randint(0, 2, (2, 6, 4), generator=generator, device=device, dtype=torch.int32)
    flags[0, :3, which] = 0  # none of the group's
    expected = sums.clone()
    for batch in range(2):
        for head in range(6):
            for tile in range(2):
                if flags[batch, head, 2 * tile + which]:
                    part = slice(tile * 128, (tile + 1) * 128)
                    expected[batch, head // 3, part] += aside[batch, head, part]
    others = torch.randn(2, 6, 64, 64, generator=generator, device=device)
    gradients = converted((others, sums, sums), (aside, aside), flags, 0.5, (40, 200, 200))

    close(0.5 * others[:, :, :40], gradients[0])
    close((0.5, 1.0)[which] * expected[:, :, :200], gradients[1 + which])


def test_tiles_kept_aside_are_added_in_the_order_of_the_heads(generator, device):
    aside = torch.tensor([1.0, 2.0**30, -(2.0**30), 3.0], device=device).view(1, 4, 1).expand(1, 4, 128 * 64).contiguous()
    flags = torch.ones(1, 4, 2, dtype=torch.int32, device=device)
    nothing = torch.zeros(1, 1, 128 * 64, device=device)
    gradients = [torch.zeros(1, heads, 128, 64, device=device).bfloat16() for heads in (4, 1, 1)]
    kernels().convert_grouped((nothing.repeat(1, 4, 1), nothing, nothing), gradients, (aside, aside), flags, 1.0, 1, 1)

    assert [{0.0}, {3.0}, {3.0}] == [set(one.flatten().tolist()) for one in gradients]  # 1 is lost beside 2^30, 3 is not


def test_what_is_not_flagged_is_never_read(generator, device):
    sums = torch.randn(1, 1, 128, 64, generator=generator, device=device)
    poison = torch.full((1, 2, 128, 64), math.nan, device=device)
    flags = torch.zeros(1, 2, 2, dtype=torch.int32, device=device)
    gradients = converted((sums.repeat(1, 2, 1, 1), sums, sums), (poison, poison), flags, 1.0, (128, 128, 128))

    assert all(bool(one.isfinite().all()) for one in gradients)
    assert torch.equal(gradients[1], gradients[2])
