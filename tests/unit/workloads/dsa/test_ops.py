"""What the op declares: cases, roles by what is installed, formulas, and the probe behind dispatch and skips."""

import importlib

import pytest
import torch

from perfgate import Case, discover
from tests.unit.workloads.dsa.problems import is_, op, problem, stock

ops = discover.module("dsa.backward.ops")
probe = discover.module("dsa.backward.probe")
shape = discover.module("dsa.backward.shape")
cudnn = discover.module("dsa.cudnn.probe")
WANTED = {
    "queries": {64, 128, 129, 257, 513, 4096, 16384},
    "heads": {16, 64, 128},
    "dim": {512, 576},
    "topk": {128, 512, 2048},
    "pattern": {"random", "local", "zipf"},
}


@pytest.fixture
def declared_with(monkeypatch):
    """The op as it is declared where cuDNN's package is installed, or is not."""

    def declare(installed):
        monkeypatch.setattr(cudnn, "installed", lambda: installed)
        return importlib.reload(ops).op

    yield declare
    monkeypatch.undo()
    importlib.reload(ops)


def roles(declared):
    return {one.name: one.role for one in declared.implementations}


def test_with_cudnns_package_its_kernel_is_the_default_and_its_exact_form_the_champion(declared_with):
    expected = {
        "cudnn": "default", "exact": "champion", "triton_atomic": "contender", "triton_exact": "candidate",
        "sorted_segment": "candidate", "split_slice": "candidate", "index_add": "stock_deterministic",
    }  # fmt: skip

    assert expected == roles(declared_with(installed=True))


def test_without_it_the_triton_forms_take_their_places_and_cudnns_stay_declared(declared_with):
    expected = {
        "triton_atomic": "default", "triton_exact": "champion", "cudnn": "contender", "sorted_segment": "candidate",
        "exact": "candidate", "split_slice": "candidate", "index_add": "stock_deterministic",
    }  # fmt: skip

    assert expected == roles(declared_with(installed=False))


@pytest.mark.parametrize("name", WANTED)
def test_at_most_24_cases_cover_the_sizes_where_kernels_break(name):
    cases = [case for case in op.case_list if case.name != "smoke"]

    assert len(op.case_list) <= 24
    assert WANTED[name] <= {case.get(name) for case in cases}


@pytest.mark.parametrize("option", ["holes", "empty", "duplicates", "lengths", "hot", "max_workspace"])
def test_some_case_has_every_option(option):
    assert any(case.get(option) for case in op.case_list)


def test_the_typical_suite_is_the_typical_shape_and_the_longest_context_half_a_million_rows():
    [case] = op.in_suite("typical")

    assert (16384, 2048, 64, 512) == (case.queries, case.topk, case.heads, case.dim)
    assert max(case.keys for case in op.case_list) == 524288


def test_every_formula_is_a_whole_number_for_every_case():
    for case in op.case_list:
        for one in op.implementations:
            assert one.workspace is None or (isinstance(one.workspace(case), int) and one.workspace(case) > 0)
        assert isinstance(op.bytes_moved(case, "fwd"), int)
        assert isinstance(op.flops(case, "fwd"), int)


def test_the_typical_shapes_least_work_is_5_products_and_every_tensor_once():
    [case] = op.in_suite("typical")

    assert 5 * 2 * 16384 * 64 * 2048 * 512 == op.flops(case, "fwd")
    assert 4 * 16384 * 64 * 512 * 2 + 16384 * 64 * 4 + 16384 * 2048 * 4 + 2 * 16384 * 512 * 2 == op.bytes_moved(case, "fwd")


def test_exact_accumulation_takes_hardly_more_than_the_sums():
    [case] = op.in_suite("typical")
    workspaces = {one.name: one.workspace(case) for one in op.implementations if one.workspace}

    assert workspaces["triton_exact"] < 1.02 * workspaces["triton_atomic"]
    assert workspaces["sorted_segment"] <= 2.5 * 2**30


@pytest.mark.parametrize(
    ("changes", "version", "words"),
    [
        ({}, (3, 5), "needs Triton 3.6 or newer: this is 3.5"),
        ({}, None, "needs Triton 3.6 or newer: none is installed"),
        ({"dim": 520}, (3, 6), "heads of 520 with values of 512: both must be multiples of 64"),
        ({"dim": 512, "dim_v": 576}, (3, 6), "values not wider"),
    ],
)
def test_the_probe_tells_what_is_missing(changes, version, words, monkeypatch):
    monkeypatch.setattr(probe, "triton_version", lambda: version)
    case = Case("test", {**op.case("typical").parameters, **changes})

    assert words in probe.triton_runs(case, "cuda:0")


@pytest.mark.parametrize(
    ("capability", "memory", "words"),
    [
        ((8, 0), 232448, "checked against float64 on compute capability 9.x only: this card has 8.0"),
        ((10, 0), 232448, "checked against float64 on compute capability 9.x only: this card has 10.0"),
        ((9, 0), 101376, "one program needs 212992 bytes of shared memory, the card has 101376"),
        ((9, 0), 232448, ""),
    ],
)
def test_the_probe_asks_the_card(capability, memory, words, monkeypatch):
    monkeypatch.setattr(probe, "triton_version", lambda: (3, 6))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("Card", (), {"shared_memory_per_block_optin": memory})
    )

    assert words == probe.triton_runs(op.case("typical"), "cuda:0")


