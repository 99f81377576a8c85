"""Two runs' scalars, written by the writers that training programs use."""

import json
import math
import struct

import numpy as np
import pytest
import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

from perfgate.determinism.metrics import verify, views
from perfgate.determinism.metrics.timing_tags import excluded
from perfgate.errors import UsageError

TAGS = ("loss", "grad_norm", "params_norm", "num_zeros", "lr")


def value_of(rank, step, tag):
    """The same float32 in every run; a value of every size."""
    seed = hash((rank, step, TAGS.index(tag))) % 2**32
    return float(np.float32(np.random.default_rng(seed).normal() * 10 ** (step % 7 - 3)))


def flipped(value):
    """The neighbouring float32: the last bit flipped."""
    return struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", value))[0] ^ 1))[0]


def by_tensorboard(folder, records):
    writer = EventFileWriter(str(folder))
    for step, tag, value in records:
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])))
    writer.close()


def by_torch(folder, records, **options):
    with SummaryWriter(str(folder)) as writer:
        for step, tag, value in records:
            writer.add_scalar(tag, value, step, **options)


def by_torch_as_tensors(folder, records):
    by_torch(folder, records, new_style=True)


def run(folder, write=by_tensorboard, ranks=8, steps=41, change=None):
    """8 ranks × 41 steps × 5 tags by default; ``change`` may replace or drop (None) a value."""
    for rank in range(ranks):
        records = [(step, tag, value_of(rank, step, tag)) for step in range(1, steps + 1) for tag in TAGS]
        changed = [(step, tag, change(rank, step, tag, value) if change else value) for step, tag, value in records]
        timing = [(step, "iteration-time", 0.1 * hash(str(folder))) for step in range(1, steps + 1)]
        write(folder / f"rank{rank}", [record for record in changed if record[2] is not None] + timing)
    return folder


@pytest.mark.parametrize("write", [by_tensorboard, by_torch, by_torch_as_tensors])
def test_six_thousand_equal_values_are_equal_and_timing_is_left_out(tmp_path, write):
    seen = verify(run(tmp_path / "a", write, steps=150), run(tmp_path / "b", write, steps=150))

    assert (6000, 5, 150, 8) == (seen.values, seen.tags, seen.steps, seen.ranks)
    assert seen.equal
    assert seen.excluded == ("iteration-time",)


@pytest.mark.parametrize("write", [by_tensorboard, by_torch, by_torch_as_tensors])
def test_one_flipped_last_bit_among_six_thousand_is_found_and_named(tmp_path, write):
    def change(rank, step, tag, value):
        return flipped(value) if (rank, step, tag) == (5, 97, "grad_norm") else value

    seen = verify(run(tmp_path / "a", write, steps=150), run(tmp_path / "b", write, steps=150, change=change))

    assert [("rank5", 97, "grad_norm")] == [(one.rank, one.step, one.tag) for one in seen.differences]
    value = value_of(5, 97, "grad_norm")
    told = views.as_text(seen, "a", "b")
    assert told.startswith("DIFFERENT: 1 of 6000 values, 5 tags, 150 steps, 8 ranks differ")
    assert f"first difference: step 97, rank rank5, grad_norm: {value!r} (0x" in told


def test_growth_is_drawn_from_the_first_differing_step(tmp_path):
    def change(rank, step, tag, value):
        return value + 2.0 ** (step - 30) if tag == "loss" and step >= 20 else value

    seen = verify(run(tmp_path / "a", ranks=1), run(tmp_path / "b", ranks=1, change=change))

    told = views.as_text(seen, "a", "b")
    assert "growth of |delta| in loss, steps 20 to 41, log scale" in told
    bars = next(line.strip() for line in told.splitlines() if "▁" in line)
    assert (22, "▁", "█") == (len(bars), bars[0], bars[-1])


@pytest.mark.parametrize(
    ("drop", "missing"),
    [
        (lambda rank, step, tag: tag == "lr", ("lr (only in the first run)",)),
        (lambda rank, step, tag: step == 41, ()),
        (lambda rank, step, tag: (rank, step, tag) == (7, 3, "loss"), ()),
    ],
)
def test_missing_tags_steps_and_values_are_differences(tmp_path, drop, missing):
    def change(rank, step, tag, value):
        return None if drop(rank, step, tag) else value

    seen = verify(run(tmp_path / "a"), run(tmp_path / "b", change=change))

    assert not seen.equal
    assert all(one.second is None for one in seen.differences)
    assert missing == seen.missing_tags


def test_a_missing_rank_is_a_difference_even_when_one_is_left(tmp_path):
    seen = verify(run(tmp_path / "a", ranks=2, steps=3), run(tmp_path / "b", ranks=1, steps=3))

    assert ("rank1 (only in the first run)",) == seen.missing_ranks
    assert {"rank1"} == {one.rank for one in seen.differences}


