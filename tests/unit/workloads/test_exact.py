import pytest
import torch

from perfgate import discover


def kernels():
    return discover.module("blocks.exact.kernels")


def small_redo(monkeypatch):
    monkeypatch.setattr(kernels(), "REDO_PROGRAMS", 2)  # the interpreter runs programs one by one


def quantum(count, largest):
    """2^(c + m − 23) with count < 2^c and largest < 2^m, from Python's own float arithmetic."""
    import math

    return 2.0 ** max(count.bit_length() + math.frexp(largest)[1] - 23, -126)


def expected(values, ids, bins):
    """Integers in Python: every row divided by its id's quantum, rounded to nearest even, added exactly."""
    out = torch.zeros(bins, values.shape[1], dtype=torch.float64)
    for key in range(bins):
        rows = values[ids == key].double()
        if len(rows):
            q = quantum(len(rows), float(rows.abs().max()))
            out[key] = (rows / q).round().sum(dim=0) * q
    return out.float()


VALUES = {
    "normal": lambda g: torch.randn(24, 9, generator=g),
    "one sign, equal": lambda g: torch.full((24, 9), 3.7),
    "twelve decades": lambda g: torch.randn(24, 9, generator=g) * 10.0 ** torch.randint(-6, 7, (24, 1), generator=g),
    "one huge outlier": lambda g: torch.randn(24, 9, generator=g).index_fill_(0, torch.tensor([17]), 1e30),
    "tiny": lambda g: torch.randn(24, 9, generator=g) * 1e-30,
    "subnormal": lambda g: torch.randn(24, 9, generator=g) * 1e-40,
    "powers of two": lambda g: 2.0 ** torch.randint(-3, 4, (24, 9), generator=g),
}


def made(name, device):
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(-1, 4, (24,), generator=g)
    return VALUES[name](g).to(device), ids.to(device)


@pytest.mark.parametrize("name", VALUES)
def test_the_sum_is_the_integer_sum_of_quanta_bit_for_bit(name, device):
    values, ids = made(name, device)

    actual = kernels().exact_sum(values, ids, 4).cpu()

    wanted = expected(values.cpu(), ids.cpu(), 4) + 0.0  # −0 of Python's rounding reads +0
    assert torch.equal(wanted.view(torch.int32), actual.view(torch.int32))


@pytest.mark.parametrize("name", ["normal", "one sign, equal", "twelve decades", "one huge outlier"])
@pytest.mark.parametrize("hint", ["none", "too small", "right", "generous"])
def test_no_order_of_rows_changes_a_bit(name, hint, device, monkeypatch):
    small_redo(monkeypatch)
    values, ids = made(name, device)
    _, right = kernels().certified_sum(values, ids, 4, torch.zeros(4, dtype=torch.int32, device=device))
    exponents = {"none": right * 0, "too small": right - 12, "right": right, "generous": right + 3}[hint]
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3)).to(device)

    plain = kernels().exact_sum(values, ids, 4)
    certified, following = kernels().certified_sum(values, ids, 4, exponents)

    assert torch.equal(plain.view(torch.int32), kernels().exact_sum(values[order], ids[order], 4).view(torch.int32))
    shuffled, again = kernels().certified_sum(values[order], ids[order], 4, exponents)
    assert torch.equal(certified.view(torch.int32), shuffled.view(torch.int32))
    assert torch.equal(following, again)
    if hint != "generous":  # none and too small fail their certificates and end at the quantum that needs no hint
        assert torch.equal(plain.view(torch.int32), certified.view(torch.int32))


@pytest.mark.parametrize("name", ["normal", "one sign, equal", "twelve decades", "one huge outlier", "powers of two"])
def test_quanta_from_a_certificate_hold_in_the_next_step_even_if_values_double(name, device, monkeypatch):
    small_redo(monkeypatch)
    values, ids = made(name, device)
    _, first = kernels().certified_sum(values, ids, 4, torch.zeros(4, dtype=torch.int32, device=device))

    _, second = kernels().certified_sum(values, ids, 4, first)
    third_sum, third = kernels().certified_sum(values * 2, ids, 4, second)

    assert (second <= first + 1).all()  # at most the margin coarser than what count and magnitude prove
    assert (third <= second + 1).all()  # twice the values: one power of two more
    for key in range(4):  # the hinted quantum was used, so the certificate held: a factor of two is within the margin
        q = 2.0 ** (int(second[key]) - 127)
        wanted = (2 * values[ids == key].double() / q).round().sum(dim=0) * q
        assert torch.equal(wanted.float(), third_sum[key])


