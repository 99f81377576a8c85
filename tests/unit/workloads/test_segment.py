import pytest
import torch

from perfgate import Case, discover

op = discover.load().op("segment/index_add")
MANY, CHUNK, LONG_CHUNK, GROUP, LAST = 1000, 16, 24, 8, 8  # small, so that few rows make many levels


@pytest.fixture(autouse=True)
def small_cuts(monkeypatch):
    for name in ("MANY", "CHUNK", "LONG_CHUNK", "GROUP", "LAST"):
        monkeypatch.setattr(discover.module("blocks.segment.shape"), name, globals()[name])


def kernels():
    return discover.module("blocks.segment.kernels")


def sort(ids, bins):
    return discover.module("blocks.sort.kernels").stable_sort(ids, bins)


def documented_fold(values, ids, bins):
    """The order that the block documents, entry by entry: chunks of the sorted rows, then groups of their parts."""
    out = torch.zeros(bins, values.shape[1])
    order = sorted((i for i in range(len(ids)) if ids[i] >= 0), key=lambda i: ids[i])  # sorted() is stable
    parts, chunk_size = [(ids[i], values[i], None) for i in order], LONG_CHUNK if len(ids) >= MANY else CHUNK
    while parts:
        above = []
        for start in range(0, max(len(parts), 1), chunk_size):
            chunk = parts[start : start + chunk_size]
            before = parts[start - 1][0] if start else None
            after = parts[start + chunk_size][0] if start + chunk_size < len(parts) else None
            above.append(fold_chunk(chunk, before, after, out))
        if len(above) == 1:
            break
        parts = [(key, head, above[i - 1][2]) for i, (key, head, _) in enumerate(above)]
        chunk_size = LAST if len(parts) <= LAST else GROUP
    return out


def fold_chunk(chunk, before, after, out):
    """(key and total of the segment that goes on from the left, total of the one that goes on to the right)."""
    runs = []
    for key, value, tail in chunk:
        if key is None:
            runs.append([None, None, False])
        elif runs and runs[-1][0] == key:
            runs[-1][1] = runs[-1][1] + value
        else:
            goes_on = not runs and key == before
            start = torch.zeros_like(out[0]) if goes_on or tail is None else tail
            runs.append([key, start + value, goes_on])
    head_key, head, tail = None, None, None
    for number, (key, total, goes_on) in enumerate(runs):
        ends = not (number == len(runs) - 1 and key == after)
        if key is None:
            continue
        if goes_on:
            head_key, head = key, total
        elif ends:
            out[key] = total
        else:
            tail = total
    return head_key, head, tail


PATTERNS = {
    "random": (60, 5, 12, "random"),
    "unique": (40, 4, 40, "unique"),
    "zipf": (90, 3, 20, "zipf"),
    "one id over four levels": (1600, 2, 3, "one"),
    "two hot ids": (150, 3, 16, "hot-2"),
    "one row": (1, 5, 3, "random"),
    "one full chunk": (16, 5, 2, "random"),
    "one entry more than a chunk": (17, 5, 1, "one"),
    "odd width over two blocks": (20, 515, 6, "random"),
}


def made(name, device, generator):
    rows, width, segments, ids = PATTERNS[name]
    return op.make_inputs(Case("test", {"rows": rows, "width": width, "segments": segments, "ids": ids}), device, generator)


