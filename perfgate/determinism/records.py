"""Digests of outputs written to a file, so that two processes, allocations or nodes can be compared. Imports no torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from perfgate.errors import UsageError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TensorRecord:
    """One output: its name, type, shape and the SHA-256 of each MiB of its bits (see ``bits.leaf_digests``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    element_size: int  # bytes
    leaf_bytes: int
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One subject: its outputs' digests and what its replays within the recording process showed."""

    name: str
    tensors: tuple[TensorRecord, ...] = ()
    compared: int = 0
    differing: int = 0
    first_difference: str = ""
    status: Literal["ok", "unsupported", "failed"] = "ok"
    problem: str = ""  # why it could not be recorded


@dataclass(frozen=True)
class Record:
    """Everything one ``perfgate bits record`` wrote."""

    mode: str
    seed: int
    environment: dict[str, Any]
    variables: dict[str, str | None]
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """What is not the same in two records, in words."""

    entry: str
    text: str


def write_record(record: Record, path: Path) -> None:
    """Writes in one step: a reader sees all of it or no file."""
    content = {"schema_version": SCHEMA_VERSION, "kind": "perfgate-bits", **asdict(record)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def read_record(path: Path) -> Record:
    """Raises :class:`UsageError` for a file that is missing, cut short, something else or of an unknown version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror or error}", "perfgate bits record --out FILE writes one"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", "is the copy complete?") from error
    if not isinstance(content, dict) or content.get("kind") != "perfgate-bits":
        raise UsageError(f"{path} is no record of bits", "perfgate bits record --out FILE writes one")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{path} has schema version {content.get('schema_version')}, this perfgate reads {SCHEMA_VERSION}")
    try:
        entries = {name: _entry(value) for name, value in content["entries"].items()}
        return Record(content["mode"], content["seed"], content["environment"], content["variables"], entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error!r}", "record it again") from error


def _entry(value: dict[str, Any]) -> Entry:
    tensors = tuple(
        TensorRecord(**{**tensor, "shape": tuple(tensor["shape"]), "leaves": tuple(tensor["leaves"])})
        for tensor in value["tensors"]
    )
    return Entry(**{**value, "tensors": tensors})


def compare_records(first: Record, second: Record) -> tuple[int, list[Difference]]:
    """How many entries were compared, and every difference: of digests, of presence, of replays within one record.

    Raises :class:`UsageError` where no entry could be compared.
    """
    both = [name for name in first.entries if name in second.entries]
    comparable = [name for name in both if not (first.entries[name].problem and second.entries[name].problem)]
    one_sided = [
        *(Difference(name, "only in the first record") for name in first.entries if name not in second.entries),
        *(Difference(name, "only in the second record") for name in second.entries if name not in first.entries),
    ]
    if not comparable:
        raise UsageError("the records have no entry in common that both could run: nothing was compared")
    found = [Difference(name, text) for name in comparable for text in _differences(first.entries[name], second.entries[name])]
    return len(comparable), found + one_sided


def _differences(first: Entry, second: Entry) -> Iterator[str]:
    for which, entry in (("first", first), ("second", second)):
        if entry.problem:
            yield f"not recorded in the {which}: {entry.problem}"
        if entry.differing:
            yield f"differs within the {which} record: {entry.differing} of {entry.compared} replays, {entry.first_difference}"
    if not first.problem and not second.problem:
        told = next((text for text in _tensors(first, second) if text), "")
        if told:
            yield told


def _tensors(first: Entry, second: Entry) -> Iterator[str]:
    others = {tensor.name: tensor for tensor in second.tensors}
    for tensor in first.tensors:
        other = others.pop(tensor.name, None)
        if other is None:
            yield f"{tensor.name}: missing in the second record"
        elif (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            yield f"{tensor.name}: {tensor.dtype} {tensor.shape} against {other.dtype} {other.shape}"
        else:
            yield _leaves(tensor, other)
    yield from (f"{name}: missing in the first record" for name in others)


def _leaves(first: TensorRecord, second: TensorRecord) -> str:
    differing = [number for number, (a, b) in enumerate(zip(first.leaves, second.leaves, strict=False)) if a != b]
    if first.leaves == second.leaves:
        return ""
    if first.leaf_bytes != second.leaf_bytes or not differing:
        return f"{first.name}: the digests differ"
    elements, per_leaf = math.prod(first.shape), first.leaf_bytes // first.element_size
    start = differing[0] * per_leaf
    end = min(start + per_leaf, elements) - 1
    places = f"{_index(start, first.shape)} and {_index(end, first.shape)}"
    return f"{first.name}: the first difference lies between {places}; {len(differing)} of {len(first.leaves)} MiB differ"


def _index(position: int, shape: tuple[int, ...]) -> list[int]:
    index = []
    for size in reversed(shape):
        position, place = divmod(position, size)
        index.append(place)
    return index[::-1]
