"""The CSV tables of ``nsys stats``: only what they hold, which is less than a trace.

Recognised by their columns, because reports were renamed between versions: ``nvtx_gpu_proj_sum`` (span, host total, ops),
``nvtx_kern_sum`` (kernels per range) and ``nvtx_sum`` / ``nvtx_pushpop_sum`` (host time). Preamble lines, several tables in one
file, units in the headers and the leading ``:`` of the default domain are understood.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import UnusableError, UsageError
from perfgate.traces.summary import KernelSum, RangeSummary, Stat

Row = dict[str, str]
_UNITS = {
    "ns": 1,
    "nsec": 1,
    "us": 1_000,
    "μs": 1_000,
    "µs": 1_000,
    "usec": 1_000,
    "ms": 10**6,
    "msec": 10**6,
    "s": 10**9,
    "sec": 10**9,
}
_UNIT = re.compile(r"\s*\(([^)]*)\)\s*$")
_SYNONYMS = {"average": "avg", "minimum": "min", "maximum": "max", "median": "med", "nvtx range": "range", "name": "range"}
_STATS_AGAIN = "nsys stats --report nvtx_gpu_proj_sum,nvtx_kern_sum,nvtx_sum --format csv REPORT, or give the .sqlite itself"
_PROJECTION, _KERNELS, _HOST = "nvtx_gpu_proj_sum", "nvtx_kern_sum", "nvtx_sum"
_TELLING = {
    _PROJECTION: {"total proj time", "range instances"},
    _KERNELS: {"kernel name", "kern inst", "total time", "range"},
    _HOST: {"range", "instances", "total time"},
}


@dataclass(frozen=True)
class Tables:
    """What the CSV files of one capture say. ``outside_ns`` is kernel time in no range, where a table tells."""

    ranges: tuple[RangeSummary, ...]
    reports: tuple[str, ...]  # which of the three were found
    outside_ns: int | None
    notes: tuple[str, ...]


def read(paths: Iterable[Path]) -> Tables:
    """The ranges in some CSV files of one capture, joined by name.

    Raises ``UsageError`` for a file that can't be read or is no such table, ``UnusableError`` where no table has a row.
    """
    csv.field_size_limit(sys.maxsize)
    ranges: dict[str, RangeSummary] = {}
    reports: dict[str, None] = {}
    outside: int | None = None
    for path in paths:
        found = list(_tables(path))
        if not found:
            raise UsageError(f"{path} is CSV, but not a table of ranges from nsys stats", _STATS_AGAIN)
        for report, rows in found:
            reports[report] = None
            try:
                if report == _KERNELS:
                    outside = _add_kernels(ranges, rows)
                else:
                    for row in rows:
                        _add(ranges, _projected(row) if report == _PROJECTION else _hosted(row))
            except (ValueError, KeyError) as error:
                raise UsageError(f"{path}: a row of {report} can't be read ({error})", _STATS_AGAIN) from None
    if not ranges:
        raise UnusableError(
            f"the tables ({', '.join(reports)}) hold no range", "capture with --trace=cuda,nvtx and NVTX ranges"
        )
    return Tables(tuple(ranges.values()), tuple(reports), outside, _notes(reports))


def looks_like_csv(head: bytes) -> bool:
    """Whether a file that begins so may be output of ``nsys stats``."""
    text = head.decode("utf-8", "replace")
    return "\x00" not in text and ("," in text or "SKIPPED" in text or "Processing" in text)


def _tables(path: Path) -> Iterator[tuple[str, list[Row]]]:
    """Each table in the file: which report it is, and its rows with normalised column names, times in ns."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "check the path and its permissions") from None
    if skipped := re.search(r"^\s*SKIPPED: .*", text, re.MULTILINE):
        raise UnusableError(f"{path}: nsys stats says {skipped.group(0).strip()}", "capture with --trace=cuda,nvtx")
    report, columns, rows = "", [], []  # type: ignore[var-annotated]
    for cells in csv.reader(io.StringIO(text.replace("\x00", "\\x00"))):
        headers = [_column(cell) for cell in cells]
        kind = _report({name for name, _ in headers})
        if kind:
            if report:
                yield report, rows
            report, columns, rows = kind, headers, []
        elif report and len(cells) == len(columns):
            rows.append({name: _in_ns(cell, factor) for (name, factor), cell in zip(columns, cells, strict=True)})
        elif report and any(cell.strip() for cell in cells) and len(cells) > 1:
            raise UsageError(
                f"{path}: a row of {report} has {len(cells)} cells instead of {len(columns)}: cut off?", _STATS_AGAIN
            )
    if report:
        yield report, rows


def _report(columns: set[str]) -> str:
    return next((report for report, needed in _TELLING.items() if needed <= columns), "")


