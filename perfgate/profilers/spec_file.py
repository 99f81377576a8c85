"""The files that a child and its parent exchange in a capture's folder.

``spec.json`` (parent to worker), ``done.json`` (worker to parent, written last), ``capture.json`` (what the parent made of
both, so that a stored run can be read or replayed later).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from perfgate.errors import UnusableError
from perfgate.model import Capture, RunSpec

SPEC = "spec.json"
DONE = "done.json"
CAPTURE = "capture.json"
WORKER_LOG = "worker.log"

T = TypeVar("T")


@dataclass(frozen=True)
class VariantDone:
    """What the worker says about one variant: ``instances`` measured, and why not where ``status`` isn't ok."""

    instances: int = 0
    status: Literal["ok", "unsupported", "failed"] = "ok"
    text: str = ""


@dataclass(frozen=True)
class Done:
    """The worker's last word: ``complete`` only when it reached its own end; variants by their range name."""

    complete: bool = False
    variants: dict[str, VariantDone] = field(default_factory=dict)


def dump_spec(spec: RunSpec, path: Path) -> None:
    """Writes ``spec`` for the worker, atomically. Raises ``OSError``."""
    _dump(RunSpec, spec, path)


def load_spec(path: Path) -> RunSpec:
    """The spec that :func:`dump_spec` wrote. Raises :class:`UnusableError`."""
    return _load(RunSpec, path)


def load_done(path: Path) -> Done | None:
    """The worker's last word, or ``None`` where it never got there. Raises :class:`UnusableError` for a broken file."""
    return _load(Done, path) if path.exists() else None


def dump_capture(capture: Capture, path: Path) -> None:
    """Writes what became of a capture, atomically. Raises ``OSError``."""
    _dump(Capture, capture, path)


def load_capture(path: Path) -> Capture:
    """The capture that :func:`dump_capture` wrote. Raises :class:`UnusableError`."""
    return _load(Capture, path)


def _dump(kind: type[T], value: T, path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(TypeAdapter(kind).dump_json(value, indent=1) + b"\n")
    os.replace(partial, path)


def _load(kind: type[T], path: Path) -> T:
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UnusableError(f"{path.name} is not readable: {place}: {first['msg']}", f"look at {path}") from None
    except OSError as error:
        raise UnusableError(f"can't read {path.name}: {error}", f"look at {path}") from None
