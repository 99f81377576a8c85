"""Counts, quanta, certificates and verdicts, each against plain Python."""

import math

import pytest
import torch

from perfgate import discover

quanta = discover.module("dsa.quanta.kernels")


def tensor(values, dtype, device):
    return torch.tensor(values, dtype=dtype, device=device)


@pytest.mark.parametrize("lengths", [False, True])
def test_rows_are_counted_as_often_as_they_are_chosen(lengths, device, generator):
    topk = torch.randint(-3, 12, (5, 70), device=device, generator=generator).to(torch.int32)
    cut = tensor([0, 1, 69, 70, 99], torch.int32, device) if lengths else None
    expected = [0] * 10
    for query, row in enumerate(topk.tolist()):
        for one in row[: cut[query] if lengths else None]:
            if 0 <= one < 10:
                expected[one] += 1

    assert expected == quanta.count_rows(topk, cut, 10).tolist()


def test_nothing_chosen_counts_nothing(device):
    assert [0, 0] == quanta.count_rows(torch.empty(3, 0, dtype=torch.int32, device=device), None, 2).tolist()


@pytest.mark.parametrize("reach", [1.0, 0.37, 1e-20, 3e20])
@pytest.mark.parametrize("tiles", [1, 2])
def test_the_quantum_is_the_smallest_power_of_two_that_holds_the_expected_sum_in_24_bits(reach, tiles, device):
    counts = [0, 1, 2, 3, 1000, 2048, 16384]

    books = quanta.open_books(tensor(counts, torch.int32, device), tensor([reach], torch.float32, device), tiles)

    for count, exponent in zip(counts, books.exponents.tolist(), strict=True):
        expected = (count * tiles + 64) * float(tensor([reach], torch.float32, "cpu")) / 4
        q = 2.0 ** (exponent - 127)
        assert 2**23 * q <= expected < 2**24 * q


@pytest.mark.parametrize("reach", [0.0, 1e-45, float("nan"), float("inf"), -1.0])
def test_without_a_step_before_the_quantum_is_the_finest(reach, device):
    books = quanta.open_books(tensor([0, 5], torch.int32, device), tensor([reach], torch.float32, device), 1)

    assert [1, 1] == books.exponents.tolist()


def books_of(device, counts, exponents, units, bounds, tiles=1):
    return quanta.Books(
        tensor(counts, torch.int32, device), tensor(exponents, torch.int32, device), tensor(units, torch.int64, device),
        tensor(bounds, torch.float32, device).view(torch.int32), tiles,
    )  # fmt: skip


def test_a_certificate_of_two_to_the_24_holds_one_more_fails_and_only_the_failed_row_is_cleared(device):
    books = books_of(device, [4, 4, 0], [127, 127, 1], [2**24, 2**24 + 1, 0], [2.0**22, 2.0**22, 0.0])
    sums = torch.ones(3, 200, device=device)

    verdict = quanta.judge(books, sums)

    assert [0, 1, 0] == verdict.failed.tolist()
    assert verdict.any_failed.item() == 1
    assert [[1.0], [0.0], [1.0]] == [one.unique().tolist() for one in sums]


@pytest.mark.parametrize(("largest", "expected"), [(2.0**9, 0), (2.0**9 - 1, 1), (1e-3, 1), (0.0, 0)])
def test_a_quantum_that_leaves_the_largest_element_less_than_9_bits_fails(largest, expected, device):
    verdict = quanta.judge(books_of(device, [3], [127], [3 * math.ceil(largest)], [largest]), torch.ones(1, 64, device=device))

    assert [expected] == verdict.failed.tolist()


def test_a_row_that_no_quantum_of_its_own_makes_finer_is_left_as_it_is(device):
    books = books_of(device, [2**23], [127], [2**24], [2.0])  # its own would be 2^(24 + 2 - 23)

    assert [0] == quanta.judge(books, torch.ones(1, 64, device=device)).failed.tolist()


def test_nothing_failed_is_told(device):
    verdict = quanta.judge(books_of(device, [4] * 9, [127] * 9, [2**24] * 9, [2.0**22] * 9), torch.ones(9, 64, device=device))

    assert (0, 0) == (verdict.any_failed.item(), int(verdict.failed.sum()))


@pytest.mark.parametrize(("count", "bound"), [(1, 1.0), (5, 3.7), (16384, 1e-30), (2**24, 1e10), (3, 0.0)])
def test_the_second_runs_quantum_holds_count_times_the_largest_bound(count, bound, device):
    verdict = quanta.judge(books_of(device, [count], [1], [2**30], [bound]), torch.ones(1, 64, device=device))

    q = 2.0 ** (verdict.again.item() - 127)
    assert count * (bound + q / 2) <= 2**24 * q
    assert bound <= 2**22 * q


@pytest.mark.parametrize(("count", "bound"), [(5, float("inf")), (5, float("nan")), (2**24 + 1, 1.0), (5, 3e38)])
def test_where_there_is_no_proof_the_second_runs_quantum_is_nan(count, bound, device):
    verdict = quanta.judge(books_of(device, [count], [1], [2**30], [bound]), torch.ones(1, 64, device=device))

    assert verdict.again.item() > 231  # of which blocks/exact makes NaN


def test_the_next_steps_reach_is_eight_times_the_largest_mean(device):
    # over 64 hits more than there are: 16,800 quanta of 1/4 over 2 x 10 + 64 are 50; 8400 of 1 over 84 are 100
    books = books_of(device, [10, 10, 0], [125, 127, 127], [16800, 8400, 5], [900.0, 600.0, 1e9], tiles=2)

    assert 8 * 100.0 == quanta.judge(books, torch.ones(3, 64, device=device)).reach.item()


def test_one_large_element_counts_four_times_for_the_next_step(device):
    books = books_of(device, [2], [127], [1001], [1000.0])

    assert 8 * 4 * 1000.0 / 66 == pytest.approx(quanta.judge(books, torch.ones(1, 64, device=device)).reach.item())


def test_a_failed_row_counts_its_largest_element_for_every_hit_unless_it_is_not_finite(device):
    books = books_of(device, [36, 1, 1], [127] * 3, [2**25, 1000, 2**25], [1000.0, 1000.0, float("inf")])

    assert 8 * 360.0 == quanta.judge(books, torch.ones(3, 64, device=device)).reach.item()


@pytest.mark.parametrize("largest", [1000.0, 77777.0])
@pytest.mark.parametrize("count", [1, 2, 20, 5000])
def test_what_one_row_hands_on_holds_twice_its_values(count, largest, device):
    """By the worst case: one element of that size, or all of them."""
    for units in (math.ceil(largest), count * math.ceil(largest)):
        first = books_of(device, [count], [127], [units], [largest])
        reach = quanta.judge(first, torch.ones(1, 64, device=device)).reach

        q = 2.0 ** (quanta.open_books(first.counts, reach, 1).exponents.item() - 127)

        assert 2 * units <= 2**24 * q
        assert 2 * largest <= 2**22 * q


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (TypeError, "topk is int64", lambda: quanta.count_rows(torch.zeros(2, 2, dtype=torch.int64), None, 4)),
        (ValueError, "topk has shape", lambda: quanta.count_rows(torch.zeros(2, dtype=torch.int32), None, 4)),
        (
            TypeError,
            "reach is float64",
            lambda: quanta.open_books(torch.zeros(2, dtype=torch.int32), torch.zeros(1).double(), 1),
        ),
        (ValueError, "sums has shape", lambda: quanta.judge(books_of("cpu", [1], [1], [1], [1.0]), torch.ones(2, 64))),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, call):
    with pytest.raises(error, match=words):
        call()
