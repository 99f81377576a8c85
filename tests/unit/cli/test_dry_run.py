"""How long a run may take is told from earlier runs, as far as they can be read."""

from dataclasses import replace

from perfgate.cli._dry_run import _seconds_per_child
from perfgate.model import Capture, RunSpec
from perfgate.profilers.spec_file import dump_capture

SPEC = RunSpec("one", "time", "default", (), "cpu")


def earlier(runs, name, seconds, **change):
    folder = runs / name / "captures" / "one"
    folder.mkdir(parents=True)
    (runs / name / "run.json").write_text("{}")
    dump_capture(replace(Capture(SPEC, "captures/one", "", True, "", seconds), **change), folder / "capture.json")
    return folder / "capture.json"


def test_the_median_of_complete_children_on_the_same_device(tmp_path):
    for name, seconds in (("a", 4.0), ("b", 6.0), ("c", 100.0)):
        earlier(tmp_path, name, seconds)
    earlier(tmp_path, "failed", 0.1, complete=False)
    earlier(tmp_path, "gpu", 0.1, spec=replace(SPEC, device="cuda:0"))

    assert 6.0 == _seconds_per_child(tmp_path, "cpu")


def test_a_damaged_run_tells_nothing_and_breaks_nothing(tmp_path):
    earlier(tmp_path, "a", 4.0)
    earlier(tmp_path, "b", 0.0).write_text('{"spec": 7')

    assert 4.0 == _seconds_per_child(tmp_path, "cpu")
    assert _seconds_per_child(tmp_path / "none", "cpu") is None