def test_a_time_stamp_in_the_folders_does_not_part_the_runs(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    run(first / "20261101_120000", ranks=2, steps=2)
    run(second / "20261102_130000", ranks=2, steps=2)

    assert verify(first, second).equal


def test_a_restarted_run_has_two_files_and_two_occurrences(tmp_path):
    for name in ("a", "b"):
        by_tensorboard(tmp_path / name, [(1, "loss", 1.0), (2, "loss", 2.0)])
        by_tensorboard(tmp_path / name, [(2, "loss", 2.0), (3, "loss", 3.0)])

    assert verify(tmp_path / "a", tmp_path / "b").values == 4


def test_a_truncated_event_file_is_a_clear_error(tmp_path):
    first, second = run(tmp_path / "a", ranks=1), run(tmp_path / "b", ranks=1)
    file = next(second.rglob("*tfevents*"))
    file.write_bytes(file.read_bytes()[:-7])

    with pytest.raises(UsageError, match=r"tfevents.* is truncated or corrupt after 2\d\d records: has truncated record"):
        verify(first, second)


def test_a_corrupt_and_an_empty_event_file_are_clear_errors(tmp_path):
    first, second = run(tmp_path / "a", ranks=1), run(tmp_path / "b", ranks=1)
    file = next(second.rglob("*tfevents*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)

    with pytest.raises(UsageError, match="truncated or corrupt"):
        verify(first, second)
    file.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        verify(first, second)


def test_tensors_of_every_scalar_type_keep_their_bits_and_others_are_named(tmp_path):
    from tensorboard.util import tensor_util

    def write(folder, nan):
        writer = EventFileWriter(str(folder))
        for tag, array in {
            "double": np.float64(0.1),
            "half": np.float16(0.1),
            "count": np.int64(2**53 + 1),
            "nan": np.frombuffer(struct.pack("<I", nan), np.float32)[0],
            "histogram": np.zeros((3, 3), np.float32),
        }.items():
            proto = tensor_util.make_tensor_proto(array)
            writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag=tag, tensor=proto)])))
        writer.close()

    write(tmp_path / "a", 0x7FC00000)
    write(tmp_path / "b", 0x7FC00000)
    write(tmp_path / "c", 0x7FC00001)

    assert verify(tmp_path / "a", tmp_path / "b").equal
    seen = verify(tmp_path / "a", tmp_path / "c")
    assert [("nan", 0.0)] == [(one.tag, one.delta) for one in seen.differences]
    assert ("histogram",) == seen.not_scalars
    assert seen.values == 4


def test_a_profilers_empty_marker_is_no_event_file(tmp_path):
    for name in ("a", "b"):
        by_tensorboard(tmp_path / name, [(1, "loss", 1.0)])
        (tmp_path / name / "events.out.tfevents.1.host.profile-empty").touch()

    assert verify(tmp_path / "a", tmp_path / "b").equal


def test_images_and_text_are_named_not_compared(tmp_path):
    for name in ("a", "b"):
        with SummaryWriter(str(tmp_path / name)) as writer:
            writer.add_scalar("loss", 1.0, 1)
            writer.add_histogram("weights", torch.arange(5.0), 1)
            writer.add_text("note", name, 1)

    seen = verify(tmp_path / "a", tmp_path / "b")

    assert (1, ("note/text_summary", "weights")) == (seen.values, seen.not_scalars)


def jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_json_lines_are_compared_by_step_and_rank_with_all_digits(tmp_path):
    def records(last):
        return [
            {
                "step": step,
                "rank": rank,
                "loss": 0.1 + step,
                "norm": {"grad": -0.0, "param": last},
                "time": rank * last,
                "host": "n1",
            }
            for step in (1, 2)
            for rank in (0, 1)
        ]

    first = jsonl(tmp_path / "a.jsonl", records(1.2345678901234567))
    second = jsonl(tmp_path / "b.jsonl", records(math.nextafter(1.2345678901234567, 2)))

    seen = verify(first, second)

    assert (12, 3, 2, 2) == (seen.values, seen.tags, seen.steps, seen.ranks)
    assert {"norm/param"} == {one.tag for one in seen.differences}
    assert (("time",), ("host",), ()) == (seen.excluded, seen.not_scalars, seen.warnings)


def test_negative_zero_nan_and_infinity_in_text_logs_count_as_bits(tmp_path):
    texts = ['{"step": 1, "x": 0.0, "y": NaN, "z": Infinity}', '{"step": 1, "x": -0.0, "y": NaN, "z": Infinity}']
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / f"{name}.jsonl").write_text(text)

    seen = verify(tmp_path / "a.jsonl", tmp_path / "b.jsonl")

    assert [("x", 0.0)] == [(one.tag, one.delta) for one in seen.differences]


