from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.errors import ProfilerError
from perfgate.model import RunSpec
from perfgate.profilers import nsys_found
from perfgate.profilers.nsys import NsysProfiler, export, profile_arguments, scratch
from perfgate.profilers.nsys_found import probe
from perfgate.profilers.spec_file import load_capture, load_spec

MakeNsys = Callable[..., Path]
Worker = Callable[[str], None]
RANGE = "moe/combine:smoke:fwd:torch.index_add"
CAPTURE = "time-b00-0-default"
STREAM_ONLY = '"$@"; code=$?; : > "$out.qdstrm"; exit $code'


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[int], str]:
    """The text of an nsys deed that exports a database with that many instances of the measured range."""

    def make(instances: int) -> str:
        path = tmp_path / "exported.sqlite"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            database.execute("CREATE TABLE EXPORT_META_DATA (name TEXT, value TEXT)")
            database.execute(
                "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, text TEXT, "
                "globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER)"
            )
            rows: list[tuple[object, ...]] = [(1, None, 75, None, "perfgate", 0x1000001, None, None, 1)]
            rows += [(10 * i, 10 * i + 5, 59, None, RANGE, 0x1000001, None, None, 1) for i in range(1, instances + 1)]
            database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return f'cp {path} "$out"'

    return make


def capture(nsys: Path, spec: RunSpec, folder: Path, timeout_s: float = 60.0) -> str:
    """The error of one capture; its folder may hold no raw file afterwards and nothing that is not accounted for."""
    profiler = NsysProfiler(probe(nsys))
    captured = profiler.capture(spec, folder, timeout_s=timeout_s)

    raw = [path.name for path in folder.iterdir() if path.name.startswith(("profile.", "full."))]
    assert ([], captured.complete, captured) == (raw, not captured.error, load_capture(folder / "capture.json"))
    return captured.error


def test_a_good_capture_is_complete(make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path) -> None:
    worker("done()")

    assert "" == capture(make_nsys(export=exported(3)), spec, folder)
    assert ("nsys", True) == (load_spec(folder / "spec.json").profiler, (folder / "trace.sqlite").exists())


@pytest.mark.parametrize(
    ("deeds", "program", "expected"),
    [
        ({"profile": '"$@"; exit 0'}, "done()", "nsys ended with exit 0 and wrote no report"),
        ({"profile": "echo unknown --bad; exit 1"}, "", "nsys failed (exit 1) and wrote no report: unknown --bad"),
        (
            {"profile": "echo Agent launcher failed.; exit 1"},
            "",
            "nsys failed (exit 1): Agent launcher failed.; an nsys that was killed left its lock: where `pgrep -x nsys`",
        ),
        ({}, "raise ValueError('boom')", f"the worker failed (exit 1); see captures/{CAPTURE}/worker.log: ValueError: boom"),
        ({}, "os.kill(os.getpid(), 9)", "the child was killed (signal 9, out of memory?)"),
        ({}, "done(); os._exit(42)", "the worker failed (exit 42)"),
        ({}, "pass", "the worker ended without its done file"),
        ({}, "done(complete=False)", "the worker stopped before its end"),
        (
            {"profile": STREAM_ONLY, "importer": "echo bad stream; exit 5"},
            "done()",
            "nsys left profile.qdstrm and its importer failed (exit 5): bad stream",
        ),
        ({"export": "echo no space; exit 1"}, "done()", "nsys export failed (exit 1): no space; try by hand"),
        ({"export": "echo fine"}, "done()", "nsys export ended with exit 0 and wrote no file: fine"),
        ({"export": 'echo junk > "$out"'}, "done()", "nsys export wrote a file that is no SQLite database"),
    ],
)
def test_every_failure_has_its_own_words(
    make_nsys: MakeNsys, worker: Worker, spec: RunSpec, folder: Path, deeds: dict[str, str], program: str, expected: str
) -> None:
    worker(program)
    error = capture(make_nsys(**deeds), spec, folder)

    assert error.startswith(expected), error


def test_an_nsys_that_fails_before_the_program_starts_is_tried_once_more(
    make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path, tmp_path: Path
) -> None:
    worker("done()")
    once = f'if [ ! -e {tmp_path}/tried ]; then : > {tmp_path}/tried; echo sem_open; exit 1; fi; "$@"; : > "$out.nsys-rep"'

    assert "" == capture(make_nsys(profile=once, export=exported(3)), spec, folder)


def test_a_program_that_fails_is_not_tried_again(make_nsys: MakeNsys, worker: Worker, spec: RunSpec, folder: Path) -> None:
    worker("open(folder.parent.parent / 'starts', 'a').write('x'); raise ValueError('early')")
    error = capture(make_nsys(profile='"$@"'), spec, folder)

    assert ("x", True) == ((folder.parent.parent / "starts").read_text(), error.startswith("the worker failed (exit 1)"))


def test_a_report_without_importer_is_told_with_its_mend(
    make_nsys: MakeNsys, worker: Worker, spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nsys_found, "DEBIAN", tmp_path / "nothing")
    worker("done()")
    error = capture(make_nsys(profile=STREAM_ONLY, importer=None), spec, folder)

    assert (True, True) == (error.startswith("nsys left profile.qdstrm, which was never imported"), "install its host" in error)


def test_a_left_over_stream_is_imported(make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path) -> None:
    worker("done()")
    nsys = make_nsys(profile=STREAM_ONLY, importer='cp "$2" "$4"', export=exported(3))

    assert "" == capture(nsys, spec, folder)


