"""A real nsys on real child processes, without a GPU: what it records, and every way in which it can fail to."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.model import Capture, RunSpec, Variant
from perfgate.profilers import child, nsys_found
from perfgate.profilers.nsys import NsysProfiler
from perfgate.profilers.nsys_found import NsysFacts, find_nsys, probe
from perfgate.traces import read

pytestmark = pytest.mark.nsys

VARIANT = Variant("segment/index_add", "smoke", "fwd", "torch.index_add_", "default")
SPEC = RunSpec(id="time-b00-0-default", purpose="time", mode="default", variants=(VARIANT,), device="cpu", iterations=3)
LOG = f"captures/{SPEC.id}/worker.log"
PLANTED = "planted-7f3a9c51e0"

PROGRAM = f"""
import json, os, subprocess, sys, time
from pathlib import Path
import nvtx
folder = Path(sys.argv[1])
def measure(instances=3):
    for _ in range(instances):
        nvtx.push_range({VARIANT.name!r}, domain="perfgate")
        nvtx.pop_range(domain="perfgate")
def done(instances=3):
    variants = {{{VARIANT.name!r}: {{"instances": instances, "status": "ok", "text": ""}}}}
    (folder / "done.json").write_text(json.dumps({{"complete": True, "variants": variants}}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "captures" / SPEC.id


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes ``text`` what runs instead of the worker: no torch, so each test takes about two seconds."""

    def use(text: str) -> None:
        monkeypatch.setattr(
            child, "worker_command", lambda folder: [sys.executable, "-c", PROGRAM + text, str(folder.resolve())]
        )

    return use


def capture(folder: Path, spec: RunSpec = SPEC, facts: NsysFacts | None = None, timeout_s: float = 120.0) -> Capture:
    captured = NsysProfiler(facts or probe(find_nsys())).capture(spec, folder, timeout_s=timeout_s)

    assert [] == [path.name for path in folder.iterdir() if path.name.startswith(("profile.", "full."))]
    return captured


def stored_bytes(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()


def test_a_cpu_program_gives_its_ranges(program: Callable[[str], None], folder: Path) -> None:
    program("measure(); done()")
    captured = capture(folder)
    held = read(folder / captured.trace)

    assert ("", True, False) == (captured.error, captured.complete, held.has_gpu)
    assert str(folder).encode() not in (folder / "worker.log").read_bytes()
    assert [VARIANT.name] * 3 == list(held.ranges["name"][held.ranges["domain"] == "perfgate"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("measure(); raise RuntimeError('boom')", f"the worker failed (exit 1); see {LOG}: RuntimeError: boom"),
        ("measure(); os.kill(os.getpid(), 9)", "the child was killed (signal 9, out of memory?)"),
        ("measure(); os.kill(os.getpid(), 11)", "the child died of signal 11 (SIGSEGV)"),
        ("measure(); done(); os._exit(42)", "the worker failed (exit 42)"),
        ("measure()", "the worker ended without its done file"),
        ("measure(2); done(3)", f"range {VARIANT.name}: 2 of 3 instances recorded"),
        ("done()", "the profile is empty: neither ranges nor GPU work in it"),
    ],
)
def test_each_failure_has_its_own_words(program: Callable[[str], None], folder: Path, text: str, expected: str) -> None:
    program(text)
    captured = capture(folder)

    assert (False, True) == (captured.complete, captured.error.startswith(expected)), captured.error


def test_exit_0_without_a_report_is_told(program: Callable[[str], None], folder: Path) -> None:
    program("measure(); done()")
    captured = capture(folder, replace(SPEC, device="cuda:0"))  # waits for a cudaProfilerStart that never comes

    assert captured.error.startswith("nsys captured nothing: the child never called cudaProfilerStart")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise ValueError('early')", f"the worker failed (exit 1); see {LOG}: ValueError: early"),
        ("sys.exit(3)", "the worker failed (exit 3)"),
        ("os.kill(os.getpid(), 9)", "the child was killed (signal 9, out of memory?)"),
        ("pass", "nsys ended with exit 0 and wrote no report"),
    ],
)
def test_a_program_that_fails_before_its_capture_begins_is_not_nsyss_failure(
    program: Callable[[str], None], folder: Path, text: str, expected: str
) -> None:
    program(text)
    captured = capture(folder, replace(SPEC, device="cuda:0"))

    assert captured.error.startswith(expected), captured.error


def test_a_timeout_ends_nsys_its_agent_and_the_childs_children(program: Callable[[str], None], folder: Path) -> None:
    program("print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, os.getpid(), flush=True); time.sleep(600)")
    captured = capture(folder, timeout_s=8)

    assert captured.error.startswith("the child was ended after 8 s; raise --timeout")
    pids = [int(word) for word in (folder / "worker.log").read_text().split()[:2]]
    assert [False, False] == [running(pid) for pid in pids]
    assert [] == [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in contents(entry)]


def running(pid: int) -> bool:
    return b"\nState:\tZ" not in contents(Path(f"/proc/{pid}/status")) and Path(f"/proc/{pid}").exists()


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_no_stored_byte_holds_a_secret_of_the_environment(
    program: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_OWN_VARIABLE", "DATABASE_URL"):
        monkeypatch.setenv(name, f"{PLANTED}-{name}")
    program("print('said', file=sys.stderr); measure(); done()")
    captured = capture(folder)

    assert "" == captured.error
    assert [] == [
        name
        for name, data in stored_bytes(folder.parent.parent)
        if PLANTED.encode() in data or PLANTED.encode("utf-16-le") in data
    ]


def test_the_slim_trace_holds_nothing_of_the_environment_at_all(
    program: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_CACHE_PATH", f"/{PLANTED}")  # let through to the child, and so in nsys's own files
    program("print(os.environ['CUDA_CACHE_PATH']); measure(); done()")
    captured = capture(folder)

    assert ["worker.log"] == [name for name, data in stored_bytes(folder) if PLANTED.encode() in data], captured.error


@pytest.fixture
def nsys_apart(tmp_path: Path) -> Path:
    """The nsys of this machine in a folder without its host half, as Debian installs it."""
    source = find_nsys().resolve().parent
    target = tmp_path / "apart" / source.name
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name.startswith("nsys"):
            shutil.copy2(path, target / path.name)  # they find their neighbours from their own real path
        else:
            (target / path.name).symlink_to(path)
    return target / "nsys"


def test_an_importer_that_lies_apart_imports_what_nsys_left(
    program: Callable[[str], None], folder: Path, nsys_apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importer = probe(find_nsys()).importer
    assert importer is not None
    monkeypatch.setattr(nsys_found, "DEBIAN", importer.resolve().parent.parent)
    program("measure(); done()")
    facts = probe(nsys_apart)
    captured = capture(folder, facts=facts)

    assert ("", True) == (captured.error, captured.complete)
    assert b"The importer binary" in (folder / "worker.log").read_bytes()
    assert facts.importer_problem.startswith("nsys can't find its importer by itself")


def test_without_any_importer_the_left_over_is_told_with_its_mend(
    program: Callable[[str], None], folder: Path, nsys_apart: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nsys_found, "DEBIAN", tmp_path / "nothing")
    program("measure(); done()")
    captured = capture(folder, facts=probe(nsys_apart))

    assert captured.error.startswith("nsys left profile.qdstrm, which was never imported: no QdstrmImporter beside")
    assert captured.error.endswith(nsys_found.INSTALL_HOST)


def test_scratch_files_of_an_nsys_that_was_killed_are_gone(
    program: Callable[[str], None], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = Path("/tmp") / f"pg{os.getpid()}"  # short: nsys makes sockets in it
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    program("measure(); time.sleep(600)")
    try:
        capture(folder, timeout_s=6)
        left = [path.name for path in scratch.rglob("*")]
    finally:
        shutil.rmtree(scratch)

    assert [] == left


def test_the_real_worker_under_the_real_nsys(folder: Path) -> None:
    captured = capture(folder, replace(SPEC, warmup=1))

    assert ("", True) == (captured.error, captured.complete)
