import os
import stat
from pathlib import Path

import pytest

import perfgate.render
from perfgate.errors import UsageError
from perfgate.render import FORMATS, Export, parse_exports, write, write_exports
from tests.unit.render import samples


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("make", [samples.mixed, samples.on_cpu, samples.hostile, lambda: samples.result([])])
def test_every_format_renders_every_kind_of_result_the_same_each_time(name, make):

    text = FORMATS[name](make())

    assert text == FORMATS[name](make())
    assert text.encode("utf-8").decode("utf-8") == text


def test_a_new_format_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "shout.py").write_text("def render(result):\n    return result.verdict.status.upper()\n")
    monkeypatch.setattr(perfgate.render, "__path__", [*perfgate.render.__path__, str(tmp_path)])

    assert "shout" in FORMATS
    assert FORMATS["shout"](samples.result()) == "PASS"


def test_exports_are_read_and_written(tmp_path):
    exports = parse_exports([f"csv={tmp_path}/a=b.csv", f"json={tmp_path}/r.json"])
    paths = write_exports(samples.result(), exports)

    assert exports == [Export("csv", tmp_path / "a=b.csv"), Export("json", tmp_path / "r.json")]
    assert paths[0].read_text(encoding="utf-8") == FORMATS["csv"](samples.result())


@pytest.mark.parametrize("option", ["nope=x", "csv", "csv=", "csv=no/such/folder/x.csv", "csv=.", "terminal=x", "_view=x"])
def test_a_bad_export_is_refused_before_anything_runs(option):
    with pytest.raises(UsageError) as caught:
        parse_exports([option])

    assert option in caught.value.text
    assert caught.value.mend


def test_writing_leaves_the_old_file_or_the_new_one_with_ordinary_permissions(tmp_path):
    path = write(tmp_path / "x.txt", "old")
    write(path, "new")
    mask = os.umask(0)
    os.umask(mask)

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_an_unwritable_path_is_an_error_in_words(tmp_path):
    with pytest.raises(UsageError) as caught:
        write(tmp_path / "gone" / "x.txt", "text")

    assert "could not be written" in caught.value.text


def test_a_full_disk_is_an_error_in_words():
    with pytest.raises(UsageError) as caught:
        write(Path("/dev/full"), "text")

    assert "could not be written" in caught.value.text
