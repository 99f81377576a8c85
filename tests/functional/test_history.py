"""``perfgate history`` as a process, and its page in a browser's eyes."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest

from perfgate.render.json import dumps
from tests.unit.render import histories, samples

CALL = [sys.executable, "-c", "from perfgate.cli import main; main()"]


def perfgate(*arguments):
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run([*CALL, *map(str, arguments)], capture_output=True, encoding="utf-8", env=environment, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for n in range(12):
        (folder / f"run-{n:02d}").mkdir()
        slow = 1.0 if n < 7 else 1.06
        result = histories.run(n, round(1_000_000 * slow), round(600_000 * slow))
        (folder / f"run-{n:02d}" / "result.json").write_text(dumps(result))
    return folder


def test_the_table_names_the_commit_that_changed_the_level(runs):
    done = perfgate("history", runs)
    text = " ".join(done.stdout.split())

    assert done.returncode == 0
    assert "12 runs, 1 ranges" in text
    assert re.search(r"default ▁+█+ \S+ \S+ → \S+ \S+ \+[56]\.\d % since 0000000000 \(2026-11-01\)", text)
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--base", "run-00"], 1, "✗ fail  default_regression moe/combine:typical:fwd"),
        (["--base", "run-00", "--allow", "20%"], 0, "✓ pass  deterministic_regression"),
        (["--base", "run-08"], 0, "✓ pass  default_regression"),
    ],
)
def test_a_base_decides_the_exit_code(runs, options, code, said):
    done = perfgate("history", runs, *(runs / option if option.startswith("run-") else option for option in options))

    assert (done.returncode, done.stderr) == (code, "")
    assert said in done.stdout


def test_another_machine_is_exit_5(runs, tmp_path):
    (tmp_path / "result.json").write_text(dumps(histories.run(0, cuda="12.8")))
    done = perfgate("history", runs, "--base", tmp_path)

    assert done.returncode == 5
    assert "ENVIRONMENT_CHANGED: cuda" in " ".join(done.stdout.split())


def test_json_is_whole_and_unrounded(runs):
    content = json.loads(perfgate("history", runs, "--format", "json", "--base", runs / "run-00").stdout)

    assert content["series"][0]["changes"]["default"][0]["at"] == 7
    assert [one["name"] for one in content["regressions"]] == ["default_regression", "deterministic_regression"]
    assert content["series"][0]["points"][0]["values"]["ratio"]["value"] != round(
        content["series"][0]["points"][0]["values"]["ratio"]["value"], 4
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "holds no result.json"),
        (["{runs}", "--allow", "much"], "is no percentage"),
        (["{runs}", "--format", "yaml"], "use table or json"),
        (["{runs}", "--only", "no/*"], "none of these runs"),
        (["{runs}", "--base", "nowhere"], "nowhere"),
    ],
)
def test_a_bad_request_is_exit_2_in_words(runs, arguments, said):
    done = perfgate("history", *(argument.format(runs=runs) for argument in arguments))

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_is_self_contained_and_marks_the_change(runs, tmp_path):
    perfgate("history", runs, "--base", runs / "run-00", "--html", tmp_path / "history.html")
    text = (tmp_path / "history.html").read_text(encoding="utf-8")

    assert text.count('<path class="change"') == 2
    assert not re.search(r'(?:src|href)="(?!#)', text)
    assert "default-src &#39;none&#39;" in text
    assert 'aria-label="default over 12 runs' in text


def test_hostile_names_are_harmless_there_too(tmp_path):
    run = histories.run(1)
    names = [*samples.HOSTILE]
    comparisons = tuple(dataclasses.replace(run.comparisons[0], op=name, implementation=name) for name in names)
    (tmp_path / "result.json").write_text(dumps(dataclasses.replace(run, comparisons=comparisons)))
    done = perfgate("history", tmp_path, "--html", tmp_path / "history.html", "--base", tmp_path)
    text = (tmp_path / "history.html").read_text(encoding="utf-8")

    assert "Traceback" not in done.stderr
    assert not set("\x1b\u202e\x00\u200b\x07") & set(done.stdout + text)
    assert "<script>alert" not in text