def test_without_rounding_the_order_does_show(device):
    values, _ = made("normal", device)
    rows = values.cpu()

    forward, backward = torch.zeros(9), torch.zeros(9)
    for row in rows:
        forward = forward + row
    for row in rows.flip(0):
        backward = backward + row

    assert not torch.equal(forward, backward)


def test_a_certificate_that_holds_keeps_the_hinted_quantum(device, monkeypatch):
    small_redo(monkeypatch)
    values = torch.tensor([[1.0 + 2**-10], [1.0]], device=device)
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    exponents = torch.tensor([127 - 4], dtype=torch.int32, device=device)  # q = 1/16

    actual, _ = kernels().certified_sum(values, ids, 1, exponents)

    assert actual.item() == 2.0


def test_a_sum_of_exactly_two_to_the_24_quanta_is_still_certified_and_one_more_is_not(device, monkeypatch):
    small_redo(monkeypatch)
    exponents = torch.tensor([127], dtype=torch.int32, device=device)  # q = 1
    ids = torch.zeros(5, dtype=torch.int64, device=device)
    four = torch.full((5, 1), 2.0**22, device=device)
    four[4] = 0.25  # rounds to 0, but counts as 1 quantum

    held, _ = kernels().certified_sum(four[:4], ids[:4], 1, exponents)
    failed, following = kernels().certified_sum(four, ids, 1, exponents)

    assert held.item() == 2.0**24
    assert failed.item() == 2.0**24  # summed again with the quantum of its own count and magnitude
    assert following.item() > 127


@pytest.mark.parametrize(("special", "outcome"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")])
def test_nan_and_inf_reach_their_own_output_only(special, outcome, device, monkeypatch):
    small_redo(monkeypatch)
    values, ids = made("normal", device)
    clean = kernels().exact_sum(values, ids, 4)
    row = int((ids == 2).nonzero()[0])
    values[row, 4] = special

    for actual in (
        kernels().exact_sum(values, ids, 4),
        kernels().certified_sum(values, ids, 4, torch.zeros(4, dtype=torch.int32, device=device))[0],
    ):
        assert str(actual[2, 4].item()) == outcome
        others = torch.arange(4, device=device) != 2
        assert torch.equal(clean[others], actual[others])


def test_values_too_large_for_any_quantum_give_nan_always(device):
    values = torch.full((4, 2), 3e38, device=device)

    actual = kernels().exact_sum(values, torch.zeros(4, dtype=torch.int64, device=device), 1)

    assert actual.isnan().all()


def test_the_error_is_at_most_half_a_quantum_per_contribution(device):
    values, ids = made("normal", device)
    exact = torch.zeros(4, 9, dtype=torch.float64, device=device)
    exact.index_add_(0, ids.clamp(min=0), values.double() * (ids >= 0)[:, None])

    error = (kernels().exact_sum(values, ids, 4).double() - exact).abs()

    for key in range(4):
        rows = values[ids == key]
        if len(rows):
            assert error[key].max().item() <= len(rows) * quantum(len(rows), float(rows.abs().max())) / 2


def test_nothing_to_add_gives_zeros(device, monkeypatch):
    small_redo(monkeypatch)
    values, ids = torch.empty(0, 4, device=device), torch.empty(0, dtype=torch.int64, device=device)

    assert torch.equal(torch.zeros(3, 4, device=device), kernels().exact_sum(values, ids, 3))
    assert torch.equal(
        torch.zeros(3, 4, device=device),
        kernels().certified_sum(values, ids, 3, torch.zeros(3, dtype=torch.int32, device=device))[0],
    )


@pytest.mark.parametrize(
    ("error", "words", "values", "ids"),
    [
        (ValueError, "values has shape", torch.ones(3, 4), torch.zeros(2, dtype=torch.int64)),
        (TypeError, "values is int64", torch.ones(2, 4, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
        (TypeError, "ids is float32", torch.ones(2, 4), torch.zeros(2)),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, values, ids, device):
    with pytest.raises(error, match=words):
        kernels().exact_sum(values.to(device), ids.to(device), 2)
