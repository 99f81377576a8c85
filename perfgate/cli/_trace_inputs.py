"""What `ranges` and `compare` take: a trace, an .nsys-rep, a folder of one report per rank, or tables of nsys stats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from perfgate.measure import Attribution, Measurement
    from perfgate.traces.nsys_csv import Tables
    from perfgate.traces.schema import Trace
    from perfgate.traces.summary import RangeSummary

TRACE_SUFFIXES = (".sqlite", ".nsys-rep", ".json", ".gz", ".csv")
_GIVE = "give a .sqlite, an .nsys-rep, torch.profiler's JSON, a folder of one report per rank, or CSVs of nsys stats"


class About(NamedTuple):
    """What a trace says about itself, without its rows."""

    source: str
    format: str
    tool_version: str
    schema_version: str
    has_gpu: bool
    graph_mode: str | None
    processes: int
    devices: tuple[int, ...]
    gpu_operations: int
    launches: int
    ranges: int
    diagnostics: tuple[str, ...]
    notes: tuple[str, ...]


class Reading(NamedTuple):
    """One input: either measured (one measurement over all ranks) or read from tables."""

    source: str
    measurement: Measurement | None
    tables: Tables | None
    traces: tuple[About, ...] = ()
    has_gpu: bool = False
    notes: tuple[str, ...] = ()


def load(path: Path, *, attribution: Attribution = "auto", match: str | None = None, detail: bool = False) -> Reading:
    """Reads and measures ``path``.

    Raises ``UsageError`` (exit 2) where it can't be read, ``UnusableError`` (5) where it holds nothing, ``ProfilerError`` (6)
    where nsys is needed and none is found.
    """
    from perfgate.errors import UnusableError, UsageError
    from perfgate.measure import measure
    from perfgate.traces import read

    paths = _reports(path)
    if all(_is_table(one) for one in paths):
        from perfgate.traces import nsys_csv

        tables = nsys_csv.read(paths)
        return Reading(str(path), None, tables, notes=tables.notes, has_gpu="nvtx_gpu_proj_sum" in tables.reports)
    if any(_is_table(one) for one in paths):
        raise UsageError(f"{path} mixes traces and CSV tables", "put them into folders of their own")
    measured, traces, gpu = [], [], False
    for one in paths:
        with exported(one) as (file, notes):
            trace = read(file, geometry=detail)
            measured.append(measure(trace, attribution=attribution, match=match, detail=detail))
            traces.append(_about(trace, one, notes))
            if not traces[-1].ranges:
                raise UnusableError(*_no_ranges(trace, one))
            gpu = gpu or trace.has_gpu
    joined = _joined(measured)
    return Reading(str(path), joined, None, tuple(traces), gpu, joined.notes)


def _joined(measured: list[Measurement]) -> Measurement:
    if len(measured) == 1:
        return measured[0]
    from perfgate.measure.ranks import across_ranks

    return across_ranks(measured)


def _reports(path: Path) -> list[Path]:
    """The files to read: ``path`` itself or, of a folder, all reports in it, in the order of their names."""
    from perfgate.errors import UsageError

    if not path.is_dir():
        if not path.exists():
            raise UsageError(f"{path}: no such file", _GIVE)
        return [path]
    found = sorted(
        one for one in path.iterdir() if one.suffix in TRACE_SUFFIXES and one.is_file() and one.name != "result.json"
    )
    reports = {one.stem for one in found if one.suffix == ".nsys-rep"}
    found = [one for one in found if not (one.suffix == ".sqlite" and one.stem in reports)]  # it may be stale
    if not found and (path / "result.json").exists():
        raise UsageError(f"{path} is a run, not a trace", f"give one of its captures: ls {path}/captures/*/")
    if not found:
        raise UsageError(f"{path} holds no report", _GIVE)
    return found


def _is_table(path: Path) -> bool:
    if path.suffix == ".nsys-rep":
        return False
    from perfgate.errors import UsageError
    from perfgate.traces import SQLITE_MAGIC

    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "check the path and its permissions") from None
    if head.startswith(SQLITE_MAGIC) and path.suffix != ".csv":
        return False
    from perfgate.traces.nsys_csv import looks_like_csv

    return path.suffix == ".csv" or (head.lstrip()[:1] not in (b"{", b"[", b"\x1f") and looks_like_csv(head))


@contextmanager
def exported(path: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The file to read. A report is exported anew into a temporary folder: an old .sqlite beside it is never trusted."""
    if path.suffix != ".nsys-rep":
        report = path.with_suffix(".nsys-rep")
        stale = path.suffix == ".sqlite" and report.exists() and report.stat().st_mtime > path.stat().st_mtime
        yield path, (f"{path.name} is older than {report.name} beside it: stale?",) if stale else ()
        return
    import tempfile

    from perfgate.errors import ProfilerError, UsageError
    from perfgate.profilers.nsys import export
    from perfgate.profilers.nsys_found import find_nsys, probe

    facts = probe(find_nsys())
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        try:
            export(facts, path, target)
        except ProfilerError as error:
            mend = f"was it taken by a newer nsys than {facts.path} ({facts.version})? {error.mend}"
            raise UsageError(f"{path}: {error.text}", mend) from None
        yield target, ()


