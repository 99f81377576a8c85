"""What runs around the hooked kernel: quanta, judgement, second run."""

import pytest
import torch
import triton
import triton.language as tl

from perfgate import discover

KEYS, DIM, DIM_V, HEADS, QUERIES, TOPK = 70, 128, 64, 66, 4, 20


def kernels():
    return discover.module("dsa.cudnn.kernels")


def shape():
    return discover.module("dsa.cudnn.shape")


def quantum():
    return discover.module("dsa.cudnn.quantum")


def stock():
    return discover.module("dsa.backward.stock")


def problem(device, rows=None, amplify=None, lengths=False, dtype=torch.float16, cancels=False):
    """Inputs as ``dsa/backward`` makes them; the interpreter has no products of bf16.

    ``cancels``: heads in pairs that differ by a thousandth, but for the sign of dO.
    """
    g = torch.Generator().manual_seed(11)
    topk = torch.stack([torch.randperm(KEYS, generator=g)[:TOPK] for _ in range(QUERIES)]).int() if rows is None else rows
    length = torch.tensor([TOPK, 7, 0, 16], dtype=torch.int32) if lengths else None
    q = torch.randn(QUERIES, HEADS, DIM, generator=g).to(dtype)
    kv = torch.randn(KEYS, DIM, generator=g).to(dtype)
    dout = torch.randn(QUERIES, HEADS, DIM_V, generator=g).to(dtype)
    if cancels:
        q[:, 1::2], dout[:, 1::2] = q[:, ::2] * 1.001, -dout[:, ::2]
    if amplify is not None:
        dout = (dout.float() * amplify[:, None, None]).to(dtype)
    out, lse = stock().forward(q, kv, stock().chosen_rows(topk, length, KEYS), DIM_V, DIM**-0.5)
    x = {"q": q, "kv": kv, "topk": topk, "topk_length": length, "out": out, "lse": lse, "dout": dout}
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in x.items()} | {"scale": DIM**-0.5}


def memory(device, canary=0):
    """Zeros for the accumulator and its tables between two strips of NaN."""
    inside = (shape().sums_bytes(KEYS, DIM) + shape().tables_bytes(KEYS)) // 4
    whole = torch.zeros(canary + inside + canary, device=device)
    whole[:canary] = whole[canary + inside :] = float("nan")
    return whole, whole[canary : canary + inside]


def strips_are_whole(whole):
    return bool(torch.cat([whole[:64], whole[-64:]]).isnan().all())


def in_order(sums):
    """The accumulator's rows with their columns put in order."""
    places = [shape().place_of(column) for column in range(DIM)]
    return sums.view(-1, DIM).cpu()[:KEYS, places]


def arguments(x):
    return [x[name] for name in ("q", "kv", "topk", "topk_length", "out", "lse", "dout", "scale")]


def failed_everywhere(tables, first=100):
    tables.units.fill_(2**24 + 1)
    tables.constants.view(torch.float32).fill_(quantum().bias(first))


def second_exponents(tables, rows, first=100):
    """By row, the biased exponent that the survey left in ``tables`` proves."""
    largest = tables.largest.view(torch.float32)
    return {
        row: quantum().exponent_again(int(tables.counts[row]), float(largest[row]), int(tables.units[row]) - (2**24 + 1), first)
        for row in rows
    }


def least_hits(monkeypatch):
    """Few, so that there are rows above and below."""
    for module in (kernels(), quantum()):
        monkeypatch.setattr(module, "LEAST_HITS", 6)


def quanta_of(sums, exponent):
    return sums.double() / quantum().quantum(exponent)


@triton.jit
def constants_again(counts, largest, units, constants, found, ASKED: tl.constexpr):
    row = tl.arange(0, 16)
    tl.store(found + row, ASKED(counts, largest, units, constants, row, row >= 0))


