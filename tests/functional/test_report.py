"""``perfgate report`` as a user meets it: a stored run, another process, files on disk."""

import json
import os
import subprocess
import sys

import pytest

from perfgate.render import FORMATS
from perfgate.render.json import dumps
from tests.unit.render import samples

CALL = [sys.executable, "-c", "from perfgate.cli import main; main()"]


def perfgate(*arguments, **environment):
    return subprocess.run(
        [*CALL, *map(str, arguments)], capture_output=True, encoding="utf-8", env={**os.environ, **environment}, check=False
    )


@pytest.fixture
def run(tmp_path):
    (tmp_path / "result.json").write_text(dumps(samples.mixed()))
    return tmp_path


def test_the_table_is_printed_and_the_report_is_made_again(run):
    (run / "report.html").write_text("stale")
    done = perfgate("report", run)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("ERROR (exit 6)")
    assert (run / "report.html").read_text(encoding="utf-8") == FORMATS["html"](samples.mixed())


def test_no_html_leaves_the_run_alone(run):
    perfgate("report", run / "result.json", "--no-html")

    assert [path.name for path in run.iterdir()] == ["result.json"]


@pytest.mark.parametrize("name", ["json", "csv", "markdown", "github"])
def test_a_format_goes_to_stdout_exactly_as_to_a_file(run, name):
    done = perfgate("report", run, "--format", name, "--export", f"{name}={run}/view")

    assert done.stdout == (run / "view").read_text(encoding="utf-8") == FORMATS[name](samples.mixed())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "yaml"], "formats are table, json, csv, markdown, github"),
        (["--only", "nothing/*"], "ranges are like"),
        (["--export", "pdf=x"], "unknown format 'pdf'"),
        (["--export", "csv=/no/such/folder/x"], "existing folder"),
    ],
)
def test_a_bad_option_is_exit_2_with_its_mend(run, arguments, said):
    done = perfgate("report", run, *arguments)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b'{"schema_version": 2}'])
def test_a_run_that_cannot_be_read_is_exit_2_in_words(tmp_path, content):
    if content is not None:
        (tmp_path / "result.json").write_bytes(content)
    done = perfgate("report", tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_the_terminals_width_is_kept_and_wide_is_wide(run):
    narrow = perfgate("report", run, COLUMNS="80").stdout
    wide = perfgate("report", run, "--wide", COLUMNS="170").stdout

    assert max(map(len, narrow.splitlines())) <= 80
    assert "GPU ops" not in narrow
    assert "GPU ops" in wide


def test_reporting_needs_neither_torch_nor_pandas(run):
    script = "import sys\nfrom perfgate.cli.report import report\nimport pathlib\n"
    script += f"report(pathlib.Path({str(run)!r}), 'json')\n"
    script += "print([m for m in ('torch', 'triton', 'pandas') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)

    assert done.stderr == "[]\n"
    assert json.loads(done.stdout)["schema_version"] == 1


def test_only_shows_a_part_and_says_so_while_the_verdict_stays_that_of_the_run(run):
    done = perfgate("report", run, "--only", "moe/*", "--export", f"html={run}/moe.html")

    assert "shows 2 of 7 ranges (--only moe/*); the verdict is of the whole run" in " ".join(done.stdout.split())
    assert "loss/ce" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ERROR (exit 6)")
    assert "moe/permute" in (run / "moe.html").read_text(encoding="utf-8")
    assert not (run / "report.html").exists()
