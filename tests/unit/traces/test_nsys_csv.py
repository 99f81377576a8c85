"""Tables of nsys stats, as its versions print them: only what they hold, and a refusal for everything else."""

from __future__ import annotations

from typing import Any

import pytest

from perfgate.errors import UnusableError, UsageError
from perfgate.traces import nsys_csv
from perfgate.traces.summary import KernelSum, Stat
from tests.unit.traces.exports import DATA

PROJECTION = (
    "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Proj Med (ns),Proj Min (ns),"
    "Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child\n"
)
HOST = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range\n"
KERNELS = (
    "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Kernel Name\n"
)


def read(tmp_path, *texts):
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_text(text, encoding="utf-8")
    return nsys_csv.read(paths)


def only(tables):
    (row,) = tables.ranges
    return row


def test_gold_tables_join():
    name = "own-h200-2024.2.3-graph-autograd"
    tables = nsys_csv.read(sorted(DATA.glob(f"gold-{name}.*.csv")))
    row: Any = next(row for row in tables.ranges if row.name == "mm_fwd_bwd")

    assert tables.reports == ("nvtx_gpu_proj_sum", "nvtx_kern_sum", "nvtx_sum")
    assert (row.instances, row.span_ns) == (5, Stat(18459635, 281888, 278208, 17326515))
    assert row.host_ns == Stat(124741325, 604117, 482204, 122334710)
    assert row.busy_ns is None
    assert row.idle_ns is None
    assert sum(kernel.sum_ns for kernel in row.kernels) == row.sum_ns.total
    assert tables.outside_ns


@pytest.mark.parametrize("capture", sorted({path.name.split(".nvtx_")[0] for path in DATA.glob("gold-*.csv")}))
def test_the_tables_of_every_capture_join(capture):
    tables = nsys_csv.read(sorted(DATA.glob(f"{capture}.*.csv")))

    assert all(row.instances > 0 for row in tables.ranges)
    assert any(row.kernels for row in tables.ranges)


@pytest.mark.parametrize("path", sorted(DATA.glob("gold-*.csv")), ids=lambda path: path.name)
def test_every_gold_table_is_recognised(path):
    assert nsys_csv.read([path]).ranges


def test_preamble_lines_and_several_tables_in_one_file(tmp_path):
    preamble = (
        "Generating SQLite file /home/x/r.sqlite from /home/x/r.nsys-rep\nProcessing [r.sqlite] with [/opt/nvtx_sum.py]... \n\n"
    )
    text = f"{preamble}{HOST}50.0,200,2,100.0,100.0,90,110,1.0,PushPop,:a\n\nProcessing [r.sqlite] with [x.py]...\n\n"
    row = only(read(tmp_path, text + PROJECTION + ":a,PushPop,60,200,2,30.0,30.0,20,40,1.0,4,2.0,0.0,0.0\n"))

    assert ("a", 2, Stat(60, 30, 20, 40), Stat(200, 100, 90, 110)) == (row.name, row.instances, row.span_ns, row.host_ns)


@pytest.mark.parametrize(("unit", "factor"), [("us", 1000), ("μs", 1000), ("ms", 10**6), ("s", 10**9), ("nsec", 1)])
def test_units_in_headers(tmp_path, unit, factor):
    text = HOST.replace("(ns)", f"({unit})") + "50.0,2.5,2,1.25,1.25,1,1.5,0.1,PushPop,a\n"

    assert only(read(tmp_path, text)).host_ns == Stat(2.5 * factor, 1.25 * factor, 1 * factor, 1.5 * factor)


def test_headers_of_old_versions(tmp_path):
    text = "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Range\n50.0,200,2,100.0,90,110,a\n"

    assert only(read(tmp_path, text)).host_ns == Stat(200, None, 90, 110)


def test_names_with_commas_quotes_and_lines(tmp_path):
    name = 'f<1, 2>("x")\nsecond'
    quoted = '"' + name.replace('"', '""') + '"'

    assert only(read(tmp_path, HOST + f"50.0,200,2,100,100,90,110,1.0,PushPop,{quoted}\n")).name == name


def test_kernels_are_summed_over_threads(tmp_path):
    rows = "r,PushPop,1,1,2,3,30,10,10,10,10,0,k\nr,PushPop,1,2,2,1,5,5,5,5,5,0,k\n,,1,1,0,1,7,7,7,7,7,0,lost\n"
    tables = read(tmp_path, KERNELS + rows)

    assert ((KernelSum("k", "KERNEL", 4, 35),), 7) == (only(tables).kernels, tables.outside_ns)
    assert only(tables).sum_ns == Stat(35, None, None, None)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("a,b\n1,2\n", UsageError, "not a table of ranges"),
        ("", UsageError, "not a table of ranges"),
        (HOST, UnusableError, "hold no range"),
        (HOST + "50.0,many,2,100,100,90,110,1.0,PushPop,a\n", UsageError, "can't be read"),
        (HOST + "50.0,200,-2,100,100,90,110,1.0,PushPop,a\n", UsageError, "can't be read"),
        (HOST + "50.0,200,2.5,100,100,90,110,1.0,PushPop,a\n", UsageError, "can't be read"),
        (HOST + "50.0,200,2,100\n", UsageError, "cut off"),
        ("SKIPPED: r.sqlite does not contain NV Tools Extension (NVTX) data.\n", UnusableError, "does not contain"),
    ],
)
def test_what_is_no_answer(tmp_path, text, error, said):
    with pytest.raises(error, match=said):
        read(tmp_path, text)


def test_what_a_table_cannot_say_is_said(tmp_path):
    host = read(tmp_path, HOST + "50.0,200,2,100,100,90,110,1.0,PushPop,a\n")

    assert any("no busy or idle" in note for note in host.notes)
    assert any("there is no span" in note for note in host.notes)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        nsys_csv.read([tmp_path / "none.csv"])


def test_tables_of_different_captures_are_not_joined(tmp_path):
    rows = [f"50.0,{total},2,100,100,90,110,1.0,PushPop,a\n" for total in (200, 201)]
    with pytest.raises(UsageError, match="of different captures"):
        read(tmp_path, HOST + rows[0], HOST + rows[1])
    with pytest.raises(UsageError, match="2 instances in one table, 3 in another"):
        read(tmp_path, HOST + rows[0], HOST + "50.0,200,3,100,100,90,110,1.0,PushPop,a\n")

    assert read(tmp_path, HOST + rows[0], HOST + rows[0]) == read(tmp_path, HOST + rows[0])