def _about(trace: Trace, path: Path, notes: tuple[str, ...]) -> About:
    from perfgate.traces.table import distinct, table_in

    ops, ranges = table_in(trace, "ops"), table_in(trace, "ranges")
    return About(
        source=str(path),
        format=trace.format,
        tool_version=trace.tool_version,
        schema_version=trace.schema_version,
        has_gpu=trace.has_gpu,
        graph_mode=trace.graph_mode or None,
        processes=len(distinct(ranges.ints("process"))),
        devices=tuple(distinct(ops.ints("device"))),
        gpu_operations=len(ops),
        launches=len(table_in(trace, "launches")),
        ranges=len(ranges),
        diagnostics=trace.diagnostics,
        notes=(*trace.notes, *notes),
    )


def _no_ranges(trace: Trace, path: Path) -> tuple[str, str]:
    took = int((trace.ops["end"] - trace.ops["start"]).sum())
    said = "; ".join(trace.diagnostics[:2])
    text = f"{path} holds no NVTX range: {len(trace.ops)} GPU operations, {took} ns, belong to none"
    mend = "capture with --trace=cuda,nvtx and open NVTX ranges around the work"
    return text, f"{mend} (the profiler said: {said})" if said else mend


def summaries(reading: Reading, *, match: str | None, group: str | None, strip: bool) -> list[RangeSummary]:
    """One row per range name as asked for. Raises ``UnusableError`` (exit 5) where no range is left."""
    from perfgate.errors import UnusableError
    from perfgate.measure.summary import rename, summarize
    from perfgate.traces.names import compile_pattern, grouping

    if reading.measurement is None:
        pattern = compile_pattern(match or "")
        if group or strip:
            raise UnusableError(
                "tables of nsys stats can't be grouped: they hold no instances", "give the .sqlite or .nsys-rep"
            )
        rows = [row for row in reading.tables.ranges if pattern.search(row.name)] if reading.tables else []
    else:
        changed = group is not None or strip
        rows = summarize(rename(reading.measurement, grouping(group, strip=strip)) if changed else reading.measurement)
    if not rows:
        excluded = "; ".join(
            f"{count} × {reason}" for reason, count in (reading.measurement.excluded if reading.measurement else ())
        )
        text = f"{reading.source}: no range {'matches ' + repr(match) if match else 'is usable'}"
        raise UnusableError(text + (f" ({excluded})" if excluded else ""), "`perfgate ranges TRACE` without --match lists them")
    return rows


def checked_attribution(name: str) -> Attribution:
    """The option's value. Raises ``UsageError`` for anything else."""
    from typing import get_args

    from perfgate.errors import UsageError
    from perfgate.measure import Attribution

    for known in get_args(Attribution):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(f"--attribution {name}", "use auto, process or same-thread")
