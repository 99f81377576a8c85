"""The wheel works where there is no checkout, and adds no module called workloads."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

from tests.functional.cli import ROOT, UNLESS_NOISY


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the unpacked wheel, as pip would lay it out."""
    built, site = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def installed(site, cwd, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-m", "perfgate", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )


def test_the_wheel_holds_workloads_and_thresholds_below_its_own_package(site):
    tops = {path.name for path in site.iterdir()}

    assert "perfgate" in tops
    assert all(name == "perfgate" or name.endswith(".dist-info") for name in tops)
    assert (site / "perfgate" / "bundled" / "workloads" / "moe" / "combine" / "ops.py").is_file()
    assert (site / "perfgate" / "bundled" / "thresholds" / "cpu.toml").is_file()


def test_it_lists_the_bundled_ops_from_anywhere(site, tmp_path):
    done = installed(site, tmp_path, "list", "--format", "json")

    assert 0 == done.returncode, done.stderr
    sources = {one["op"]: one["source"] for one in json.loads(done.stdout)}
    assert "workloads/moe/combine/ops.py" == sources["moe/combine"]


def test_it_runs_the_main_job_from_anywhere(site, tmp_path):
    options = ["--mode", "both", "--op", "segment/index_add", "--blocks", "1", "--no-confirm", "--iterations", "5"]

    done = installed(site, tmp_path, "run", *options, "--device", "cpu")

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert {"result.json", "report.html", "leaderboard.csv"} <= {path.name for path in run.iterdir()}
