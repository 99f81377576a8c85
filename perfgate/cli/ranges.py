"""``perfgate ranges``: what every NVTX range in a trace cost on the GPU, with what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    from perfgate.cli._trace_inputs import Reading
    from perfgate.traces.summary import RangeSummary, Stat

STATS = ("median", "min", "max", "total")
WIDTH = 160  # columns where stdout is no terminal
LONGEST_NAME = 240  # characters of a range in a table; json and csv give it whole
LOST_SHARE = 0.01  # of all GPU time: more than this in no range is a warning


_FLAGS = {"--kernels": "kernels", "--strip-ids": "strip_ids", "--buckets": "buckets"}
_VALUES = {"--match": "match", "--attribution": "attribution", "--format": "format_", "--group": "group", "--stat": "stat"}


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    import typer

    @app.command("ranges")
    def ranges(
        trace: Path = typer.Argument(
            ..., metavar="TRACE", help="A .sqlite, .nsys-rep, Kineto .json, CSVs of nsys stats, or a folder."
        ),
        match: str = typer.Option(None, "--match", metavar="REGEX", help="Only ranges whose domain:name it finds."),
        attribution: str = typer.Option("auto", "--attribution", help="auto, process or same-thread."),
        format_: str = typer.Option("table", "--format", help="table, json or csv."),
        kernels: bool = typer.Option(False, "--kernels", help="The kernels of each range too."),
        strip_ids: bool = typer.Option(False, "--strip-ids", help="Without PyTorch's ', seq = N' and ', op_id = N'."),
        group: str = typer.Option(
            None, "--group", metavar="REGEX", help="Call each range what the pattern's first group finds."
        ),
        stat: str = typer.Option("median", "--stat", help="Which figure the table shows: median, min, max or total."),
        buckets: bool = typer.Option(False, "--buckets", help="In three parts: forward, backward, op."),
    ) -> None:
        """Show busy, span, sum, idle, operations and host time per NVTX range, and what belongs to none.

        Exit code 0 answered, 5 nothing usable in it, 2 unreadable.
        """
        answer(trace, match, attribution, format_, kernels, strip_ids, group, stat, buckets)


def plain(words: Sequence[str]) -> dict[str, Any] | None:
    """What :func:`answer` takes, from one TRACE and options by their full names; ``None`` for anything else: typer's to answer.

    It saves the import of typer, which takes longer than reading a small trace.
    """
    given: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name in _VALUES:
            value = value if equals else next(left, "")
            if not value or value.startswith("-"):
                return None
            given[_VALUES[name]] = value
        elif word in _FLAGS:
            given[_FLAGS[word]] = True
        elif word.startswith("-") or not word or "trace" in given:
            return None
        else:
            given["trace"] = Path(word)
    return given if "trace" in given else None


def answer(
    trace: Path,
    match: str | None = None,
    attribution: str = "auto",
    format_: str = "table",
    kernels: bool = False,
    strip_ids: bool = False,
    group: str | None = None,
    stat: str = "median",
    buckets: bool = False,
) -> None:
    """What the verb does, its options given as the command line takes them."""
    from perfgate.cli._trace_inputs import checked_attribution, load, summaries
    from perfgate.errors import UsageError

    if format_ not in ("table", "json", "csv"):
        raise UsageError(f"--format {format_}", "use table, json or csv")
    if stat not in STATS:
        raise UsageError(f"--stat {stat}", f"use {', '.join(STATS)}")
    reading = load(trace, attribution=checked_attribution(attribution), match=match, detail=kernels)
    rows = summaries(reading, match=match, group=group, strip=strip_ids)
    if format_ == "json":
        import json

        print(_by_lines(document(reading, rows, with_kernels=kernels), json.dumps))
    elif format_ == "csv":
        _csv(rows)
    else:
        _table(reading, rows, stat, with_kernels=kernels, in_buckets=buckets)


def document(reading: Reading, rows: Sequence[RangeSummary], *, with_kernels: bool) -> dict[str, Any]:
    """The answer as plain values; times in ns, what is not known is null."""
    measurement = reading.measurement
    return {
        "ranges": [_plain(row, with_kernels) for row in rows],
        "unattributed": [
            {"reason": left.reason, "operations": left.ops, "gpu_ns": left.gpu_ns, "share": left.share}
            for left in (measurement.unattributed if measurement else ())
        ],
        "excluded": [{"reason": reason, "count": count} for reason, count in (measurement.excluded if measurement else ())],
        "trace": {
            "source": reading.source,
            "has_gpu": reading.has_gpu,
            "gpu_ns": measurement.gpu_ns if measurement and reading.has_gpu else None,
            "files": [one._asdict() for one in reading.traces],
            "notes": list(reading.notes),
        },
    }


def _by_lines(document: dict[str, Any], dumped: Callable[[object], str]) -> str:
    """JSON with a line for each range; indenting it all would take longer than measuring a small trace."""
    ranges = ",\n    ".join(map(dumped, document["ranges"]))
    others = (f"  {dumped(key)}: {dumped(value)}" for key, value in document.items() if key != "ranges")
    return ",\n".join((f'{{\n  "ranges": [\n    {ranges}\n  ]', *others)) + "\n}"


def _plain(row: RangeSummary, with_kernels: bool) -> dict[str, Any]:
    from perfgate.traces.names import bucket
    from perfgate.traces.summary import METRICS

    plain: dict[str, Any] = {"name": row.name, "domain": row.domain, "bucket": bucket(row.name), "instances": row.instances}
    for metric in METRICS:
        stat = getattr(row, metric)
        plain[metric] = None if stat is None else stat._asdict()
    plain |= {"incomplete": row.incomplete, "missing_launches": row.missing_launches, "rule": list(row.rules)}
    if with_kernels:
        plain["kernels"] = [vars(kernel) for kernel in row.kernels]
    return plain


def _csv(rows: Sequence[RangeSummary]) -> None:
    import csv
    import sys

    from perfgate.traces.names import bucket
    from perfgate.traces.summary import METRICS

    writer = csv.writer(sys.stdout, lineterminator="\n")
    parts = ("total", "median", "min", "max")
    writer.writerow(["range", "bucket", "instances", *(f"{metric}_{part}" for metric in METRICS for part in parts), "rule"])
    for row in rows:
        figures = [_part(getattr(row, metric), part) for metric in METRICS for part in parts]
        writer.writerow([spreadsheet_safe(row.name), bucket(row.name), row.instances, *figures, " ".join(row.rules)])


def _part(stat: Stat | None, part: str) -> float | str:
    value = getattr(stat, part) if stat else None
    return "" if value is None else value


def spreadsheet_safe(name: str) -> str:
    """A name that a spreadsheet would run as a formula gets an apostrophe; nothing in it breaks a line or steers a terminal."""
    from perfgate.render._text import visible

    text = visible(name)
    return "'" + text if text.lstrip(" ").startswith(("=", "+", "-", "@", "|", "%")) else text


def _table(reading: Reading, rows: Sequence[RangeSummary], stat: str, *, with_kernels: bool, in_buckets: bool) -> None:
    import sys

    from perfgate.cli._console import out
    from perfgate.traces.names import BUCKETS, bucket

    console = out(None if sys.stdout.isatty() else WIDTH)
    for part in BUCKETS if in_buckets else ("",):
        chosen = [row for row in rows if not part or bucket(row.name) == part]
        if part:
            console.print(f"{part}: {len(chosen)} ranges", style="bold", markup=False, emoji=False)
        if chosen:
            console.print(_grid(chosen, stat, gpu=reading.has_gpu, with_kernels=with_kernels))
    for line in _footnotes(reading, rows, stat):
        console.print(line, markup=False, emoji=False, soft_wrap=True)


def _grid(rows: Sequence[RangeSummary], stat: str, *, gpu: bool, with_kernels: bool) -> Any:
    from rich.table import Table
    from rich.text import Text

    from perfgate.render._text import cut, shorten, visible
    from perfgate.units import time_scale

    metrics = ("busy_ns", "span_ns", "idle_ns", "sum_ns", "host_ns") if gpu else ("host_ns",)
    known = [metric for metric in metrics if any(value(row, metric, stat) is not None for row in rows)]
    scales = {metric: time_scale(value(row, metric, stat) for row in rows) for metric in known}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("range", overflow="fold")
    table.add_column("n", justify="right")
    for metric in known:
        table.add_column(f"{metric.removesuffix('_ns')}\n{scales[metric].unit}", justify="right", no_wrap=True)
    if gpu:
        table.add_column("ops", justify="right", no_wrap=True)
        table.add_column("rule", no_wrap=True)
    for row in rows:
        ops = value(row, "ops", stat)
        tail = ["–" if ops is None else f"{ops:g}", " ".join(row.rules)] if gpu else []
        table.add_row(
            Text(cut(visible(row.name), LONGEST_NAME)),
            str(row.instances),
            *(scales[one].format(value(row, one, stat)) for one in known),
            *tail,
        )
        for kernel in row.kernels if with_kernels else ():
            took = kernel.sum_ns if stat == "total" else kernel.sum_ns / row.instances
            figures = [scales[metric].format(took) if metric == "sum_ns" else "" for metric in known]
            table.add_row(Text(f"  {shorten(kernel.name)}"), str(kernel.count), *figures)
    return table


def value(row: RangeSummary, metric: str, stat: str) -> float | None:
    """One figure of a row; where a table of nsys gives only the total, the mean per instance stands for the median."""
    known = getattr(row, metric)
    if known is None:
        return None
    figure: float | None = getattr(known, stat)
    if figure is None and stat == "median" and known.total is not None:
        return float(known.total) / row.instances
    return figure


def _footnotes(reading: Reading, rows: Sequence[RangeSummary], stat: str) -> list[str]:
    from perfgate.render._text import cut, visible
    from perfgate.traces.names import strip_counters
    from perfgate.units import format_ns, format_percent

    lines = [
        f"{sum(row.instances for row in rows)} instances of {len(rows)} ranges; each figure is the {stat} over the instances"
    ]
    measurement = reading.measurement
    for left in measurement.unattributed if measurement else ():
        share = format_percent(left.share, sign=False)
        warning = "warning: " if left.share > LOST_SHARE else ""
        lines.append(
            f"{warning}{share} of the GPU time ({left.ops} operations, {format_ns(left.gpu_ns)}) is in no range: {left.reason}"
        )
    lines += [f"left out: {count} × {reason}" for reason, count in (measurement.excluded if measurement else ())]
    partly = [row for row in rows if row.incomplete]
    if partly:
        total, lacking = sum(row.instances for row in partly), sum(row.incomplete for row in partly)
        first = cut(visible(partly[0].name), LONGEST_NAME)
        lines.append(
            f"warning: {lacking} of {total} instances of {len(partly)} ranges (first {first}) launched work of which the"
            " capture lacks some or all: their GPU figures are too small, or unknown (–)"
        )
    lines += [f"note: {note}" for note in reading.notes]
    lines += [f"the profiler said: {said}" for trace in reading.traces if not trace.has_gpu for said in trace.diagnostics]
    counted = sum(strip_counters(row.name) != row.name for row in rows)
    if counted > len(rows) // 2:
        lines.append(f"note: {counted} names end in PyTorch's counters; --strip-ids groups them")
    return lines