def test_the_columns_of_a_group_of_sixteen_are_permuted_and_none_is_lost():
    places = [shape().place_of(column) for column in range(576)]

    assert list(range(576)) == sorted(places)
    assert [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15] == places[:16]
    assert all(column // 16 == place // 16 for column, place in enumerate(places))


def test_the_parts_fill_the_allocation_without_overlap(device):
    _, inside = memory(device)
    parts = kernels().tables(inside, KEYS, DIM)
    for index, part in enumerate(parts):
        part.fill_(index + 1)

    assert all((part == index + 1).all() for index, part in enumerate(parts))
    assert shape().rows(KEYS) == 128 == parts.units.shape[0]
    end = (parts.failed.data_ptr() - inside.data_ptr()) // 4 + shape().BLOCK
    assert inside.numel() == end


@pytest.mark.parametrize(
    ("reach", "lengths"),
    [(1.0, True), (3e-7, False), (0.0, False), (float("nan"), False), (float("inf"), False), (-1.0, False), (1e30, False)],
)
def test_every_row_gets_the_constant_of_its_hits(reach, lengths, device, monkeypatch):
    least_hits(monkeypatch)
    x = problem(device, lengths=lengths)
    x["topk"][0, 3] = -1
    x["topk"][1, 0] = KEYS
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)

    kernels().choose_quanta(tables, x["topk"], x["topk_length"], torch.tensor([reach], device=device), KEYS, HEADS)

    rows = stock().chosen_rows(x["topk"], x["topk_length"], KEYS).cpu()
    hits = torch.bincount(rows[rows >= 0], minlength=128)
    wanted = [quantum().bias(quantum().exponent_for(int(n), 1, quantum().f32(reach), 2)) for n in hits]
    assert wanted == tables.constants.view(torch.float32).tolist()
    assert [quantum().bits(one) >> 23 for one in wanted] == tables.largest.view(torch.uint8)[:128].tolist()
    assert (tables.largest.view(torch.uint8)[128:] == 0).all()
    assert (hits.clamp(min=1) * 2).tolist() == tables.counts.tolist()


def test_the_judgement_makes_room_for_the_second_run_where_the_exponents_were(device):
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    tables.largest.fill_(0x7F7F7F7F)
    tables.counts.fill_(9)

    kernels().judge(tables, DIM)

    assert (tables.largest == 0).all()
    assert (tables.counts == 0).all()
    assert 0 == int(tables.failed)


def test_only_one_query_in_every_so_many_is_counted(device, monkeypatch):
    monkeypatch.setattr(shape(), "STRIDE", 2)
    least_hits(monkeypatch)
    x = problem(device)
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)

    kernels().choose_quanta(tables, x["topk"], None, torch.tensor([1.0], device=device), KEYS, HEADS)

    hits = torch.bincount(x["topk"][::2].reshape(-1).long().cpu(), minlength=128)
    wanted = [quantum().bias(quantum().exponent_for(int(n), 2, 1.0, 2)) for n in hits]
    assert wanted == tables.constants.view(torch.float32).tolist()


def test_a_row_whose_certificate_fails_is_cleared_and_the_flag_raised(device):
    whole, inside = memory(device, canary=64)
    tables = kernels().tables(inside, KEYS, DIM)
    tables.sums.fill_(1.0)
    tables.units[3] = 2**24
    tables.units[68] = 2**24 + 1
    tables.units[69] = 2**40
    tables.units[70] = -(2**62)  # wrapped around

    kernels().judge(tables, DIM)

    cleared = (tables.sums.view(-1, DIM) == 0).all(dim=1).nonzero().flatten()
    assert [68, 69, 70] == cleared.tolist()
    assert [2**24, *[2**24 + 1] * 3] == tables.units[[3, 68, 69, 70]].tolist()
    assert 1 == int(tables.failed)
    assert strips_are_whole(whole)


def test_a_row_whose_quantum_was_far_too_coarse_is_cleared_and_marked(device):
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    tables.sums.fill_(1.0)
    tables.counts.fill_(100)
    tables.counts[7] = 2**20
    tables.units.fill_(64 * 100)
    tables.units[5] = 64 * 100 - 1
    tables.units[6] = 0
    tables.units[7] = 2**18  # many hits, few quanta each: no finer quantum would hold them

    kernels().judge(tables, DIM)

    assert [5] == (tables.sums.view(-1, DIM) == 0).all(dim=1).nonzero().flatten().tolist()
    assert [2**24 + 1, 0, 2**18] == tables.units[5:8].tolist()
    assert 1 == int(tables.failed)
    assert (tables.counts == 0).all()