def test_every_cases_program_fits_a_hopper_card():
    assert all(probe.shared_memory(case.heads, case.dim, 512) <= 232448 for case in op.case_list if case.name != "smoke")


def test_on_a_cpu_triton_is_unsupported_and_the_stock_path_runs():
    said = {one.name: one.supports(op.case("smoke"), "cpu") for one in op.implementations}

    assert "need a GPU" in said["triton_exact"]
    assert said["index_add"] == ""


@pytest.mark.parametrize(("queries", "expected"), [(4096, ""), (4097, "measured up to 4096 queries")])
def test_the_stock_path_is_not_run_where_it_takes_minutes(queries, expected):
    said = probe.stock_is_bearable(Case("test", {"queries": queries}), "cuda:0")

    assert expected in said
    assert bool(expected) == bool(said)


@pytest.mark.parametrize(
    ("heads", "tile", "tiles"), [(2, 16, 1), (16, 16, 1), (17, 32, 1), (64, 64, 1), (96, 64, 2), (128, 64, 2)]
)
def test_heads_are_cut_into_tiles_of_a_power_of_two(heads, tile, tiles):
    assert (tile, tiles) == (shape.tile_of(heads), shape.tiles_of(heads))


def chosen(device, generator, **changes):
    case = Case("test", {"queries": 40, "keys": 64, "topk": 24, "pattern": "random", **changes})
    return problem.choose(case, device, generator)


def test_random_and_zipf_patterns_name_no_row_twice_unless_asked(device, generator):
    for pattern in ("random", "zipf"):
        for row in chosen(device, generator, pattern=pattern).tolist():
            kept = [one for one in row if one >= 0]
            assert len(kept) == len(set(kept))
            assert kept
    assert all(row[12:] == row[:12] for row in chosen(device, generator, duplicates=True).tolist())


def test_a_local_pattern_ends_at_the_querys_position(device, generator):
    rows = chosen(device, generator, pattern="local", queries=64)

    assert [0] + [-1] * 23 == rows[0].tolist()
    assert list(range(63, 39, -1)) == rows[-1].tolist()


def test_zipf_rows_are_skewed(device, generator):
    counts = torch.bincount(chosen(device, generator, pattern="zipf", queries=200).flatten().clamp(min=0).cpu(), minlength=64)

    assert counts[1] > 5 * counts[63]


def test_holes_empty_queries_and_a_hot_row_are_as_asked(device, generator):
    holes = (chosen(device, generator, holes=0.3, queries=400) == -1).double().mean().item()
    empty = (chosen(device, generator, empty=0.5, queries=400) == -1).all(dim=1).double().mean().item()

    assert (0.3, 0.5) == (pytest.approx(holes, abs=0.05), pytest.approx(empty, abs=0.1))
    assert [32] == chosen(device, generator, hot=True)[:, 0].unique().tolist()


def test_the_inputs_are_what_the_kernels_take_without_a_copy(device, generator):
    x = op.make_inputs(op.case("smoke"), device, generator)

    tensors = [value for value in x.values() if isinstance(value, torch.Tensor)]
    assert all(one.is_contiguous() for one in tensors)
    assert {"q", "kv", "out", "dout"} == {name for name, value in x.items() if is_(value, torch.bfloat16)}
    assert (torch.int32, torch.float32, torch.float32) == (x["topk"].dtype, x["lse"].dtype, x["reach"].dtype)
    assert bool(x["sink"].isneginf().all())
    assert float(x["reach"]) > 0


def test_the_forward_is_softmax_attention_in_float64(device, generator):
    q, kv = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(1)), torch.randn(9, 64)
    rows = torch.tensor([[0, 3, -1], [-1, -1, -1], [5, 5, 8]])
    expected = torch.zeros(3, 4, 32, dtype=torch.float64)
    level = torch.full((3, 4), float("inf"), dtype=torch.float64)
    for query, kept in ((0, [0, 3]), (2, [5, 5, 8])):
        scores = q[query].double() @ kv[kept].double().T * 0.1
        expected[query] = torch.softmax(scores, dim=1) @ kv[kept, :32].double()
        level[query] = scores.logsumexp(dim=1)

    out, lse = stock.forward(q, kv, rows, 32, 0.1)

    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), level, rtol=1e-5, atol=1e-6)


def test_work_in_chunks_is_the_same_work(device, generator, monkeypatch):
    x = op.make_inputs(op.case("smoke"), device, generator)
    x = {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in x.items()
    }
    whole = op.compute_reference(x)

    monkeypatch.setattr(stock, "CHUNK_BYTES", 3 * 32 * 64 * 8)

    assert stock.chunk_of(8, 32, 64, 8) == 3
    for one, other in zip(op.compute_reference(x), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