@pytest.mark.parametrize("name", ["random", "unique", "one row", "one entry more than a chunk"])
def test_every_implementation_agrees_with_float64(name, device, generator):
    x = made(name, device, generator)
    expected = op.compute_reference({**x, "values": x["values"].double()})

    for implementation in op.implementations:
        few_bits = "exact" in implementation.name  # 20 to 23 bits of an id's count times its largest magnitude
        tolerance = 3e-3 if few_bits else 1e-4
        torch.testing.assert_close(implementation.run(x).double(), expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("name", PATTERNS)
def test_the_sum_is_the_documented_fold_bit_for_bit(name, device, generator):
    x = made(name, device, generator)
    expected = documented_fold(x["values"].cpu(), x["ids"].tolist(), x["segments"])

    actual = op.with_role("champion").run(x).cpu()

    assert torch.equal(expected.view(torch.int32), actual.view(torch.int32))


def test_rows_with_id_minus_one_are_dropped_not_clamped(device, generator):
    values = torch.randn(90, 6, device=device, generator=generator)
    ids = torch.randint(-1, 5, (90,), device=device, generator=generator)
    values[ids < 0] = float("nan")

    actual = kernels().sum_segments(values, sort(ids, 5)).cpu()

    assert torch.equal(documented_fold(values.cpu(), ids.tolist(), 5), actual)


@pytest.mark.parametrize("all_dropped", [False, True])
def test_nothing_to_add_gives_zeros(all_dropped, device):
    values = torch.full((3 if all_dropped else 0, 4), float("nan"), device=device)
    ids = torch.full((values.shape[0],), -1, device=device)

    actual = kernels().sum_segments(values, sort(ids, 7))

    assert torch.equal(torch.zeros(7, 4, device=device), actual)


def test_sums_start_at_plus_zero_as_index_add_onto_zeros_does(device):
    values = torch.tensor([[-0.0, 1.0]], device=device)

    actual = kernels().sum_segments(values, sort(torch.tensor([0], device=device), 1))

    assert actual.view(torch.int32).flatten().tolist() == [0, 0x3F800000]


def test_bf16_rows_are_summed_in_f32_and_rounded_once(device, generator):
    values = torch.randn(100, 4, device=device, generator=generator).to(torch.bfloat16)
    ids = torch.zeros(100, dtype=torch.int64, device=device)
    segments = sort(ids, 1)

    wide = kernels().sum_segments(values, segments, dtype=torch.float32)
    narrow = kernels().sum_segments(values, segments)

    assert torch.equal(documented_fold(values.float().cpu(), [0] * 100, 1), wide.cpu())
    torch.testing.assert_close(narrow.float(), wide, rtol=2**-7, atol=0)  # the interpreter truncates where a GPU rounds


def test_strided_rows_are_read_where_they_are(device, generator):
    wide = torch.randn(40, 64, device=device, generator=generator)
    segments = sort(torch.randint(6, (40,), device=device, generator=generator), 6)

    assert torch.equal(
        kernels().sum_segments(wide[:, :20].contiguous(), segments), kernels().sum_segments(wide[:, :20], segments)
    )


@pytest.mark.parametrize(
    ("error", "words", "values", "ids"),
    [
        (ValueError, "values has shape", (5, 4), torch.zeros(6, dtype=torch.int64)),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, values, ids, device):
    with pytest.raises(error, match=words):
        kernels().sum_segments(torch.ones(values, device=device), sort(ids.to(device), 4))


def test_the_declared_workspace_counts_every_level():
    shape = discover.module("blocks.segment.shape")
    per_program = 2 * 8 * 4 + 4

    assert shape.levels(1600) == [(1600, 24), (67, 8), (9, 8), (2, 8)]
    assert shape.workspace_bytes(16, 8) == per_program
    assert shape.workspace_bytes(17, 8) == (2 + 1) * per_program
    assert shape.workspace_bytes(1600, 8) == (67 + 9 + 2 + 1) * per_program
    assert shape.workspace_bytes(0, 8) == 0


@pytest.mark.parametrize("entries", [1, 63, 64, 65, 4096, 4097, 65536, 2**22])
def test_the_shipped_cuts_end_with_one_program(entries, monkeypatch):
    monkeypatch.undo()
    shape = discover.module("blocks.segment.shape")

    levels = shape.levels(entries)

    assert levels[0] == (entries, 128 if entries >= 65536 else 64)
    assert -(-levels[-1][0] // levels[-1][1]) == 1
    assert all(size % 8 == 0 for _, size in levels)
    assert [count for count, _ in levels[1:]] == [-(-count // size) for count, size in levels[:-1]]