def _column(header: str) -> tuple[str, int]:
    """The column's name in lower case without its unit, and what one of the unit is in ns (0: not a time)."""
    unit = _UNIT.search(header)
    name = _UNIT.sub("", header).strip().lower()
    factor = _UNITS.get(unit.group(1).strip().lower(), 0) if unit else 0
    if not unit and re.search(r"time$|^average$|^minimum$|^maximum$", name):
        factor = 1  # versions before 2021.5 wrote ns without saying so
    return _SYNONYMS.get(name, name), factor


def _in_ns(cell: str, factor: int) -> str:
    return cell if factor <= 1 or not cell.strip() else str(float(cell.replace(",", "")) * factor)


def _number(row: Row, column: str) -> float | None:
    text = row.get(column, "").replace(",", "").strip()
    if not text:
        return None
    value = float(text)
    return int(value) if value.is_integer() else value


def _count(row: Row, column: str) -> int:
    value = _number(row, column)
    if value is None or value < 0 or not float(value).is_integer():
        raise ValueError(f"{column} is {row.get(column)!r}")
    return int(value)


def _name(row: Row) -> str:
    return row["range"].removeprefix(":")


def _projected(row: Row) -> RangeSummary:
    span = Stat(*(_number(row, column) for column in ("total proj time", "proj med", "proj min", "proj max")))
    ops = Stat(_number(row, "total gpu ops"), None, None, None)
    host = Stat(_number(row, "total range time"), None, None, None)
    return RangeSummary(
        _name(row), "", _count(row, "range instances"), span_ns=span, ops=ops, host_ns=host, rules=("nsys: same-thread",)
    )


def _hosted(row: Row) -> RangeSummary:
    host = Stat(*(_number(row, column) for column in ("total time", "med", "min", "max")))
    return RangeSummary(_name(row), "", _count(row, "instances"), host_ns=host)


def _add(ranges: dict[str, RangeSummary], new: RangeSummary) -> None:
    """Joins what two tables of one capture say of a range. Raises ``ValueError`` where they contradict each other."""
    old = ranges.get(new.name)
    if old is None:
        ranges[new.name] = new
        return
    if old.instances != new.instances and not old.kernels and not new.kernels:  # a kernel need not run in every instance
        raise ValueError(f"{new.name!r} has {old.instances} instances in one table, {new.instances} in another")
    ranges[new.name] = old._replace(
        instances=max(old.instances, new.instances),
        span_ns=_agreed(new.name, old.span_ns, new.span_ns),
        sum_ns=_agreed(new.name, old.sum_ns, new.sum_ns),
        ops=_agreed(new.name, old.ops, new.ops),
        host_ns=_agreed(new.name, old.host_ns, new.host_ns),
        rules=old.rules or new.rules,
        kernels=old.kernels or new.kernels,
    )


def _agreed(name: str, old: Stat | None, new: Stat | None) -> Stat | None:
    """The fuller of two figures of one range."""
    if old is None or new is None:
        return old or new
    if old.total != new.total:
        raise ValueError(f"{name!r} totals {old.total} in one table, {new.total} in another: are they of different captures?")
    return old if old.median is not None else new


def _add_kernels(ranges: dict[str, RangeSummary], rows: list[Row]) -> int:
    """Adds kernels to their ranges; returns the time of those in no range."""
    sums: dict[str, dict[str, tuple[int, int]]] = {}
    instances: dict[str, dict[tuple[str, str], int]] = {}
    for row in rows:
        name, thread = _name(row), (row.get("pid", ""), row.get("tid", ""))
        count, total = sums.setdefault(name, {}).get(row["kernel name"], (0, 0))
        sums[name][row["kernel name"]] = (count + _count(row, "kern inst"), total + int(_number(row, "total time") or 0))
        threads = instances.setdefault(name, {})
        threads[thread] = max(threads.get(thread, 0), _count(row, "nvtx inst"))
    outside = sum(total for _, total in sums.pop("", {}).values())
    for name, kernels in sums.items():
        known = [KernelSum(kernel, "KERNEL", count, total) for kernel, (count, total) in kernels.items()]
        whole = Stat(sum(one.sum_ns for one in known), None, None, None)
        ordered = tuple(sorted(known, key=lambda one: (-one.sum_ns, one.name)))
        _add(ranges, RangeSummary(name, "", sum(instances[name].values()), sum_ns=whole, kernels=ordered))
    return outside


def _notes(reports: Iterable[str]) -> tuple[str, ...]:
    notes = ["from tables of nsys stats, not from a trace: no busy or idle time, and nothing per instance"]
    if _PROJECTION in reports:
        notes.append(
            "span is nsys's projection: work launched by other threads is missing, graphs traced as a whole count nothing,"
            " ranges ended on another thread are left out and unfinished ones are stretched"
        )
    else:
        notes.append("without nvtx_gpu_proj_sum there is no span")
    if _KERNELS in reports:
        notes.append("sum is that of kernels only: copies and fills are not in nvtx_kern_sum")
    return tuple(notes)
