"""The sorted form: its order, its chunks of queries, and what it refuses to start."""

import pytest
import torch

from perfgate import Case, discover
from tests.unit.workloads.dsa.problems import arguments, in_float64, kernels, made, op, problem, run, same
from tests.unit.workloads.test_segment import fold_chunk

shape = discover.module("dsa.backward.shape")
probe = discover.module("dsa.backward.probe")
CUTS, GROUP, LAST = 64, 8, 16  # as the README documents them: rows of a chunk, parts of a group, parts that one group ends


def documented_fold(values, ids, keys):
    """Stably sorted, cut every 64 rows, each chunk left to right from +0, the parts in groups of 8 (16 where that ends it)."""
    out = torch.zeros(keys, values.shape[1])
    order = sorted((i for i in range(len(ids)) if 0 <= ids[i] < keys), key=lambda i: ids[i])
    parts = [(ids[i], values[i], None) for i in order] + [(None, None, None)] * (len(ids) - len(order))
    size = CUTS
    while True:
        above = []
        for start in range(0, len(parts), size):
            before = parts[start - 1][0] if start else None
            after = parts[start + size][0] if start + size < len(parts) else None
            above.append(fold_chunk(parts[start : start + size], before, after, out))
        if len(above) == 1:
            return out
        parts = [(key, head, above[i - 1][2]) for i, (key, head, _) in enumerate(above)]
        size = LAST if len(parts) <= LAST else GROUP


@pytest.fixture
def seen(monkeypatch):
    """What went into each fold: (staged contributions, ids)."""
    folds, sums, sort = [], kernels.sum_segments, kernels.stable_sort

    def watch_sort(ids, keys):
        folds.append([None, ids.clone()])
        return sort(ids, keys)

    def watch_sum(values, order, dtype):
        folds[-1][0] = values.clone()
        return sums(values, order, dtype=dtype)

    monkeypatch.setattr(kernels, "stable_sort", watch_sort)
    monkeypatch.setattr(kernels, "sum_segments", watch_sum)
    return folds


@pytest.mark.parametrize(
    "changes",
    [
        {"queries": 7},
        {"queries": 5, "holes": 0.3, "lengths": True},
        {"queries": 6, "hot": True, "duplicates": True, "heads": 72},
    ],
)
def test_the_sums_are_the_sequential_fold_of_each_chunk_of_queries_added_in_their_order_bit_for_bit(
    changes, device, generator, seen
):
    x = made(device, generator, **changes)
    limit = shape.sorted_bytes(2, changes["queries"], 64, 40, 64)

    _, dkv = kernels.backward_sorted(**arguments(x), max_workspace=limit)

    assert -(-changes["queries"] // 2) == len(seen)
    total = None
    for staged, ids in seen:
        folded = documented_fold(staged.float().cpu(), ids.tolist(), 64)
        total = folded if total is None else total + folded
    assert same(total.half(), dkv.cpu())


def test_one_staged_row_is_all_heads_contribution_of_one_entry(device, generator, seen):
    x = made(device, generator, heads=72, holes=0.2)
    exact = in_float64(x)
    [(part, rows, _, ds, p)] = list(discover.module("dsa.backward.stock").gradients(exact, torch.float64))
    expected = ds.transpose(1, 2) @ exact["q"][part] + p.transpose(1, 2) @ exact["dout"][part]

    run("sorted_segment", x)

    [(staged, ids)] = seen
    assert rows.flatten().tolist() == ids.tolist()
    kept = ids >= 0
    torch.testing.assert_close(staged[kept].double(), expected.flatten(0, 1)[kept], rtol=2e-2, atol=2e-3)


def test_fewer_queries_at_a_time_take_less_and_give_the_same_within_rounding(device, generator):
    x = made(device, generator, queries=8)
    limits = [shape.sorted_bytes(count, 8, 64, 40, 64) for count in (1, 2, 4, 8)]

    results = [kernels.backward_sorted(**arguments(x), max_workspace=limit)[1] for limit in limits]

    assert sorted(limits) == limits
    for one in results[:-1]:
        torch.testing.assert_close(one, results[-1], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("limit", "expected"), [(0, 1), (-1, None)])
def test_the_workspace_decides_how_many_queries_and_too_little_is_refused_with_the_figures(limit, expected):
    least = shape.sorted_bytes(1, 100, 4096, 512, 512)

    if expected:
        assert expected == shape.queries_at_a_time(100, 4096, 512, 512, least + limit)
    else:
        with pytest.raises(MemoryError, match=f"needs {least} bytes .*max_workspace is {least + limit}"):
            shape.queries_at_a_time(100, 4096, 512, 512, least + limit)


@pytest.mark.parametrize("queries", [64, 100, 4096])
def test_the_most_queries_that_fit_are_taken(queries):
    sizes = [queries, *(2**k for k in range(12, -1, -1) if 2**k < queries)]
    limits = [shape.sorted_bytes(count, queries, 4096, 512, 512) for count in sizes]

    assert sizes == [shape.queries_at_a_time(queries, 4096, 512, 512, limit) for limit in limits]


def test_nothing_is_allocated_before_too_little_workspace_is_refused(device, generator, monkeypatch):
    x = made(device, generator)
    monkeypatch.setattr(torch, "empty", None)
    monkeypatch.setattr(torch, "empty_like", None)

    with pytest.raises(MemoryError, match="max_workspace is 1000"):
        kernels.backward_sorted(**arguments(x), max_workspace=1000)


def test_a_case_that_exceeds_the_card_is_unsupported_with_the_formulas_figures(monkeypatch):
    small = type("Card", (), {"total_memory": 2**31})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: small)
    case = op.case("context512k")
    need = next(one.workspace for one in op.implementations if one.name == "sorted_segment")(case)

    said = probe.fits_memory(case, "cuda:0", lambda _: need)

    assert (
        said
        == f"needs a workspace of {need} bytes beside {probe.input_bytes(case)} of inputs and outputs, the card has {2**31}"
    )
    assert probe.fits_memory(op.case("smoke"), "cuda:0", lambda _: need // 2) == ""


def test_no_case_takes_more_than_its_own_limit_and_the_long_context_no_more_than_the_default():
    workspace = next(one.workspace for one in op.implementations if one.name == "sorted_segment")

    for case in op.case_list:
        assert workspace(case) <= case.get("max_workspace", shape.WORKSPACE)
    assert op.case("context512k").keys == 524288


def test_the_inputs_hand_the_cases_limit_on(device, generator):
    case = Case("test", {**op.case("smoke").parameters, "max_workspace": 12345})

    assert problem.make(case, device, generator)["max_workspace"] == 12345