def test_long_records_name_their_tag(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("step,tag,value\n1,loss,0.123456789\n1,lr,0.5\n2,loss,0.1\n")

    seen = verify(tmp_path / "a.csv", tmp_path / "b.csv")

    assert (3, 2, 2) == (seen.values, seen.tags, seen.steps)


def test_rounded_logs_are_warned_about(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("iteration,loss,lr\n1,2.531,0.001\n2,2.498,0.001\n")

    seen = verify(tmp_path / "a.csv", tmp_path / "b.csv")

    assert seen.equal
    assert "no value has more than 4 significant digits" in seen.warnings[0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("b.jsonl", '{"step": 1, "loss": 1.5}\n{"step": 2, "lo', "line 2 is no JSON"),
        ("b.jsonl", "[1]\n", "line 1 is no JSON object"),
        ("b.jsonl", '{"step": 1.5, "loss": 1}\n', "step '1.5' is no whole number"),
        ("b.jsonl", '{"step": 1, "note": "x"}\n', "holds no scalars"),
        ("b.jsonl", "", "holds no scalars"),
        ("b.csv", "", "is empty"),
        ("b.csv", "step,loss\n1,2.5\n2\n", "line 3 has 1 fields, the header 2"),
        ("b.csv", 'step,loss\n1,"2.5\n', "line 2"),
    ],
)
def test_what_can_not_be_read_to_its_end_is_an_error_with_the_line(tmp_path, name, text, message):
    jsonl(tmp_path / "a.jsonl", [{"step": 1, "loss": 1.5}])
    (tmp_path / name).write_text(text)

    with pytest.raises(UsageError, match=message):
        verify(tmp_path / "a.jsonl", tmp_path / name)


def test_a_run_that_is_not_there_or_empty_or_itself_is_an_error(tmp_path):
    good = jsonl(tmp_path / "a.jsonl", [{"step": 1, "loss": 1.5}])
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError, match="no run at"):
        verify(good, tmp_path / "gone")
    with pytest.raises(UsageError, match="holds no TensorBoard event files"):
        verify(good, tmp_path / "empty")
    with pytest.raises(UsageError, match="are the same"):
        verify(good, tmp_path / "empty" / ".." / "a.jsonl")


def test_everything_excluded_is_an_error_and_include_brings_back(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", [{"step": 1, "step_time": 1.5}])
    second = jsonl(tmp_path / "b.jsonl", [{"step": 1, "step_time": 1.6}])

    with pytest.raises(UsageError, match="every tag is excluded: step_time"):
        verify(first, second)
    assert not verify(first, second, include=["step_*"]).equal
    jsonl(first, [{"step": 1, "loss": 1.0, "x": 1.0}])
    jsonl(second, [{"step": 1, "loss": 1.0, "x": 2.0}])
    assert verify(first, second, exclude=["X"]).equal


@pytest.mark.parametrize(
    ("tag", "left_out"),
    [
        ("iteration-time", True),
        ("timers/forward-backward-time", True),
        ("stepTime", True),
        ("throughput/tokens_per_sec", True),
        ("samples/s", True),
        ("tokens-per-second-per-gpu", True),
        ("tgs", True),
        ("perf/mfu", True),
        ("eta", True),
        ("max_memory", True),
        ("mem-reserved-bytes", True),
        ("memory", True),
        ("loss", False),
        ("lm loss vs samples", False),
        ("grad-norm", False),
        ("num-zeros", False),
        ("timestep_loss", False),
        ("update_ratio", False),
        ("samples/sum_loss", False),
        ("memory/loss", False),
        ("estimate", False),
        ("loss-scale", False),
    ],
)
def test_only_time_speed_and_memory_are_left_out_by_default(tag, left_out):
    assert left_out == excluded(tag)


def test_json_output_is_strict_json_with_every_difference(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", [{"step": 1, "x": 1.0, "y": 1.0}])
    second = jsonl(tmp_path / "b.jsonl", [{"step": 1, "x": math.nan}])

    content = json.loads(views.as_json(verify(first, second), "a", "b"), parse_constant=lambda text: pytest.fail(text))

    assert (False, 2, 2) == (content["equal"], content["counts"]["values"], content["counts"]["differing"])
    assert [("x", None), ("y", None)] == [(one["tag"], one["delta"]) for one in content["differences"]]
    assert content["differences"][1]["second"] is None


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [([1.0], 60, "▁"), ([1e-7, 1e-7], 60, "▁▁"), ([1e-8, 1e-1], 60, "▁█"), ([1.0, 8.0, 1.0, 2.0], 2, "█▁")],
)
def test_the_plot_is_logarithmic_and_keeps_the_largest(values, width, expected):
    assert expected == views.plot(values, width)
