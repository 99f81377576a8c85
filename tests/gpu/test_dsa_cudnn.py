"""cuDNN frontend's kernel and its hooks on a Hopper card: error, bits, fallback, canaries. Skipped where the probe says why."""

from __future__ import annotations

import pytest
import torch

from perfgate import Case, discover
from perfgate.determinism.replay import assert_replays_bit_exact

forms = discover.module("dsa.cudnn.forms")
problem = discover.module("dsa.backward.problem")
stock = discover.module("dsa.backward.stock")
SMALL = {"queries": 257, "keys": 1024, "heads": 64, "dim": 512, "topk": 128, "pattern": "random"}
SHAPES = {
    "as it is": {},
    "64 queries": {"queries": 64},
    "128 queries, 128 heads": {"queries": 128, "heads": 128},
    "129 queries, 16 heads": {"queries": 129, "heads": 16},
    "513 queries, rope": {"queries": 513, "dim": 576},
    "rope, 128 heads, holes": {"dim": 576, "heads": 128, "holes": 0.3},
    "queries without rows": {"empty": 0.5, "holes": 0.1},
    "equal indices": {"duplicates": True},
    "lengths": {"lengths": True},
    "lengths and holes, 128 heads": {"lengths": True, "holes": 0.2, "heads": 128},
    "a row hit by every query": {"hot": True},
    "recent rows": {"pattern": "local"},
    "popular rows": {"pattern": "zipf"},
    "one row of keys beyond a block": {"keys": 1024, "pattern": "local", "queries": 65},
}
HOOKED = ("exact", "split_slice")


def case(**changes):
    return Case("test", {**SMALL, **changes})


def unsupported(name="exact", **changes):
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU"
    return getattr(forms, f"supports_{name}")(case(**changes), "cuda:0")


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(unsupported()), reason=unsupported() or "supported")]


def made(**changes):
    return problem.make(case(**changes), "cuda", torch.Generator(device="cuda").manual_seed(3))


def run(name, x):
    return getattr(forms, f"run_{name}")(x)


def exactly(x):
    """(dq, dkv) in float64."""
    return stock.backward(
        {name: one.double() if torch.is_tensor(one) and one.is_floating_point() else one for name, one in x.items()},
        torch.float64,
    )


def error(actual, wanted):
    return float((actual.double() - wanted).norm() / wanted.norm().clamp(min=1e-300))


def skip_unless_supported(name, changes):
    reason = unsupported(name, **changes)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("name", HOOKED)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_hooks_change_bits_from_run_to_run_no_more_and_the_error_by_a_tenth_at_most(shape, name):
    skip_unless_supported(name, SHAPES[shape])
    x = made(**SHAPES[shape])
    wanted, default = exactly(x), run("cudnn", x)

    shown = assert_replays_bit_exact(lambda: run(name, x), replays=4, contention=True, poison=True)

    assert 3 == shown.compared
    actual = run(name, x)
    assert torch.equal(default[0].view(torch.int16), actual[0].view(torch.int16))  # dq is stock's own
    assert error(actual[1], wanted[1]) <= 1.1 * error(default[1], wanted[1])


def test_the_reach_decides_accuracy_and_speed_but_never_whether_bits_repeat():
    x = made()
    wanted = exactly(x)
    for factor in (0.0, 2.0**-12, 0.25, 4.0, float("nan")):
        y = {**x, "reach": x["reach"] * factor}

        assert_replays_bit_exact(lambda y=y: run("exact", y), replays=4, contention=True)

        assert error(run("exact", y)[1], wanted[1]) < 5e-3


def spoilt(x, kind):
    """``x`` with data that no quantum guessed beforehand can hold."""
    dout = x["dout"].clone()
    if kind == "one huge outlier":
        dout[5, 3, 7] = 2.0**60
    elif kind == "values over 12 decades":
        dout *= (10.0 ** torch.linspace(-6, 6, len(dout), device=dout.device)).to(dout.dtype)[:, None, None]
    elif kind == "one row hit by every query with equal signs":
        x["topk"][:, 1:] = -1
        x["topk"][:, 0] = 77
        dout = dout.abs() * 1e4
    rows = stock.chosen_rows(x["topk"], x["topk_length"], x["kv"].shape[0])
    out, lse = stock.forward(x["q"], x["kv"], rows, 512, x["scale"])
    return {**x, "dout": dout, "out": out, "lse": lse}


SPOILT = ("one huge outlier", "values over 12 decades", "one row hit by every query with equal signs")


