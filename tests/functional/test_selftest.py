import json

import pytest

from tests.functional.cli import perfgate


def test_simulation_as_json():
    done = perfgate("selftest", "--simulate", "--runs", "50", "--format", "json")
    told = json.loads(done.stdout)

    assert 0 == done.returncode
    assert [3, 6, 12, 24] == told["looks"]
    for row in told["perfgate"]:
        assert row["false_fail_low"] <= 0.05
        assert row["false_pass_low"] <= 0.05
        assert row.get("power_high", 1) >= 0.95
    assert max(row["false_fail"] for row in told["naive"]) > 0.5
    assert max(row["false_pass"] for row in told["naive"]) > 0.5


def test_simulation_as_table_and_markdown():
    table = perfgate("selftest", "--simulate", "--runs", "50")
    markdown = perfgate("selftest", "--simulate", "--runs", "50", "--format", "markdown")

    assert (0, 0) == (table.returncode, markdown.returncode)
    assert "found at +2 %" in table.stdout
    assert "| perfgate | H200, 0.4 % between processes |" in markdown.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "html"], "--format html"),
        (["--format", "markdown"], "--format markdown"),
        (["--recorded", "x.json"], "--recorded needs --simulate"),
        (["--simulate", "--recorded", "missing.json"], "holds no noise pool"),
        (["--blocks", "0", "--device", "cpu"], "blocks = 0 (at least 1)"),
    ],
)
def test_bad_requests(arguments, says):
    done = perfgate("selftest", *arguments)

    assert 2 == done.returncode
    assert says in done.stderr


def test_live_controls_on_a_cpu_are_told_apart(tmp_path):
    """A CPU is too noisy to promise the timing controls; the race and the empty range must be caught on any machine."""
    options = ("--device", "cpu", "--profiler", "torch", "--blocks", "1", "--max-blocks", "1", "--format", "json", "--quiet")
    done = perfgate("selftest", *options, "--out", tmp_path / "runs")
    told = json.loads(done.stdout)
    by_name = {one["name"]: one for one in told["controls"]}

    assert done.returncode in (0, 1, 4)
    assert told["exit_code"] == done.returncode
    assert by_name["selftest/racy"]["ok"], by_name
    assert by_name["selftest/empty"]["ok"], by_name
    assert by_name["selftest/same"]["found"].startswith(("pass", "inconclusive"))
    assert (tmp_path / "runs" / "controls" / "result.json").is_file()