@pytest.mark.parametrize(("first", "rule"), [(90, "largest"), (107, "sum"), (115, "sum"), (150, "largest")])
def test_a_row_is_added_again_with_the_finer_of_two_quanta_that_its_survey_proves(first, rule, device):
    """The first one is far too fine, near, near, or far too coarse for its sum to say something."""
    x = problem(device)
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    failed_everywhere(tables, first)

    kernels().judge(tables, DIM)
    kernels().add_again(tables, *arguments(x))

    row, largest = int(x["topk"][0, 0]), tables.largest.view(torch.float32)
    of_largest = quantum().exponent_of_largest(int(tables.counts[row]), float(largest[row]))
    exponent = second_exponents(tables, [row], first)[row]
    quanta = quanta_of(in_order(tables.sums)[row], exponent)
    assert rule == ("sum" if exponent < of_largest else "largest")
    assert torch.equal(quanta, quanta.round())
    assert not torch.equal(quanta / 2, (quanta / 2).round())
    assert quanta.abs().max() <= 2**24


@pytest.mark.parametrize(("first", "lengths"), [(60, True), (107, False), (130, True)])
def test_the_survey_is_a_sum_over_the_contributions_that_are_added(first, lengths, device):
    """One query a row: what is added is all that was surveyed."""
    x = problem(device, lengths=lengths, rows=torch.arange(KEYS // QUERIES * QUERIES, dtype=torch.int32).view(QUERIES, -1))
    x["topk_length"] = None if x["topk_length"] is None else x["topk_length"].clamp(max=KEYS // QUERIES)
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    failed_everywhere(tables, first)
    kernels().judge(tables, DIM)

    kernels().add_again(tables, *arguments(x))

    rows = stock().chosen_rows(x["topk"], x["topk_length"], KEYS).flatten().tolist()
    largest = tables.largest.view(torch.float32)
    for row in (row for row in rows if row >= 0):
        totals = int(tables.units[row]) - (2**24 + 1)
        assert 2 == tables.counts[row]  # tiles of heads
        assert quantum().surveyed(float(largest[row]), first) <= totals <= 2 * quantum().surveyed(float(largest[row]), first)
    assert set(rows) - {-1} == set((tables.counts > 0).nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("count", "largest", "total", "first"),
    [
        (2048, 2.0**19.5, int(2**23.65), 127), (2048, 2.0**19.5, 2**24 - 2048, 127), (2048, 2.0**19.5, 2**24 - 2047, 127),
        (2048, 2.0**19.5, 2**25 - 4096, 127), (2048, 2.0**19.5, 2**25 - 4095, 127), (3, 2.0**21, 2**22, 127),
        (3, 2.0**22, 2**23, 127), (3, 2.0**23, 2**23 + 2, 127), (5, 1.0, 5, 140), (5, 1.0, 2**32 - 1, 127),
        (5, 1.0, 2**32, 127), (5, 1.0, 5 * 2**32, 1), (2**23, 1.0, 2**23, 127), (2**23 + 1, 1.0, 2**23 + 1, 127),
        (2**24, 1.0, 2**24, 127), (1, 0.0, 0, 1), (1, 2.0**-149, 1, 1), (1, 2.0**-149, 1, 230), (1, 3.0e38, 2**22, 230),
        (4, 3.0e38, 2**24, 230), (9, 3.0e38, 9 * 2**32, 1), (2, 2.0**127, 2**24, 230),
    ],
)  # fmt: skip
def test_the_kernel_takes_the_exponent_that_the_arithmetic_in_python_takes(count, largest, total, first, device):
    """At the limits of either rule."""
    counts, tops, units, constants = (
        torch.zeros(16, dtype=one, device=device) for one in (*[torch.int32] * 2, torch.int64, torch.int32)
    )
    counts.fill_(count)
    tops.view(torch.float32).fill_(largest)
    units.fill_(2**24 + 1 + total)
    constants.view(torch.float32).fill_(quantum().bias(first))
    found = torch.empty(16, device=device)

    constants_again[(1,)](counts, tops, units, constants, found, kernels()._constant_again)

    exponent = quantum().exponent_again(count, quantum().f32(largest), total, first)
    if exponent > quantum().MOST_EXPONENT:
        assert found.isnan().all()
    else:
        assert [quantum().bias(exponent)] * 16 == found.tolist()


def test_nothing_is_cleared_and_no_second_run_starts_where_every_certificate_holds(device):
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    tables.sums.fill_(1.0)
    tables.units.fill_(2**24)
    before = inside.clone()

    kernels().judge(tables, DIM)
    kernels().add_again(tables, *arguments(problem(device)))

    assert torch.equal(before.view(torch.int32), inside.view(torch.int32))


@pytest.mark.parametrize("lengths", [False, True])
def test_the_second_run_is_the_gradient(lengths, device):
    x = problem(device, lengths=lengths)
    x["topk"][0, 3] = -1
    x["topk"][1, 5:] = -1
    x["topk"][3] = -1
    whole, inside = memory(device, canary=64)
    tables = kernels().tables(inside, KEYS, DIM)
    failed_everywhere(tables)

    kernels().judge(tables, DIM)
    kernels().add_again(tables, *arguments(x))

    wanted = stock().backward({name: one.cpu() if torch.is_tensor(one) else one for name, one in x.items()}, torch.float64)[1]
    actual = in_order(tables.sums)
    error = float((actual.double() - wanted.double()).norm() / wanted.double().norm())
    assert error < 2e-3
    untouched = torch.ones(KEYS, dtype=torch.bool)
    rows = stock().chosen_rows(x["topk"], x["topk_length"], KEYS).cpu()
    untouched[rows[rows >= 0]] = False
    assert untouched.any()
    assert (actual[untouched].view(torch.int32) == 0).all()
    assert (tables.sums.view(-1, DIM)[KEYS:] == 0).all()
    assert strips_are_whole(whole)


DATA = {
    "one row hit by every query, equal signs": {"rows": torch.tensor([[9] * TOPK] * QUERIES, dtype=torch.int32)},
    "values over 12 decades": {"amplify": 10.0 ** torch.linspace(-6, 6, QUERIES)},
    "one huge outlier": {"amplify": torch.tensor([1.0, 1.0, 1e12, 1.0])},
    "twice the same": {"rows": torch.tensor([[1, 2, 3, 4] * 5] * QUERIES, dtype=torch.int32)},
    "heads that cancel": {"cancels": True},
    "one query far above the rest": {"amplify": torch.tensor([1.0, 300.0, 1.0, 1.0])},
}


@pytest.mark.parametrize(("name", "first"), [*((name, 107) for name in DATA), ("values over 12 decades", 60)])
def test_no_order_of_queries_changes_a_bit_of_the_second_run(name, first, device):
    x = problem(device, **DATA[name], dtype=torch.float32)
    order = torch.tensor([3, 1, 0, 2], device=device)
    shuffled = {key: x[key][order] if key in ("q", "topk", "out", "lse", "dout") else x[key] for key in x}
    found = []
    for one in (x, shuffled):
        _, inside = memory(device)
        tables = kernels().tables(inside, KEYS, DIM)
        failed_everywhere(tables, first)
        kernels().judge(tables, DIM)
        kernels().add_again(tables, *arguments(one))
        found.append(tables)

    assert torch.equal(found[0].sums.view(torch.int32), found[1].sums.view(torch.int32))
    assert torch.equal(found[0].counts, found[1].counts)
    assert torch.equal(found[0].units, found[1].units)
    assert found[0].sums.isfinite().all()
    rows, left = x["topk"].unique().tolist(), in_order(found[0].sums).double()
    for row, exponent in second_exponents(found[0], rows, first).items():  # what is left fits 24 bits
        quanta = quanta_of(left[row], exponent)
        assert torch.equal(quanta, quanta.round())
        assert quanta.abs().max() <= 2**24


def test_only_failed_rows_are_added_again(device):
    x = problem(device)
    row = int(x["topk"][0, 0])
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    tables.units[row] = 2**25
    tables.sums.fill_(5.0)

    kernels().judge(tables, DIM)
    kernels().add_again(tables, *arguments(x))

    rest = [other for other in range(KEYS) if other != row]
    assert (in_order(tables.sums)[rest] == 5.0).all()
    assert (in_order(tables.sums)[row] != 5.0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_reaches_its_own_rows_only(value, device):
    x = problem(device)
    x["dout"][2, 0, 0] = value
    _, inside = memory(device)
    tables = kernels().tables(inside, KEYS, DIM)
    failed_everywhere(tables)

    kernels().judge(tables, DIM)
    kernels().add_again(tables, *arguments(x))

    spoilt = ~in_order(tables.sums).isfinite().all(dim=1)
    wanted = torch.zeros(KEYS, dtype=torch.bool)
    wanted[x["topk"][2].long().cpu()] = True
    assert torch.equal(wanted, spoilt)
