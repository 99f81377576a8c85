""".github/workflows/perf.yml: linted, safe to copy, and its shell steps run here on a CPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/perf.yml"
CONTENT = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
TRIGGERS = CONTENT[True]  # YAML 1.1 reads the key `on` as true
STEPS = CONTENT["jobs"]["measure"]["steps"]
SMALL = "--op moe/routing_map --blocks 1 --max-blocks 1 --iterations 3 --replays 2 --no-confirm --on-inconclusive pass"


def test_actionlint_finds_nothing():
    linter = Path(sys.executable).parent / "actionlint"
    done = subprocess.run([str(linter), "-shellcheck=", str(WORKFLOW)], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_forks_pull_request_meets_neither_the_machine_nor_a_secret():
    text = WORKFLOW.read_text(encoding="utf-8")
    guard = "github.event.pull_request.head.repo.full_name == github.repository"

    assert "pull_request_target" not in TRIGGERS
    assert "secrets." not in text
    assert guard in CONTENT["jobs"]["measure"]["if"]
    assert CONTENT["permissions"] == {"contents": "read"}
    assert "permissions" not in CONTENT["jobs"]["measure"]


def test_no_expression_is_pasted_into_a_shell():

    assert [step["name"] for step in STEPS if "${{" in step.get("run", "")] == []


def test_the_checkout_leaves_no_token_behind_and_every_job_ends():
    checkout = next(step for step in STEPS if step.get("uses", "").startswith("actions/checkout"))

    assert checkout["with"]["persist-credentials"] is False
    assert all(0 < job["timeout-minutes"] <= 120 for job in CONTENT["jobs"].values())
    assert CONTENT["concurrency"]["cancel-in-progress"] is True


def test_artifacts_are_kept_of_failed_runs_and_never_a_report_that_holds_the_environment():
    upload = next(step for step in STEPS if step.get("uses", "").startswith("actions/upload-artifact"))

    assert upload["if"] == "always()"
    assert "!${{ env.RUN }}/**/*.nsys-rep" in upload["with"]["path"]


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like the checkout after `make` has set it up, with this environment's perfgate."""
    folder = tmp_path / "checkout"
    (folder / ".venv/bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    command = folder / ".venv/bin/perfgate"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from perfgate.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    (folder / ".venv/.ready").touch()
    return folder


def environment(folder, **changes):
    plain = {name: str(value) for name, value in CONTENT["env"].items() if "${{" not in str(value)}
    github = {"GITHUB_STEP_SUMMARY": str(folder / "summary"), "GITHUB_WORKSPACE": str(folder)}
    return {**os.environ, **plain, **github, "SUITE": "smoke", "DEVICE": "cpu", "RUN_OPTIONS": SMALL, **changes}


def step(name, folder, **changes):
    """What the runner does: the step's text in a file, with its default shell."""
    text = next(one["run"] for one in STEPS if one.get("name") == name)
    call = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(call, cwd=folder, env=environment(folder, **changes), capture_output=True, text=True, check=False)


def test_its_shell_steps_measure_and_report_on_a_cpu(checkout):
    done = {}
    for name in ("Set up", "Doctor", "Measure and judge", "Report", "Keep the night", "Both arms against last night"):
        done[name] = step(name, checkout)
    run = checkout / "runs/ci"
    written = {path.name for path in run.iterdir()}
    summary = (checkout / "summary").read_text(encoding="utf-8")

    assert {name: one.returncode for name, one in done.items()} == dict.fromkeys(done, 0), done
    assert {
        "result.json",
        "report.html",
        "summary.md",
        "junit.xml",
        "perfgate.sarif",
        "perfetto.json",
        "history.html",
    } <= written
    assert "CPU figures: no GPU verdict" in summary
    assert ET.parse(run / "junit.xml").getroot().get("errors") == "0"  # noqa: S314 - our own file
    assert "PASS (exit 0)" in done["Report"].stdout or "INCONCLUSIVE (exit 0)" in done["Report"].stdout
    assert "default_regression" in done["Both arms against last night"].stdout


def test_the_gates_exit_code_is_the_steps(checkout):
    done = step("Measure and judge", checkout, SUITE="no-such-suite")

    assert done.returncode == 2
    assert "error: " in done.stderr


def test_no_result_is_said_in_red_and_never_passes(checkout):
    done = step("Report", checkout)

    assert done.returncode == 1
    assert done.stdout.startswith("::error title=perfgate::no result was written")
    assert "nothing was measured" in (checkout / "summary").read_text(encoding="utf-8")


def test_without_a_night_there_is_nothing_to_compare_with(checkout):
    done = step("Both arms against last night", checkout)

    assert (done.returncode, done.stdout) == (0, "No night to compare with, or no result.\n")
