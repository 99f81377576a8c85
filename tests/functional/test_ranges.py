"""`perfgate ranges` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest

from tests.functional.cli import DATA, perfgate
from tests.unit.traces.exports import THREAD, Export

NSYS = DATA / "nsys"
STREAMS = NSYS / "own-h200-2025.3.1-streams.sqlite"


def answer(*arguments):
    done = perfgate("ranges", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_holds_every_figure():
    found = answer(STREAMS)
    one = next(row for row in found["ranges"] if row["name"] == "perfgate:two_streams")

    assert set(found) == {"ranges", "unattributed", "excluded", "trace"}
    assert one["busy_ns"]["median"] == 1359934
    assert ("perfgate", 4, ["process"], "op") == (one["domain"], one["instances"], one["rule"], one["bucket"])
    assert set(one["busy_ns"]) == {"total", "median", "min", "max"}
    assert {"span_ns", "sum_ns", "idle_ns", "host_ns", "ops"} <= set(one)
    assert "kernels" not in one
    assert found["unattributed"][0]["operations"] == 29
    assert found["trace"]["files"][0]["tool_version"] == "2025.3.2.0"


def test_table_says_what_is_left_over():
    done = perfgate("ranges", STREAMS)

    assert done.returncode == 0
    assert "perfgate:two_streams" in done.stdout
    assert "warning: 4.6 % of the GPU time (29 operations" in done.stdout


def test_kernels_of_each_range():
    found = answer(STREAMS, "--kernels", "--match", "outer")
    kernels = found["ranges"][0]["kernels"]

    assert ["perfgate:outer"] == [row["name"] for row in found["ranges"]]
    assert kernels[0]["name"] == "[memcpy DtoH]"
    assert sum(kernel["sum_ns"] for kernel in kernels) == found["ranges"][0]["sum_ns"]["total"]
    assert "[memcpy DtoH]" in perfgate("ranges", STREAMS, "--kernels").stdout


def test_csv_of_everything():
    done = perfgate("ranges", STREAMS, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))

    assert 3 == len(rows)
    assert {"range", "instances", "busy_ns_total", "host_ns_max", "rule"} <= set(rows[0])


def test_attribution_is_the_users_choice():
    path = NSYS / "own-h200-2025.3.1-startend.sqlite"
    ops = {
        way: answer(path, "--match", "pushpop", "--attribution", way)["ranges"][0]["ops"]["total"]
        for way in ("auto", "process", "same-thread")
    }

    assert {"auto": 28, "process": 28, "same-thread": 16} == ops


def test_names_grouped_and_in_buckets():
    path = NSYS / "pub-2026.2.1-two-process-sliced.sqlite"
    plain, grouped = answer(path), answer(path, "--strip-ids")
    done = perfgate("ranges", path, "--strip-ids", "--buckets")

    assert len(plain["ranges"]) > 10 * len(grouped["ranges"])
    assert sum(row["instances"] for row in plain["ranges"]) == sum(row["instances"] for row in grouped["ranges"]) == 3901
    assert ["forward", "backward", "op"] == [
        line.split(":")[0] for line in done.stdout.splitlines() if line.endswith(" ranges") and ":" in line
    ]
    layers = answer(path, "--group", r"FSDP::(pre_forward|post_forward)", "--match", "FSDP::p")
    assert ["post_forward", "pre_forward"] == sorted(row["name"] for row in layers["ranges"])


def test_no_gpu_activity_is_said_and_never_zero():
    path = NSYS / "pub-2025.1.3-wsl-no-device-activity.sqlite"
    found = answer(path)

    assert all(row["busy_ns"] is None and row["span_ns"] is None and row["host_ns"]["total"] > 0 for row in found["ranges"])
    assert found["trace"]["gpu_ns"] is None
    assert "the capture holds no GPU activity" in perfgate("ranges", path).stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pub-2022.1.3-kernels-no-nvtx", "holds no NVTX range: 2421 GPU operations"),
        ("pub-2023.4.4-no-cuda-tables", "neither NVTX ranges nor GPU work"),
        ("pub-2025.1.3-driver-too-new", "Installed CUDA driver version (13.3) is not supported"),
        ("pub-2025.6.1-no-cuda", "No CUDA events collected"),
        ("pub-2026.1.1-no-nvtx", "holds no NVTX range"),
    ],
)
def test_nothing_usable_is_exit_code_5(name, said):
    done = perfgate("ranges", NSYS / f"{name}.sqlite", "--format", "json")

    assert (5, "") == (done.returncode, done.stdout)
    assert said in done.stderr
    assert "next: " in done.stderr


def test_a_pattern_that_matches_nothing_is_exit_code_5():
    done = perfgate("ranges", STREAMS, "--match", "nowhere")

    assert done.returncode == 5
    assert "no range matches 'nowhere'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.sqlite"], "no such file"),
        ([STREAMS, "--match", "("], "not a regular expression"),
        ([STREAMS, "--group", "("], "not a regular expression"),
        ([STREAMS, "--attribution", "magic"], "use auto, process or same-thread"),
        ([STREAMS, "--format", "xml"], "use table, json or csv"),
        ([STREAMS, "--stat", "mean"], "use median, min, max, total"),
        ([DATA / "nsys" / "README.md"], "nsys"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2(arguments, said):
    done = perfgate("ranges", *arguments)

    assert done.returncode == 2
    assert said in done.stderr


def test_hostile_names_reach_neither_terminal_nor_spreadsheet(tmp_path):
    export = Export().range("\x1b[31mred\x00\n[bold]=1+1", 0, 100).range("=cmd()", 0, 50).range("k" * 100_000, 0, 10)
    path = export.work(5, (20, 30), name="<script>" + "x" * 100_000).write(tmp_path / "t.sqlite")

    for arguments in ([], ["--format", "csv"], ["--kernels"]):
        done = perfgate("ranges", path, *arguments)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        assert "\x00" not in done.stdout
    assert len(max(perfgate("ranges", path, "--kernels").stdout.splitlines(), key=len)) < 400
    assert "\n'=cmd()" in perfgate("ranges", path, "--format", "csv").stdout
    assert "[bold]=1+1" in perfgate("ranges", path).stdout


def test_tables_of_nsys_stats(tmp_path):
    for path in NSYS.glob("gold-own-h200-2025.3.1-aa-default.*.csv"):
        shutil.copy(path, tmp_path)
    found = answer(tmp_path)
    one = next(row for row in found["ranges"] if row["name"] == "gemm")

    assert one["busy_ns"] is None
    assert one["span_ns"]["median"] == 179391.5
    assert any("from tables of nsys stats" in note for note in found["trace"]["notes"])


def test_a_folder_of_one_report_per_rank(tmp_path):
    for rank, end in enumerate((30, 50)):
        export = Export().range("step", 0, 10, thread=THREAD + rank).work(5, (20, end), thread=THREAD + rank)
        export.write(tmp_path / f"rank{rank}.sqlite")
    found = answer(tmp_path)

    assert [(1, 30)] == [(row["instances"], row["busy_ns"]["median"]) for row in found["ranges"]]
    assert 2 == len(found["trace"]["files"])


def test_a_folder_that_mixes_or_holds_nothing(tmp_path):
    assert perfgate("ranges", tmp_path).returncode == 2
    (tmp_path / "result.json").write_text("{}")
    assert "is a run, not a trace" in perfgate("ranges", tmp_path).stderr
    shutil.copy(STREAMS, tmp_path)
    shutil.copy(next(NSYS.glob("gold-*.csv")), tmp_path)

    assert "mixes traces and CSV tables" in perfgate("ranges", tmp_path).stderr


def test_scrubbed_traces_read_the_same(tmp_path):
    done = perfgate("scrub", STREAMS, "--output", tmp_path / "slim.sqlite")

    assert done.returncode == 0
    assert answer(STREAMS)["ranges"] == answer(tmp_path / "slim.sqlite")["ranges"]
    assert perfgate("scrub", tmp_path / "slim.sqlite", "-o", tmp_path / "slim.sqlite").returncode == 2
    assert perfgate("scrub", tmp_path / "none.sqlite", "-o", tmp_path / "x.sqlite").returncode == 2


def test_a_plain_call_imports_nothing_that_takes_longer_than_reading_the_trace():
    done = perfgate("ranges", STREAMS, "--format", "json", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}

    assert "numpy" in imported
    assert not {"pandas", "typer", "rich", "numpy.ma", "perfgate.registry"} & imported


def test_options_that_typer_has_to_understand_give_the_same_answer():
    assert answer(STREAMS) == json.loads(perfgate("ranges", "--format=json", "--", STREAMS).stdout)
