import dataclasses
import json

import pytest

from perfgate.determinism.records import Entry, Record, TensorRecord, compare_records, read_record, write_record
from perfgate.errors import UsageError

TENSOR = TensorRecord("output", "float32", (600, 1000), 4, 1 << 20, ("aa", "bb", "cc"))
PLACE = "a: output: the first difference lies"


def record(*entries):
    return Record("deterministic", 0, {"torch": "2.11"}, {"NCCL_ALGO": "Ring"}, {entry.name: entry for entry in entries})


def told(first, second):
    return [f"{one.entry}: {one.text}" for one in compare_records(first, second)[1]]


def test_a_record_survives_its_file(tmp_path):
    written = record(Entry("a", (TENSOR,), 2, 1, "run 2: output"), Entry("b", status="unsupported", problem="needs a GPU"))

    write_record(written, tmp_path / "new" / "r.json")

    assert written == read_record(tmp_path / "new" / "r.json")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["r.json"]


def test_equal_records_have_no_difference():
    assert compare_records(record(Entry("a", (TENSOR,), 2)), record(Entry("a", (TENSOR,), 5))) == (1, [])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"leaves": ("aa", "xx", "cc")},
            "a: output: the first difference lies between [262, 144] and [524, 287]; 1 of 3 MiB differ",
        ),
        (
            {"leaves": ("aa", "bb", "xx")},
            "a: output: the first difference lies between [524, 288] and [599, 999]; 1 of 3 MiB differ",
        ),
        ({"shape": (1000, 600)}, "a: output: float32 (600, 1000) against float32 (1000, 600)"),
        ({"dtype": "int32"}, "a: output: float32 (600, 1000) against int32 (600, 1000)"),
        ({"name": "other"}, "a: output: missing in the second record"),
        ({"leaf_bytes": 1 << 21, "leaves": ("dd", "ee")}, "a: output: the digests differ"),
    ],
)
def test_what_differs_is_placed(change, text):
    other = dataclasses.replace(TENSOR, **change)

    assert [text] == told(record(Entry("a", (TENSOR,))), record(Entry("a", (other,))))


def test_what_is_in_one_record_alone_is_a_difference():
    both = Entry("a", (TENSOR,))

    expected = ["b: only in the first record", "c: only in the second record"]
    assert expected == told(record(both, Entry("b", (TENSOR,))), record(both, Entry("c", (TENSOR,))))
    assert ["a: not recorded in the second: needs a GPU"] == told(
        record(both), record(Entry("a", status="unsupported", problem="needs a GPU"))
    )


def test_replays_that_differ_within_one_record_are_a_difference_even_when_the_digests_agree():
    shaky = Entry("a", (TENSOR,), 7, 2, "run 3: output: 1/4 differ")

    assert ["a: differs within the second record: 2 of 7 replays, run 3: output: 1/4 differ"] == told(
        record(Entry("a", (TENSOR,), 7)), record(shaky)
    )


def test_nothing_in_common_is_an_error_not_equal():
    unsupported = Entry("a", status="unsupported", problem="needs a GPU")

    for first, second in [
        (record(Entry("a", (TENSOR,))), record(Entry("b", (TENSOR,)))),
        (record(), record()),
        (record(unsupported), record(unsupported)),
    ]:
        with pytest.raises(UsageError, match="nothing was compared"):
            compare_records(first, second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no record of bits"),
        ('{"kind": "perfgate-bits", "schema_version": 99}', "has schema version 99, this perfgate reads 1"),
        ('{"kind": "perfgate-bits", "schema_version": 1}', "is damaged"),
        ('{"kind": "perfgate-bits", "schema_version": 1, "entries": {"a": {"tensors": 1}}}', "is damaged"),
    ],
)
def test_what_can_not_be_read_is_told(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)

    with pytest.raises(UsageError, match=message):
        read_record(tmp_path / "r.json")
    with pytest.raises(UsageError, match="can't be read"):
        read_record(tmp_path / "gone.json")


def test_the_file_says_what_it_is(tmp_path):
    write_record(record(Entry("a", (TENSOR,))), tmp_path / "r.json")

    content = json.loads((tmp_path / "r.json").read_text())
    assert ("perfgate-bits", 1, "deterministic") == (content["kind"], content["schema_version"], content["mode"])
