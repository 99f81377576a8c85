"""torch.profiler's ``export_chrome_trace`` JSON, of CPU or CUDA runs, as a :class:`~perfgate.traces.schema.Trace`.

``record_function`` ranges (category user_annotation) become ranges, GPU activities become operations and the CUDA API calls
become launches, joined by correlation id as Kineto writes it. Times are microseconds with three decimals there.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd

from perfgate.errors import UnusableError, UsageError
from perfgate.traces import schema

OWN_DOMAINS = ("perfgate", "perfgate.aux", "perfgate.user")  # our worker writes "<domain>::<name>"
_KINDS = {"kernel": "KERNEL", "gpu_memcpy": "MEMCPY", "gpu_memset": "MEMSET"}
_CALLS = ("cuda_runtime", "cuda_driver")
_GIVE = "give what torch.profiler's export_chrome_trace wrote"


def read(path: Path) -> schema.Trace:
    """The trace in ``path``, plain or gzipped.

    Raises ``UsageError`` if it can't be read or is not such a file, ``UnusableError`` if it holds neither ranges nor GPU work.
    """
    document = _document(path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise UsageError(f"{path} is JSON, but not a profiler's trace: it has no list traceEvents", _GIVE)
    ranges, launches, ops, malformed = _sorted_out(events)
    processes = {launch["process"] for launch in launches} or {annotation["process"] for annotation in ranges}
    if ops and len(processes) > 1:
        raise UnusableError(
            f"{path}: GPU work does not say which of {len(processes)} processes launched it", "export one file per process"
        )
    for op in ops:  # Kineto files GPU work under the device, and writes one file per process
        op["process"] = next(iter(processes), 0)
    if not ranges and not ops:
        raise UnusableError(
            f"{path} holds neither record_function ranges nor GPU work", "wrap the work in torch.profiler.record_function"
        )
    return schema.Trace(
        source=str(path),
        format="kineto",
        tool_version="",
        schema_version=str(document.get("schemaVersion", "")) if isinstance(document, dict) else "",
        ops=_frame(ops, schema.OPS),
        launches=_frame(launches, schema.LAUNCHES),
        ranges=_frame(ranges, schema.RANGES),
        has_gpu=bool(ops),
        graph_mode="node" if any(op["graph_node"] >= 0 for op in ops) else "",
        notes=(f"{malformed} events without usable times or ids: left out",) if malformed else (),
    )


def _document(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
        return json.loads(raw.decode("utf-8", "replace"), strict=False)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} can't be read: {error}", _GIVE) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not JSON that can be read ({error}): truncated or damaged", "export the trace again"
        ) from None


def _sorted_out(events: list[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], int]:
    """Rows of RANGES, LAUNCHES and OPS, and how many events of these categories are malformed."""
    ranges: list[dict[str, Any]] = []
    launches: list[dict[str, Any]] = []
    ops: list[dict[str, Any]] = []
    malformed = 0
    for event in events:
        category = event.get("cat") if isinstance(event, dict) and event.get("ph") == "X" else None
        if category not in ("user_annotation", *_CALLS, *_KINDS):
            continue
        try:
            if category == "user_annotation":
                ranges.append(_range(event))
            elif category in _KINDS:
                ops.append(_op(event, _KINDS[category]))
            else:
                launches.append(_launch(event))
        except (KeyError, TypeError, ValueError, OverflowError):
            malformed += 1
    return ranges, launches, ops, malformed


def _range(event: dict[str, Any]) -> dict[str, Any]:
    start, end = _times(event) if "dur" in event else (_ns(event["ts"]),) * 2
    domain, found, name = str(event["name"]).partition("::")
    if not found or domain not in OWN_DOMAINS:
        domain, name = "", str(event["name"])
    thread = _whole(event["tid"])
    return {
        "domain": domain,
        "name": name,
        "kind": "PushPop",
        "process": _whole(event["pid"]),
        "thread": thread,
        "end_thread": thread,
        "start": start,
        "end": end,
        "closed": "dur" in event,
    }


def _launch(event: dict[str, Any]) -> dict[str, Any]:
    start, end = _times(event)
    return {
        "name": str(event["name"]),
        "process": _whole(event["pid"]),
        "thread": _whole(event["tid"]),
        "correlation": _whole(_arguments(event).get("correlation", -1)),
        "start": start,
        "end": end,
    }


def _op(event: dict[str, Any], kind: str) -> dict[str, Any]:
    start, end = _times(event)
    given = _arguments(event)
    name = str(event["name"])
    return {
        "kind": kind,
        "name": name if kind == "KERNEL" else f"[{name[0].lower()}{name[1:]}]",
        "device": _whole(given.get("device", event.get("pid", -1))),
        "context": _whole(given.get("context", -1)),
        "stream": _whole(given.get("stream", event.get("tid", -1))),
        "correlation": _whole(given.get("correlation", -1)),
        "start": start,
        "end": end,
        "grid": _extent(given.get("grid")),
        "block": _extent(given.get("block")),
        "registers": _whole(given.get("registers per thread", -1)),
        "shared_memory": _whole(given.get("shared memory", -1)),
        "graph_node": _whole(given.get("graph node id", 0)) or -1,
    }


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    given = event.get("args") or {}
    if not isinstance(given, dict):
        raise TypeError("args is not an object")
    return given


def _times(event: dict[str, Any]) -> tuple[int, int]:
    start = _ns(event["ts"])
    length = _ns(event["dur"])
    if length < 0:
        raise ValueError("a negative duration")
    return start, start + length


def _ns(microseconds: Any) -> int:
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float) or abs(microseconds) > 2**50:
        raise ValueError("not a time")
    return round(microseconds * 1000)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**62:
        raise ValueError("not an id")
    return value


def _extent(sizes: Any) -> str:
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else ""


def _frame(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    return schema.check(pd.DataFrame(rows), columns, "kineto") if rows else schema.empty(columns)
