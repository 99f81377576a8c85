import json

import pytest

from perfgate.errors import UnusableError, UsageError
from perfgate.program.metrics import Checked, Comparer, collect, refuse_stale


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "run" / "program"
    (folder / "metrics").mkdir(parents=True)
    return folder


def write(path, *losses):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses)))
    return path


def test_nothing_asked_for_and_nothing_left(own):
    assert collect("", own) is None


def test_what_lies_in_the_runs_own_folder_is_taken_unasked(own):
    write(own / "metrics" / "loss.jsonl", 1.0)

    assert own / "metrics" == collect("", own)


def test_a_place_in_the_runs_folder_stays_where_it_is(own):
    file = write(own / "logs" / "loss.jsonl", 1.0)

    assert file == collect("{run}/logs/loss.jsonl", own)
    assert file.exists()


def test_a_fixed_place_is_moved_so_that_the_next_run_starts_clean(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "logs" / "loss.jsonl", 1.0)
    refuse_stale("elsewhere")
    kept = collect("logs", own)

    assert not (tmp_path / "logs").exists()
    assert (kept / "loss.jsonl").exists()
    assert kept.is_relative_to(own)


def test_what_is_there_before_any_run_could_pass_for_new(tmp_path):
    file = write(tmp_path / "loss.jsonl", 1.0)
    with pytest.raises(UsageError, match="is there before any run"):
        refuse_stale(str(file))


def test_metrics_that_were_not_written(own):
    with pytest.raises(UnusableError, match="left no metrics at"):
        collect("{run}/none", own)


def test_every_run_is_held_against_the_first(tmp_path):
    comparer = Comparer()
    for number, losses in enumerate([(1.0, 2.0), (1.0, 2.0), (1.0, 2.5), (0.5, 2.0)]):
        comparer.add("default", f"run{number}", write(tmp_path / str(number) / "loss.jsonl", *losses))
    comparer.add("other", "run4", write(tmp_path / "4" / "loss.jsonl", 9.0))
    seen = comparer.of("default")

    assert (4, 2, 2) == (seen.runs, seen.differing, seen.values)
    assert "step 1, loss, loss: 2.0 in the first run, 2.5 in run2 (1 of 2 values)" == seen.first_difference
    assert Checked(1, 0, 0) == comparer.of("other")
    assert comparer.of("third") is None


def test_a_value_that_is_missing_differs(tmp_path):
    comparer = Comparer()
    comparer.add("a", "run0", write(tmp_path / "0" / "loss.jsonl", 1.0, 2.0))
    seen = comparer.add("a", "run1", write(tmp_path / "1" / "loss.jsonl", 1.0))

    assert "step 1, loss, loss: 2.0 in the first run, missing in run1 (1 of 2 values)" == seen.first_difference


def test_metrics_that_can_not_be_read_name_their_run(tmp_path):
    (tmp_path / "loss.jsonl").write_text("{")
    with pytest.raises(UnusableError, match="run7: "):
        Comparer().add("a", "run7", tmp_path / "loss.jsonl")


def test_bits_of_an_arm_and_of_the_default_as_its_control():
    bits = Checked(6, 0, 100).bits(Checked(6, 5, 100, "step 3"))

    assert (5, 0, 6, 5, 5, "") == (
        *(bits.replays, bits.differing, bits.processes),
        *(bits.default_differing, bits.default_replays, bits.first_difference),
    )
    assert Checked(6, 0, 100).bits(None).default_differing is None
