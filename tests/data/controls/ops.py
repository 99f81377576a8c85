"""Ops made to be caught: a racy "deterministic" implementation, one twice as slow, one that is secretly the default.

The same file serves the tests on a CPU and the stored H200 run that stands in for a GPU.
"""

from __future__ import annotations

from perfgate import Op

CASES = {"smoke": dict(rows=4096, columns=64, buckets=64), "typical": dict(rows=65536, columns=1024, buckets=4096)}


def scatter_inputs(case, device, generator):
    import torch

    rows = torch.randn(case.rows, case.columns, device=device, generator=generator)
    bucket = torch.randint(case.buckets, (case.rows,), device=device, generator=generator)
    return {"rows": rows, "bucket": bucket, "buckets": case.buckets}


def by_index_add(x, rows=None):
    rows = x["rows"] if rows is None else rows
    return rows.new_zeros(x["buckets"], rows.shape[1]).index_add(0, x["bucket"], rows)


def exact(x):
    return by_index_add(x)


def add_in_random_order(x):
    """The sum of each bucket in an order that nobody fixed: what a racy kernel does, on any device and in any mode."""
    import random

    import torch

    order = list(range(x["rows"].shape[0]))
    random.SystemRandom().shuffle(order)
    chosen = torch.tensor(order, device=x["rows"].device)
    return x["rows"].new_zeros(x["buckets"], x["rows"].shape[1]).index_add(0, x["bucket"][chosen], x["rows"][chosen])


def scaled(x, times):
    out = x["rows"]
    for _ in range(times):
        out = out * 1.0001
    return out


racy = Op("control/racy", racy="rows of one bucket are added in a random order")
racy.cases(**CASES)
racy.inputs(scatter_inputs)
racy.reference(exact)
racy.default("torch.index_add")(by_index_add)
racy.champion("random_order")(add_in_random_order)

twice = Op("control/twice")
twice.cases(**CASES)
twice.inputs(scatter_inputs)
twice.reference(lambda x: scaled(x, 8))
twice.default("eight_passes")(lambda x: scaled(x, 8))
twice.champion("sixteen_passes")(lambda x: [scaled(x, 8), scaled(x, 8)][0])

same = Op("control/same", racy="declared so, but both arms run the same kernels")
same.cases(**CASES)
same.inputs(scatter_inputs)
same.reference(lambda x: scaled(x, 8))
same.default("eight_passes")(lambda x: scaled(x, 8))
same.champion("secretly_the_default")(lambda x: scaled(x, 8))

equal = Op("control/equal")
equal.cases(**CASES)
equal.inputs(scatter_inputs)
equal.reference(lambda x: scaled(x, 8))
equal.default("eight_passes")(lambda x: scaled(x, 8))
equal.champion("eight_passes_again")(lambda x: scaled(x, 8))
