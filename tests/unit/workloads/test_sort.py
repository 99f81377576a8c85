import pytest
import torch

from perfgate import discover


def kernels():
    return discover.module("blocks.sort.kernels")


def shape():
    return discover.module("blocks.sort.shape")


def expected(ids, bins, first=0, padding=-1):
    keys = [one - first if first <= one < first + bins and one != padding else bins for one in ids]
    rows = sorted(range(len(ids)), key=keys.__getitem__)  # sorted() is stable
    return [keys[row] for row in rows], rows


@pytest.mark.parametrize("most", [2**21, 32], ids=["one pass", "several passes"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("count", "bins"), [(700, 7), (300, 1000), (256, 1), (257, 3), (1, 1), (0, 4)])
def test_equal_ids_keep_the_order_of_their_rows(count, bins, dtype, most, device, generator, monkeypatch):
    monkeypatch.setattr(shape(), "MOST_COUNTERS", most)
    ids = torch.randint(-1, bins, (count,), device=device, generator=generator).to(dtype)

    actual = kernels().stable_sort(ids, bins)

    assert (actual.keys.tolist(), actual.rows.tolist()) == expected(ids.tolist(), bins)


def test_a_shard_drops_other_ids_and_padding_instead_of_clamping_them(device, generator):
    ids = torch.randint(0, 40, (300,), device=device, generator=generator)

    actual = kernels().stable_sort(ids, bins=10, first=20, padding=24)

    assert (actual.keys.tolist(), actual.rows.tolist()) == expected(ids.tolist(), 10, 20, 24)


@pytest.mark.parametrize("most", [2**21, 32], ids=["one pass", "several passes"])
def test_places_invert_rows_and_are_minus_one_for_dropped_ids(most, device, generator, monkeypatch):
    monkeypatch.setattr(shape(), "MOST_COUNTERS", most)
    ids = torch.randint(-1, 30, (300,), device=device, generator=generator)

    actual = kernels().stable_sort(ids, 30, with_places=True)

    places = [-1] * 300
    for place, (key, row) in enumerate(zip(*expected(ids.tolist(), 30), strict=True)):
        places[row] = place if key < 30 else -1
    assert actual.places.tolist() == places


@pytest.mark.parametrize("bins", [10, 2**15 - 1, 2**15, 70000])
def test_the_radix_sort_gives_the_same_order_in_every_key_width(bins, device, generator):
    ids = torch.randint(5, (64,), device=device, generator=generator) * (bins // 5)
    ids[7] = -1

    actual = kernels().radix_sort(ids, bins)

    assert (actual.keys.tolist(), actual.rows.tolist()) == expected(ids.tolist(), bins)


@pytest.mark.parametrize("entries", [1, 300, 65536, 2**22])
@pytest.mark.parametrize("bins", [1, 255, 256, 4096, 128256, 2**24])
def test_the_passes_cover_every_bit_of_every_key(entries, bins):
    covered = 0
    for shift, values in shape().passes(entries, bins):
        assert shift == covered
        covered += (values - 1).bit_length()
        assert (
            values & (values - 1) == 0 or shift + (values - 1).bit_length() >= bins.bit_length()
        )  # only the last is cut short
    assert covered >= bins.bit_length()


@pytest.mark.parametrize(
    ("error", "words", "ids", "bins"),
    [
        (ValueError, "ids has shape", torch.zeros(6, 1, dtype=torch.int64), 4),
        (TypeError, "ids is int16", torch.zeros(6, dtype=torch.int16), 4),
        (ValueError, "6 ids in 0 bins", torch.zeros(6, dtype=torch.int64), 0),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(error, words, ids, bins, device):
    with pytest.raises(error, match=words):
        kernels().stable_sort(ids.to(device), bins)


@pytest.mark.parametrize("bad", [-2, 4])
def test_ids_out_of_range_are_named_under_the_switch(bad, device, monkeypatch):
    monkeypatch.setenv("PERFGATE_CHECK_INPUTS", "1")

    with pytest.raises(IndexError, match=f"ids holds {bad}"):
        kernels().stable_sort(torch.tensor([0, bad], device=device), 4)


@pytest.mark.parametrize(("count", "bins"), [(700, 7), (300, 1000), (256, 1)])
def test_what_the_sorted_result_holds_is_declared(count, bins, device, generator):
    """``present`` shares its allocation with the counters: they live as long as the result does."""
    ids = torch.randint(0, bins, (count,), device=device, generator=generator)
    actual = kernels().stable_sort(ids, bins)
    held = sum(one.untyped_storage().nbytes() for one in (actual.keys, actual.rows, actual.present))

    assert shape().kept_bytes(count, bins) == held