def test_fewer_instances_than_the_worker_opened_are_told(
    make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path
) -> None:
    worker("done()")
    error = capture(make_nsys(export=exported(2)), spec, folder)

    assert f"range {RANGE}: 2 of 3 instances recorded; run it again, or `perfgate doctor`" == error


def test_an_empty_profile_is_told(make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path) -> None:
    worker("done()")

    assert capture(make_nsys(export=exported(0)), spec, folder).startswith("the profile is empty: neither ranges nor GPU work")


def test_a_gpu_capture_without_gpu_work_is_empty_too(
    make_nsys: MakeNsys, worker: Worker, exported, on_gpu: RunSpec, folder: Path
) -> None:
    worker("done()")
    error = capture(make_nsys(export=exported(3)), on_gpu, folder)

    assert error.startswith("the profile is empty: ranges, but no GPU activity")


def test_a_gpu_capture_that_never_started_is_told(make_nsys: MakeNsys, worker: Worker, on_gpu: RunSpec, folder: Path) -> None:
    worker("done()")
    error = capture(make_nsys(profile='"$@"'), on_gpu, folder)

    assert error.startswith("nsys captured nothing: the child never called cudaProfilerStart")


def test_a_variant_that_is_unsupported_needs_no_range(
    make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path
) -> None:
    worker("done(instances=0, status='unsupported')")

    assert "" == capture(make_nsys(export=exported(1)), spec, folder)


def test_a_timeout_is_told_and_nothing_is_left_running(
    make_nsys: MakeNsys, worker: Worker, spec: RunSpec, folder: Path, alive: Callable[[int], bool]
) -> None:
    worker("print(os.getpid(), flush=True); time.sleep(600)")
    error = capture(make_nsys(), spec, folder, timeout_s=3)
    pid = int((folder / "worker.log").read_text().split()[0])

    assert (True, False) == (error.startswith("the child was ended after 3 s; raise --timeout"), alive(pid))


def test_a_stale_trace_never_passes_for_a_new_one(
    make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path
) -> None:
    worker("done()")
    capture(make_nsys(export=exported(3), folder="good"), spec, folder)
    error = capture(make_nsys(export="exit 0", folder="bad"), spec, folder)

    assert (True, False) == (error.startswith("nsys export ended with exit 0"), (folder / "trace.sqlite").exists())


def test_an_export_never_reuses_what_was_there(make_nsys: MakeNsys, tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"SQLite format 3\0 of yesterday")
    with pytest.raises(ProfilerError, match="wrote no file"):
        export(probe(make_nsys(export="exit 0")), tmp_path / "x.nsys-rep", tmp_path / "x.sqlite")


def test_an_unwritable_folder_is_data(make_nsys: MakeNsys, spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "captures").write_text("a file, where a folder should be")
    captured = NsysProfiler(probe(make_nsys())).capture(spec, tmp_path / "captures" / spec.id, timeout_s=5)

    assert (False, f"can't write captures/{spec.id}: Not a directory") == (captured.complete, captured.error.split(";")[0])


def test_a_kept_report_is_kept(make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path) -> None:
    worker("done()")
    NsysProfiler(probe(make_nsys(export=exported(3))), keep_report=True).capture(spec, folder, timeout_s=60)

    assert (folder / "profile.nsys-rep").exists()


def test_only_flags_that_this_version_offers_are_used(make_nsys: MakeNsys, tmp_path: Path) -> None:
    facts = probe(make_nsys(help_="echo --trace= --sample= --discard-environment="))

    assert ["profile", "--trace=cuda,nvtx", "--sample=none", "--discard-environment=true", f"--output={tmp_path}/profile"] == (
        profile_arguments(facts, tmp_path, capture_range=False)
    )


@pytest.mark.parametrize("capture_range", [True, False])
def test_the_capture_range_is_asked_for_only_where_the_program_opens_one(
    make_nsys: MakeNsys, tmp_path: Path, capture_range: bool
) -> None:
    arguments = profile_arguments(probe(make_nsys()), tmp_path, capture_range=capture_range)

    assert capture_range == ("--capture-range=cudaProfilerApi" in arguments and "--capture-range-end=stop" in arguments)


def test_nsyss_own_patterns_in_a_path_are_escaped(make_nsys: MakeNsys, tmp_path: Path) -> None:
    folder = tmp_path / "50%h"

    assert f"--output={tmp_path}/50%%h/profile" == profile_arguments(probe(make_nsys()), folder, capture_range=False)[-1]


def test_scratch_files_get_a_folder_that_is_removed(make_nsys: MakeNsys) -> None:
    with scratch(probe(make_nsys(help_="echo --trace= --env-var="))) as (environment, flags):
        inside = Path(environment["TMPDIR"])
        (inside / "nsys-report-1.qdstrm").write_text("TOKEN=x")

    assert (False, True) == (inside.exists(), flags[0].startswith("--env-var=TMPDIR="))


def test_an_nsys_without_importer_is_unusable(make_nsys: MakeNsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nsys_found, "DEBIAN", tmp_path / "nothing")
    monkeypatch.setenv("PERFGATE_NSYS", str(make_nsys(importer=None)))
    with pytest.raises(ProfilerError, match=r"nsys 2025\.3\.1\.90 is unusable: no QdstrmImporter"):
        NsysProfiler.found()


def test_the_spec_says_who_profiles(make_nsys: MakeNsys, worker: Worker, exported, spec: RunSpec, folder: Path) -> None:
    worker("done()")
    captured = NsysProfiler(probe(make_nsys(export=exported(3)))).capture(spec, folder, timeout_s=60)

    assert replace(spec, profiler="nsys") == captured.spec
