"""The run directory: never overwritten, never half written, unreadable ones refused in words."""

import os
from datetime import UTC, datetime

import pytest

from perfgate.errors import PerfgateError, UsageError
from perfgate.store import RunDirectory, load_result

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def test_a_run_gets_a_folder_named_by_its_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    run = RunDirectory.create("", NOW)

    assert run.id.startswith("20261129T120000Z-")
    assert (run.path / "captures").is_dir()


def test_writes_are_whole_or_not_at_all(tmp_path, monkeypatch):
    run = RunDirectory.create(str(tmp_path / "run"), NOW)
    run.write_text("result.json", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)

    with pytest.raises(PerfgateError, match="No space left on device") as caught:
        run.write_text("result.json", "new")
    assert "old" == (run.path / "result.json").read_text()
    assert "free space" in caught.value.mend


def test_what_is_no_run_directory(tmp_path):
    with pytest.raises(UsageError, match="not a run directory"):
        RunDirectory.open(tmp_path)


def test_a_broken_run_file_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{")

    with pytest.raises(UsageError, match=r"run\.json can't be read"):
        RunDirectory.open(tmp_path).read_run()


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 99}', "[]"])
def test_a_result_that_can_not_be_understood_is_refused(tmp_path, text):
    (tmp_path / "result.json").write_text(text)

    with pytest.raises(UsageError):
        load_result(tmp_path)
