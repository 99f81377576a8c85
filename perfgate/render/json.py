"""``result.json``: the one encoder and decoder. Everything stays unrounded; unknown schema versions are refused."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfgate.errors import UsageError
from perfgate.model import SCHEMA_VERSION, GateResult


def render(result: GateResult) -> str:
    """The text of ``result.json``."""
    return dumps(result)


def dumps(result: GateResult) -> str:
    """A result as strict ASCII JSON, one comparison a line so that files can be diffed; NaN and infinity are strings."""
    fields = _finite(_adapter().dump_python(result))
    lines = [f"{json.dumps(key)}: {_value(value)}" for key, value in {"schema_version": None, **fields}.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loads(text: str) -> GateResult:
    """The result that :func:`dumps` wrote.

    Raises :class:`UsageError` where the text is not JSON (a run cut short while writing, another file), has no or an unknown
    ``schema_version``, or lacks what a result has; the message names the place.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"result.json is not JSON: {error}", "point at a run directory that perfgate wrote") from None
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if version is None:
        raise UsageError("result.json names no schema_version", "point at a result.json that perfgate wrote")
    if version != SCHEMA_VERSION:
        text = f"result.json has schema version {version}; this perfgate reads {SCHEMA_VERSION}"
        raise UsageError(text, "read it with the perfgate that wrote it, or run again with this one")
    try:
        return _adapter().validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"result.json: {where}: {first['msg'].lower()} ({error.error_count()} such places)"
        raise UsageError(text, "the file was edited or cut; run again") from None


@functools.cache
def _adapter() -> TypeAdapter[GateResult]:
    return TypeAdapter(GateResult)


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n " + ",\n ".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
    return json.dumps(value, allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become the strings that the decoder reads back as floats."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
