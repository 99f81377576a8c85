"""``reach`` as the inputs have it, and the quanta that follow: what it would make of every row, computed in plain torch."""

from __future__ import annotations

import math

import pytest
import torch

from perfgate import Case, discover

problem, stock, quantum, shape = (
    discover.module(name) for name in ("dsa.backward.problem", "dsa.backward.stock", "dsa.cudnn.quantum", "dsa.cudnn.shape")
)
# eight times as many queries as rows of each, as at the typical shape: the first eighth of a local pattern has fewer
SHAPE = {"queries": 1024, "keys": 1024, "heads": 64, "dim": 128, "dim_v": 128, "topk": 128}
PATTERNS = ("random", "local", "zipf")


@pytest.fixture(scope="module", params=PATTERNS)
def x(request):
    return problem.make(Case("test", {**SHAPE, "pattern": request.param}), "cpu", torch.Generator().manual_seed(1))


def test_the_sample_that_reach_is_taken_from_stands_for_all_queries(x):
    of_all = 4 * float(stock.mean_bound(x, 64))

    assert abs(math.log2(float(x["reach"]) / of_all)) < 0.25


def test_the_first_queries_alone_would_make_local_quanta_far_too_coarse():
    x = problem.make(Case("test", {**SHAPE, "pattern": "local"}), "cpu", torch.Generator().manual_seed(1))
    first = {name: x[name][: problem.SAMPLED] for name in ("q", "topk", "out", "lse", "dout")}
    of_first = 4 * float(stock.mean_bound({**x, **first}, 64))

    assert 2 * float(x["reach"]) < of_first


def test_no_row_of_any_pattern_needs_the_second_run(x):
    units, expected = certificates(x)

    assert int(units.max()) <= quantum.MOST_UNITS
    few = (expected * quantum.FEW_QUANTA).clamp(max=quantum.LITTLE_USED)
    assert not ((units > 0) & (units < few)).any()


def certificates(x):
    """Per row, the sum of ``quantum.units`` over every contribution, and the hits that the sample of queries lets expect."""
    keys, queries = x["kv"].shape[0], x["q"].shape[0]
    every, reach = shape.sampled_every(queries), float(x["reach"])
    chosen = x["topk"][::every]
    sampled = torch.bincount(chosen[chosen >= 0].long(), minlength=keys)
    quanta = torch.tensor([quantum.quantum(quantum.exponent_for(int(one), every, reach, 1)) for one in sampled])
    units = torch.zeros(keys, dtype=torch.int64)
    for part, rows, _, ds, p in stock.gradients(x, torch.float32):
        contributions = ds.transpose(1, 2) @ x["q"][part].float() + p.transpose(1, 2) @ x["dout"][part].float()
        largest, kept = contributions.abs().amax(dim=2), rows >= 0
        scaled = (largest[kept].double() / quanta[rows[kept]].double()).ceil().long()
        units.index_add_(0, rows[kept], scaled + (scaled > 2**22) * quantum.FAILS)
    return units, (sampled * every).clamp(min=1)
