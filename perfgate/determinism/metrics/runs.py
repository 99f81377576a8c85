"""Finds what a training run left behind: event files, JSON lines, CSV, one stream per rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from perfgate.determinism.metrics.event_files import read_events
from perfgate.determinism.metrics.text_logs import read_csv, read_jsonl
from perfgate.determinism.metrics.values import Stream
from perfgate.errors import UsageError

KINDS = "TensorBoard event files, .jsonl or .csv"


@dataclass(frozen=True)
class Run:
    """The streams of a run by rank: the folder of event files, or folder and name of a text log, "." where there is one."""

    path: str
    streams: dict[str, Stream]
    files: int


def read_run(path: Path) -> Run:
    """Reads a file, or every event file, ``.jsonl`` and ``.csv`` below a folder.

    Raises :class:`UsageError` where nothing is found or a file can't be read to its end.
    """
    if not path.exists():
        raise UsageError(f"no run at {path}", f"give a file or a folder with {KINDS}")
    files = sorted(_files(path)) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} holds no {KINDS}", "give the folder that the run's writer was told")
    parts: dict[tuple[str, ...], Stream] = {}
    for file in files:
        _read(file, path if path.is_dir() else path.parent, parts)
    if not any(stream.scalars for stream in parts.values()):
        raise UsageError(f"{path} holds no scalars in {len(files)} files", "nothing could be compared")
    return Run(str(path), {"/".join(key) or ".": stream for key, stream in parts.items()}, len(files))


def paired(first: Run, second: Run) -> tuple[dict[str, Stream], dict[str, Stream]]:
    """The streams of both runs under names that meet.

    As they are where any name is in both; else without the folders that all of one run's names begin with (time stamps); else,
    with one stream each, under one name. Names that still don't meet stay apart: missing ranks.
    """
    if first.streams.keys() & second.streams.keys():
        return first.streams, second.streams
    shortened = _without_shared_folders(first.streams), _without_shared_folders(second.streams)
    if shortened[0].keys() & shortened[1].keys():
        return shortened
    if len(first.streams) == len(second.streams) == 1:
        return {".": next(iter(first.streams.values()))}, {".": next(iter(second.streams.values()))}
    return first.streams, second.streams


def _without_shared_folders(streams: dict[str, Stream]) -> dict[str, Stream]:
    folders = [PurePosixPath(name).parts[:-1] for name in streams]
    shared = sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False)))
    return {"/".join(PurePosixPath(name).parts[shared:]) or ".": stream for name, stream in streams.items()}


def _files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        known = "tfevents" in file.name or file.suffix in (".jsonl", ".csv")
        if known and file.suffix != ".profile-empty" and file.is_file():  # TensorFlow's profiler leaves such markers
            yield file


def _read(file: Path, top: Path, parts: dict[tuple[str, ...], Stream]) -> None:
    where = PurePosixPath(file.parent.relative_to(top).as_posix()).parts
    try:
        if "tfevents" in file.name:
            read_events(file, parts.setdefault(where, Stream()))
        elif file.suffix == ".csv":
            read_csv(file, lambda rank: parts.setdefault((*where, file.stem, *([rank] if rank else [])), Stream()))
        else:
            read_jsonl(file, lambda rank: parts.setdefault((*where, file.stem, *([rank] if rank else [])), Stream()))
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror or error}") from error
