from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.errors import UnusableError
from perfgate.model import Capture, RunSpec
from perfgate.profilers.spec_file import Done, VariantDone, dump_capture, dump_spec, load_capture, load_done, load_spec


def test_a_spec_survives_its_file_whole(tmp_path: Path, spec: RunSpec) -> None:
    written = replace(spec, workload_paths=("a", "b"), memory_fill=True, profiler="nsys", device="cuda:1")
    dump_spec(written, tmp_path / "spec.json")

    assert written == load_spec(tmp_path / "spec.json")


def test_a_capture_survives_its_file_whole(tmp_path: Path, spec: RunSpec) -> None:
    written = Capture(spec, "captures/x", "trace.sqlite", False, 'it said "no" – twice', 1.25)
    dump_capture(written, tmp_path / "capture.json")

    assert written == load_capture(tmp_path / "capture.json")


def test_writing_leaves_no_half_file(tmp_path: Path, spec: RunSpec) -> None:
    dump_spec(spec, tmp_path / "spec.json")

    assert ["spec.json"] == [path.name for path in tmp_path.iterdir()]


def test_a_done_file_with_figures_of_its_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "done.json").write_text('{"complete": true, "variants": {"x": {"instances": 3, "digests": ["ab"], "more": 1}}}')

    assert Done(True, {"x": VariantDone(3)}) == load_done(tmp_path / "done.json")


def test_no_done_file_is_no_error(tmp_path: Path) -> None:
    assert load_done(tmp_path / "done.json") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"complete": 7, "variants": {}}', '{"variants": {"x": {"status": "fine"}}}'])
def test_a_broken_done_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "done.json").write_text(text)

    with pytest.raises(UnusableError, match=r"done\.json is not readable"):
        load_done(tmp_path / "done.json")


def test_a_spec_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match=r"can't read spec\.json"):
        load_spec(tmp_path / "spec.json")