def failed_rows(x):
    """How many certificates fail on ``x``."""
    kernels, launch, hook, shape = (discover.module(f"dsa.cudnn.{name}") for name in ("kernels", "launch", "hook", "shape"))
    keys, dim = x["kv"].shape
    memory = torch.zeros((shape.sums_bytes(keys, dim) + shape.tables_bytes(keys)) // 4, device="cuda")
    into = kernels.tables(memory, keys, dim)
    kernels.choose_quanta(into, x["topk"], x["topk_length"], x["reach"], keys, x["q"].shape[1])
    launch.scatter(("exact",), hook.exact, x, launch.before(x), torch.empty_like(x["q"]), memory)
    return int((into.units > 2**24).sum())


@pytest.mark.parametrize("kind", SPOILT)
def test_rows_whose_certificate_fails_are_summed_again_with_the_same_bits_every_time(kind):
    x = spoilt(made(), kind)

    assert 0 < failed_rows(x)
    assert_replays_bit_exact(lambda: run("exact", x), replays=6, contention=True, poison=True)
    wanted = exactly(x)
    assert error(run("exact", x)[1], wanted[1]) <= max(1.1 * error(run("cudnn", x)[1], wanted[1]), 4e-3)


def test_rows_that_fail_by_little_are_summed_again_without_losing_bits():
    """The first rows of a local pattern: one contribution is far above the rest, count · largest would be 2⁸ coarser."""
    x = made(pattern="local", queries=2048, keys=2048, topk=512)
    x["reach"] = x["reach"] / 4

    assert 0 < failed_rows(x)
    assert_replays_bit_exact(lambda: run("exact", x), replays=6, contention=True, poison=True)
    wanted, head = exactly(x)[1][:4], slice(0, 4)
    assert error(run("exact", x)[1][head], wanted) <= 1.1 * error(run("cudnn", x)[1][head], wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"queries": 4096, "keys": 4096, "topk": 512},
        {"queries": 129, "keys": 2048, "heads": 16, "topk": 512, "pattern": "local"},
        {"queries": 513, "keys": 4096, "topk": 512, "lengths": True},
    ],
    ids=["as usual", "few hits each", "queries with few rows"],
)
def test_certificates_hold_on_ordinary_data(changes):
    assert 0 == failed_rows(made(**changes))


@pytest.mark.parametrize("name", HOOKED)
def test_a_row_that_nobody_chose_stays_zero_and_nothing_is_written_beside_the_accumulator(name):
    kernels, launch, hook, shape, split = (
        discover.module(f"dsa.cudnn.{one}") for one in ("kernels", "launch", "hook", "shape", "split")
    )
    x = made(keys=1000, topk=64, pattern="local", queries=500)
    x["topk"][:, ::3] = -1
    x["topk"][:, 1::3] = 1000 + 3
    keys, dim = x["kv"].shape
    size, ctas, slices = shape.rows(keys) * dim, 500, 4
    inside = size + shape.tables_bytes(keys) // 4 if name == "exact" else slices * size + 2 * shape.round_up(ctas, 64)
    whole = torch.full((inside + 2048,), float("nan"), device="cuda")
    memory = whole[1024:-1024].zero_()
    dq = torch.empty_like(x["q"])
    if name == "exact":
        into = kernels.tables(memory, keys, dim)
        kernels.choose_quanta(into, x["topk"], None, x["reach"], keys, 64)
        launch.scatter(("exact",), hook.exact, x, launch.before(x), dq, memory)
        assert (into.units[keys:] == 0).all()
    else:
        order = memory[slices * size :].view(torch.int32)
        order[ctas : 2 * ctas] = kernels.turns(None, ctas, 1, slices, x["q"].device)
        launch.scatter(("split", slices), lambda: hook.split(slices), x, launch.before(x), dq, memory)
        assert (order[:ctas] == shape.THREADS).all()
        kernels.fold(memory, size, slices)

    chosen = stock.chosen_rows(x["topk"], None, keys)
    untouched = torch.ones(shape.rows(keys), dtype=torch.bool, device="cuda")
    untouched[chosen[chosen >= 0]] = False
    rows = memory[:size].view(-1, dim)
    assert (rows[untouched] == 0).all()
    assert (rows[~untouched] != 0).any(dim=1).all()
    assert torch.cat([whole[:1024], whole[-1024:]]).isnan().all()
    assert 0 == split.slice_of(0, slices)


def test_the_number_of_slices_is_part_of_the_bits_and_each_repeats():
    x = made(queries=513, topk=64)
    found = []
    for limit in (2**20 * 2, 2**20 * 16, 2**30):
        y = {**x, "max_workspace": limit}
        assert_replays_bit_exact(lambda y=y: run("split_slice", y), replays=4, contention=True)
        found.append(run("split_slice", y)[1])

    assert any(not torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", HOOKED)
def test_the_declared_workspace_is_what_is_allocated(name):
    chosen = case(queries=4096, keys=4096, topk=512)
    x = made(queries=4096, keys=4096, topk=512)
    run(name, x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    found = run(name, x)

    used = torch.cuda.max_memory_allocated() - before - sum(one.nbytes for one in found)
    assert abs(used - getattr(forms, f"workspace_{name}")(chosen)) <= 0.02 * used + 2**16
