"""The run directory: what each stage leaves, so that every later stage can be repeated without a GPU.

::

    RUN/run.json                    the configuration and the plan
    RUN/result.json                 written anew after every capture; report.html and leaderboard.csv at the end
    RUN/captures/<spec id>/         spec.json, capture.json, done.json, worker.log, trace.sqlite (slim) or trace.json
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfgate.errors import PerfgateError, UsageError
from perfgate.model import Capture, GateResult, RunSpec


class RunDirectory:
    """One run's folder. All writes are atomic: a reader sees the old file or the whole new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, out: str, now: datetime) -> RunDirectory:
        """A new, empty directory: ``out``, or ``runs/<time>-<four hex digits>``.

        Raises :class:`UsageError` where it can't be made, written to, or holds something already.
        """
        path = Path(out) if out else Path("runs") / f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise UsageError(
                    f"{path} is there already and not empty", "choose another --out, or remove it: nothing is overwritten"
                )
            (path / "captures").mkdir(parents=True, exist_ok=True)
            probe = path / ".writable"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise UsageError(f"can't write to {path}: {error.strerror}", "choose a writable --out") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory. Raises :class:`UsageError` where ``path`` is none."""
        if not (path / "run.json").is_file():
            raise UsageError(f"{path} is not a run directory: it has no run.json", "give a folder that `perfgate run` wrote")
        return cls(path)

    def folder(self, spec: RunSpec) -> Path:
        """The folder of one capture, made if need be."""
        folder = self.path / "captures" / spec.id
        with full_disk_explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_text(self, name: str, text: str) -> Path:
        """Writes ``name`` in one step. Raises :class:`PerfgateError` (exit code 2) where the disk refuses."""
        target = self.path / name
        unfinished = target.with_name(f".{target.name}.part")
        with full_disk_explained(target):
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, target)
        return target

    def write_run(self, content: dict[str, Any]) -> None:
        self.write_text("run.json", json.dumps(content, indent=1))

    def read_run(self) -> dict[str, Any]:
        """``run.json``. Raises :class:`UsageError` where it can't be read."""
        try:
            content: dict[str, Any] = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / 'run.json'} can't be read: {error}", "run again, or restore the file") from error
        return content

    def captures(self) -> list[Capture]:
        """The captures stored so far, in the order of their ids. Raises :class:`PerfgateError` for a damaged one."""
        from perfgate.profilers.spec_file import CAPTURE, load_capture

        return [load_capture(file) for file in sorted(self.path.glob(f"captures/*/{CAPTURE}"))]

    def done(self, capture: Capture) -> dict[str, Any]:
        """What the worker said of each variant, by name; of a child that died, what it had said until then."""
        folder = self.path / capture.folder
        try:
            variants: dict[str, Any] = json.loads((folder / "done.json").read_text())["variants"]
        except (OSError, ValueError, KeyError):
            return dict(_lines(folder / "results.jsonl"))
        return variants


def load_result(path: Path) -> GateResult:
    """``result.json`` of a run directory, or the file itself.

    Raises :class:`UsageError` where it is missing, damaged or of an unknown schema version.
    """
    from perfgate.render.json import loads

    file = path / "result.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} can't be read: {error}", "give a run directory or its result.json") from error
    return loads(text)


@contextmanager
def full_disk_explained(target: Path) -> Iterator[None]:
    """Turns an ``OSError`` while writing ``target`` into an error that says what to free."""
    try:
        yield
    except OSError as error:
        raise PerfgateError(
            f"can't write {target}: {error.strerror or error}",
            "free space or choose another --out; what was written until now stays readable and can't pass",
        ) from error


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # the line that was being written when the child died
            continue
        yield entry.pop("variant"), entry
