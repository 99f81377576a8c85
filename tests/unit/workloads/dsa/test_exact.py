"""Exact accumulation: the certificate proves it, data made to fail it are added again, whatever ``reach`` was."""

import pytest
import torch

from perfgate import discover
from tests.unit.workloads.dsa.problems import arguments, error, forwarded, in_float64, kernels, made, op, run, same

quanta = discover.module("dsa.quanta.kernels")


@pytest.fixture
def judged(monkeypatch):
    """(books, verdict, sums after the clearing) of every judgement."""
    seen, judge = [], kernels.judge

    def watch(books, sums):
        verdict = judge(books, sums)
        seen.append((books, verdict, sums))
        return verdict

    monkeypatch.setattr(kernels, "judge", watch)
    return seen


def exact(x, reach):
    value = torch.full((1,), reach, dtype=torch.float32, device=x["q"].device)
    return kernels.backward_exact(**arguments(x), reach=value)


def one_sign(x):
    """One row hit by every query with equal signs."""
    x["topk"][:, 0] = 7
    return forwarded({**x, "q": x["q"].abs(), "kv": x["kv"].abs(), "dout": x["dout"].abs()})


def twelve_decades(x):
    """Probabilities and gradients whose products span more than twelve decades."""
    x = forwarded(x)
    decades = torch.linspace(0, 14, x["lse"].numel(), device=x["q"].device).view(x["lse"].shape)
    scale = torch.linspace(-13, 13, len(x["q"]), device=x["q"].device).exp2()[:, None, None]
    return {**x, "lse": x["lse"] + decades, "dout": (x["dout"] * scale).half()}


def outlier(x):
    """One huge element in one query's gradient."""
    x["dout"][1, 2, 3] = 3e4
    return x


def plain(x):
    return x


HARD = {"one sign": one_sign, "twelve decades": twelve_decades, "one huge outlier": outlier, "plain": plain}


def hard(name, device, generator, **changes):
    return HARD[name](made(device, generator, **{"queries": 5, **changes}))


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("reach", [0.0, 1e-6, 1e30])
def test_where_the_quantum_was_too_fine_or_too_coarse_the_second_run_gives_the_same_bits_in_every_order(
    name, reach, device, generator, judged
):
    x = hard(name, device, generator)
    back = {**x, **{key: x[key].flip(0).contiguous() for key in ("q", "topk", "out", "lse", "dout")}}

    dq, dkv, _ = exact(x, reach)

    books, verdict, _ = judged[0]
    hit = books.counts > 0
    assert bool((verdict.failed[hit] == 1).any())
    assert verdict.any_failed.item() == 1
    assert same(dkv, exact(back, reach)[1])
    assert same(dq.flip(0), exact(back, reach)[0])
    expected = op.compute_reference(in_float64(x))[1]
    assert error(dkv, expected) <= 1.1 * error(run("triton_atomic", x)[1], expected)


@pytest.mark.parametrize("name", HARD)
def test_two_tiles_of_heads_and_rotary_columns_are_added_again_too(name, device, generator, judged):
    x = hard(name, device, generator, heads=72, dim=128, queries=3)

    dkv = exact(x, 0.0)[1]

    assert judged[0][1].any_failed.item() == 1
    expected = op.compute_reference(in_float64(x))[1]
    assert error(dkv, expected) <= 1.1 * error(run("triton_atomic", x)[1], expected)


def test_only_rows_that_failed_are_added_again(device, generator, judged):
    x = made(device, generator, queries=5)
    x["topk"] %= 32
    x["topk"][4] = torch.arange(40, dtype=torch.int32, device=device) % 2 + 40  # only the loud query has rows 40 and 41
    x["dout"][4] *= 2.0**9
    x = forwarded(x)
    clean = exact(x, 0.0)
    mean = exact({**x, "dout": x["dout"].index_fill(0, torch.tensor([4], device=device), 0.0)}, 0.0)[2].item() / 2

    judged.clear()
    tight = exact(x, mean)

    books, verdict, _ = judged[0]
    failed = verdict.failed.bool()
    assert {40, 41} == set(failed.nonzero().flatten().tolist())
    assert bool((books.units[~failed] <= 2**24).all())
    assert error(tight[1], clean[1].double()) < 1e-3


@pytest.mark.parametrize("name", ["plain", "one sign"])
def test_what_a_step_hands_on_needs_no_second_run_in_the_next_even_if_everything_doubles(name, device, generator, judged):
    x = hard(name, device, generator)
    _, _, reach = exact(x, 0.0)
    louder = {**x, "dout": x["dout"] * 2}

    _, first, again = kernels.backward_exact(**arguments(x), reach=reach)
    kernels.backward_exact(**arguments(louder), reach=again)

    assert [1, 0, 0] == [verdict.any_failed.item() for _, verdict, _ in judged]
    assert error(first, op.compute_reference(in_float64(x))[1]) < 1e-3


def test_the_largest_element_that_a_row_receives_is_booked(device, generator, judged):
    x = made(device, generator, queries=4, heads=72, dim=128)
    largest = torch.zeros(64, dtype=torch.float64)
    for part, rows, _, ds, p in discover.module("dsa.backward.stock").gradients(in_float64(x), torch.float64):
        for tile in (slice(0, 64), slice(64, 72)):
            added = ds[:, tile].transpose(1, 2) @ x["q"][part, tile].double()
            added[:, :, :64] += p[:, tile].transpose(1, 2) @ x["dout"][part, tile].double()
            for row, value in zip(rows.flatten().tolist(), added.abs().amax(dim=2).flatten().tolist(), strict=True):
                largest[row] = max(largest[row], value)

    exact(x, 1.0)

    torch.testing.assert_close(judged[0][0].largest.view(torch.float32).double().cpu(), largest, rtol=2e-3, atol=1e-6)


def test_sums_of_certified_rows_are_multiples_of_their_quantum_within_24_bits(device, generator, judged):
    x = made(device, generator, queries=5)

    exact(x, x["reach"].item())

    books, verdict, sums = judged[0]
    assert verdict.any_failed.item() == 0
    quanta_of_rows = torch.exp2((books.exponents - 127).double())[:, None]
    in_quanta = sums.double() / quanta_of_rows
    assert torch.equal(in_quanta.round(), in_quanta)
    assert bool((in_quanta.abs().amax(dim=1) <= books.units).all())
    assert int(books.units.max()) <= 2**24


def test_a_row_that_receives_anything_not_finite_is_nan_always(device, generator):
    x = made(device, generator)
    x["q"][1, 2, 3] = float("inf")

    dkv = exact(x, x["reach"].item())[1]

    chosen = torch.zeros(64, dtype=torch.bool, device=device)
    chosen[x["topk"][1].long()] = True
    assert bool(dkv[chosen].isnan().all())
    assert bool(dkv[~chosen].isfinite().all())
