"""JSON lines and CSV, one record per step; numbers keep all the digits that were written."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfgate.determinism.metrics.values import Scalar, Stream
from perfgate.errors import UsageError

STEP_KEYS = ("step", "iteration", "iter", "global_step", "train_step", "cur_iter", "_step")
RANK_KEYS = ("rank", "global_rank")

StreamOf = Callable[[str], Stream]  # "" or "rank 3" -> the stream to add to


def read_jsonl(path: Path, stream_of: StreamOf) -> None:
    """Adds one JSON object per line. Nested objects become ``outer/inner`` tags. Raises :class:`UsageError` with the line."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_float=_Text, parse_int=_Text, parse_constant=_Text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(
                f"{path}, line {number} is no JSON: {error}", "is the file complete? Was the run killed?"
            ) from error
        if not isinstance(record, dict):
            raise UsageError(f"{path}, line {number} is no JSON object", 'write one object per line: {"step": 1, "loss": 2.5}')
        _add(dict(_flat(record, "")), number, path, stream_of)


def read_csv(path: Path, stream_of: StreamOf) -> None:
    """Adds one row per record; the first line names the columns. Raises :class:`UsageError` with the line."""
    rows = csv.reader(_lines(path), strict=True)
    try:
        header = next(rows, None)
        if header is None:
            raise UsageError(f"{path} is empty", "the first line must name the columns")
        for row in rows:
            if row and len(row) != len(header):
                raise UsageError(
                    f"{path}, line {rows.line_num} has {len(row)} fields, the header {len(header)}", "is the file complete?"
                )
            if row:
                fields = {name.strip(): _Text(field.strip()) for name, field in zip(header, row, strict=True) if name.strip()}
                _add({name: text for name, text in fields.items() if text}, rows.line_num, path, stream_of)
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num}: {error}", "is the file complete?") from error


class _Text(str):
    """A number as it was written."""

    __slots__ = ()


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text") from error


def _flat(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _add(record: dict[str, Any], line: int, path: Path, stream_of: StreamOf) -> None:
    step_key = next((key for key in STEP_KEYS if key in record), None)
    rank_key = next((key for key in RANK_KEYS if key in record), None)
    step = line if step_key is None else _step(record.pop(step_key), line, path)
    stream = stream_of(f"rank {record.pop(rank_key)}" if rank_key else "")
    if set(record) >= {"tag", "value"} and not _number(record["tag"]):  # one value per record
        record = {str(record["tag"]): record["value"]}
    for tag, value in record.items():
        number = _number(value)
        if number is None:
            stream.not_scalars.add(tag)
            continue
        stream.add(tag, step, Scalar.of(number))
        if isinstance(value, str) and "." in value:
            digits = len(value.lower().partition("e")[0].replace(".", "").lstrip("+-0"))
            stream.most_digits = max(stream.most_digits, digits)


def _step(value: Any, line: int, path: Path) -> int:
    number = _number(value)
    if number is None or not math.isfinite(number) or number != int(number):
        raise UsageError(f"{path}, line {line}: step {value!r} is no whole number")
    return int(number)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
