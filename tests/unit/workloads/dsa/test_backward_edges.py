"""What the backward's kernels must not touch, what they hand through, and what they refuse."""

import pytest
import torch

from tests.unit.workloads.dsa.problems import error, forwarded, in_float64, made, op, run, same

TRITON = ["triton_atomic", "triton_exact", "sorted_segment"]


@pytest.fixture
def canaries(monkeypatch):
    """Every buffer that a kernel is given is allocated with guards on both sides; calling this tells which were touched."""
    guard, buffers = 4096, []
    zeros, empty = torch.zeros, torch.empty

    def guarded(shape, clear, options):
        length = torch.Size(shape).numel() * torch.empty((), dtype=options["dtype"]).element_size()
        buffer = torch.full((length + 2 * guard,), 0x5A, dtype=torch.uint8, device=options["device"])
        view = buffer[guard : guard + length].view(options["dtype"]).view(shape)
        buffers.append((buffer, length))
        return view.zero_() if clear else view

    def wanted(shape, options):
        return len(shape) == 1 and isinstance(shape[0], tuple) and {"dtype", "device"} <= set(options) and 0 not in shape[0]

    def pick(original, clear):
        return lambda *shape, **options: (
            guarded(shape[0], clear, options) if wanted(shape, options) else original(*shape, **options)
        )

    monkeypatch.setattr(torch, "zeros", pick(zeros, True))
    monkeypatch.setattr(torch, "empty", pick(empty, False))

    def touched():
        ends = [torch.cat((buffer[:guard], buffer[guard + length :])) for buffer, length in buffers]
        return len(buffers), sum(not bool((one == 0x5A).all()) for one in ends)

    return touched


@pytest.mark.parametrize("implementation", TRITON)
def test_entries_outside_the_rows_touch_nothing_around_the_accumulator_and_no_row(implementation, device, generator, canaries):
    x = made(device, generator, queries=4, dim=128)
    x["topk"][:, ::3] = torch.tensor([-1, -7, 64, 2**31 - 1], dtype=torch.int32, device=device)[:, None]
    x["topk"][:, 1::3] %= 32  # rows 32 to 63 are chosen by the last third only, and those are taken away too
    x["topk"][:, 2::3] %= 32
    x["kv"][32:] = float("nan")  # what nobody chose is not even read
    x = forwarded(x)

    dq, dkv = run(implementation, x)

    buffers, touched = canaries()
    assert buffers >= 2  # the accumulator and whatever else the form allocates
    assert touched == 0
    assert bool((dkv[32:] == 0).all())
    assert bool(dq.isfinite().all())
    assert error(dkv[:32], op.compute_reference(in_float64({**x, "kv": x["kv"].nan_to_num()}))[1][:32]) < 1e-3


@pytest.mark.parametrize("implementation", TRITON)
def test_a_length_beyond_the_entries_is_cut_and_nothing_behind_a_length_is_read(implementation, device, generator):
    x = made(device, generator, queries=4)
    lengths = torch.tensor([0, 7, 40, 41], dtype=torch.int32, device=device)
    cut = x["topk"].clone()
    for query, length in enumerate(lengths.tolist()):
        cut[query, length:] = -1
    expected = run(implementation, forwarded({**x, "topk": cut}))

    actual = run(implementation, forwarded({**x, "topk_length": lengths}))

    assert all(same(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("implementation", TRITON)
def test_a_nan_in_one_querys_gradient_stays_in_its_dq_and_in_the_rows_that_it_chose(implementation, device, generator):
    x = made(device, generator)
    clean = run(implementation, x)
    dout = x["dout"].clone()
    dout[1, 3, 5] = float("nan")

    dq, dkv = run(implementation, {**x, "dout": dout})

    chosen = torch.zeros(64, dtype=torch.bool, device=device)
    chosen[x["topk"][1].long()] = True
    assert same(clean[1][~chosen], dkv[~chosen])
    assert bool(dkv[chosen].isnan().any(dim=1).all())
    assert same(clean[0][[0, 2]], dq[[0, 2]])
    assert bool(dq[1, 3].isnan().all())


@pytest.mark.parametrize("implementation", TRITON)
def test_no_queries_give_zeros_and_an_empty_gradient(implementation, device, generator):
    x = made(device, generator)
    none = {name: x[name][:0] for name in ("q", "topk", "out", "lse", "dout")}

    dq, dkv = run(implementation, {**x, **none})

    assert (0, 16, 64) == tuple(dq.shape)
    assert torch.equal(torch.zeros_like(x["kv"]), dkv)


@pytest.mark.parametrize(
    ("error_type", "words", "change"),
    [
        (ValueError, "kv has shape", lambda x: {"kv": x["kv"][:, :32].contiguous()}),
        (ValueError, "topk has shape", lambda x: {"topk": x["topk"][1:]}),
        (ValueError, "lse has shape", lambda x: {"lse": x["lse"].T.contiguous()}),
        (ValueError, "dout has shape", lambda x: {"dout": x["dout"][:, 1:].contiguous()}),
        (TypeError, "topk is int64", lambda x: {"topk": x["topk"].long()}),
        (TypeError, "q is float32", lambda x: {"q": x["q"].float()}),
        (TypeError, "lse is float16", lambda x: {"lse": x["lse"].half()}),
        (TypeError, "topk_length is int64", lambda x: {"topk_length": torch.ones(3, dtype=torch.int64)}),
        (ValueError, "topk_length has shape", lambda x: {"topk_length": torch.ones(4, dtype=torch.int32)}),
        (ValueError, "kv has strides", lambda x: {"kv": x["kv"].T.contiguous().T}),
        (ValueError, "one device", lambda x: {"lse": x["lse"].to("meta")}),
        (ValueError, "multiples of 64", lambda x: {"q": x["q"][:, :, :48].contiguous(), "kv": x["kv"][:, :48].contiguous()}),
    ],
)
@pytest.mark.parametrize("implementation", TRITON)
def test_inputs_that_do_not_fit_are_refused_by_name(error_type, words, change, implementation, device, generator):
    x = made(device, generator)
    x = {**x, **{name: value.to(x["q"].device) if value.device.type != "meta" else value for name, value in change(x).items()}}

    with pytest.raises(error_type, match=words):
        run(implementation, x)


def test_rows_out_of_range_are_named_under_the_switch(device, generator, monkeypatch):
    monkeypatch.setenv("PERFGATE_CHECK_INPUTS", "1")
    x = made(device, generator)
    x["topk"][0, 0] = 64

    with pytest.raises(IndexError, match="topk holds 64"):
        run("triton_atomic", x)
