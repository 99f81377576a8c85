"""The error to float64: NaN never passes, special values must match, a zero reference is handled."""

import math

import pytest
import torch

from perfgate.worker.bits import relative_l2

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("output", "exact", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([0.0, 0.5], [0.0, 0.0], 0.5),
        ([NAN, 4.0], [3.0, 4.0], INF),
        ([NAN, 4.0], [NAN, 4.0], 0.0),
        ([INF, 4.0], [INF, 4.0], 0.0),
        ([INF, 4.0], [-INF, 4.0], INF),
        ([INF, 4.0], [3.0, 4.0], INF),
        ([1.0, 4.0], [NAN, 4.0], INF),
    ],
)
def test_relative_l2(output, exact, expected):
    error = relative_l2(torch.tensor(output), torch.tensor(exact, dtype=torch.float64))

    assert expected == pytest.approx(error)
