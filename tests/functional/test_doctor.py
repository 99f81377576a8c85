"""`perfgate doctor` as a process: what it prints, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfgate", "doctor", *arguments],
        env={**os.environ, "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def checks(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(ran.stdout)["checks"]}


def fake_nsys(folder: Path, profile: str) -> str:
    path = folder / "target-linux-x64" / "nsys"
    host = folder / "host-linux-x64" / "QdstrmImporter"
    for place in (path, host):
        place.parent.mkdir()
    path.write_text(
        "#!/bin/sh\nif [ $1 = --version ]; then echo NVIDIA Nsight Systems version 2023.4.4.1; exit; fi\n"
        f"if [ $2 = --help ]; then echo --trace= --output=; exit; fi\n{profile}\n"
    )
    host.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    host.chmod(0o755)
    return str(path)


@pytest.mark.nsys
def test_a_machine_where_nsys_works() -> None:
    ran = doctor("--format", "json")
    found = checks(ran)

    assert (0, 0) == (ran.returncode, json.loads(ran.stdout)["exit_code"]), ran.stdout
    assert {"python", "torch", "triton", "nvtx", "nsys", "importer", "probe capture", "contract", "disk", "gpu"} <= set(found)
    assert "ok" == found["probe capture"]["status"]


@pytest.mark.nsys
def test_the_table_says_each_line_and_the_conclusion() -> None:
    ran = doctor()

    assert (0, "", True) == (ran.returncode, ran.stderr, ran.stdout.endswith("`perfgate run --profiler nsys` works here\n"))
    assert [] == [line for line in ran.stdout.splitlines()[:-1] if line.split()[0] not in ("ok", "warning", "next:")]


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        ("exit 0", "nsys ended with exit 0 and wrote no report"),
        ("echo no such option; exit 2", "nsys failed (exit 2) and wrote no report: no such option"),
    ],
)
def test_a_probe_that_records_nothing_is_exit_6(tmp_path: Path, profile: str, text: str) -> None:
    ran = doctor("--format", "json", PERFGATE_NSYS=fake_nsys(tmp_path, profile))
    probe = checks(ran)["probe capture"]

    assert (6, "error", True) == (ran.returncode, probe["status"], probe["text"].startswith(text)), probe


def test_an_importer_that_lacks_a_library_is_exit_6_with_its_mend(tmp_path: Path) -> None:
    nsys = fake_nsys(tmp_path, "exit 0")
    (tmp_path / "host-linux-x64" / "QdstrmImporter").write_text("#!/bin/sh\necho cannot open libdw.so.1 >&2; exit 127\n")
    found = checks(ran := doctor("--format", "json", PERFGATE_NSYS=nsys))

    assert (6, "error", "error") == (ran.returncode, found["importer"]["status"], found["probe capture"]["status"])
    assert ("cannot open libdw.so.1" in found["importer"]["text"], True) == (True, bool(found["importer"]["mend"]))


def test_no_nsys_is_exit_6_and_told_in_the_table(tmp_path: Path) -> None:
    ran = doctor(PERFGATE_NSYS=str(tmp_path / "nothing"))

    assert (6, True) == (ran.returncode, "broken: nsys; `perfgate run --profiler nsys` can't work here" in ran.stdout)
    assert "next: correct it, or unset it to search" in ran.stdout


def test_a_broken_contract_is_a_warning_only(tmp_path: Path) -> None:
    ran = doctor("--format", "json", NCCL_ALGO="Tree", PERFGATE_NSYS=str(tmp_path / "nothing"))

    assert ("warning", True) == (checks(ran)["contract"]["status"], "NCCL_ALGO" in checks(ran)["contract"]["text"])


def test_an_unknown_format_is_a_usage_error() -> None:
    ran = doctor("--format", "yaml")

    assert (2, "error: --format yaml\nnext: use table or json\n") == (ran.returncode, ran.stderr)
