"""A worker that is a few lines of Python, and an nsys that is a shell script: each fails in exactly one way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.model import RunSpec, Variant
from perfgate.profilers import child

VARIANT = Variant("moe/combine", "smoke", "fwd", "torch.index_add", "default")
SPEC = RunSpec(id="time-b00-0-default", purpose="time", mode="default", variants=(VARIANT,), device="cpu", iterations=3)

WORKER = f"""
import json, os, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def done(instances=3, complete=True, **more):
    variant = {{"instances": instances, "status": "ok", "text": "", **more}}
    (folder / "done.json").write_text(json.dumps({{"complete": complete, "variants": {{{VARIANT.name!r}: variant}}}}))
"""

FLAGS = "--trace= --sample= --cpuctxsw= --cuda-graph-trace= --capture-range= --capture-range-end= --force-overwrite= --output="


@pytest.fixture
def spec() -> RunSpec:
    return SPEC


@pytest.fixture
def on_gpu() -> RunSpec:
    return replace(SPEC, device="cuda:0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "captures" / SPEC.id


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process still runs; one that only waits to be reaped does not."""

    def look(pid: int) -> bool:
        try:
            return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False

    return look


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes ``text`` (Python, with ``folder`` and ``done()`` at hand) what runs instead of the worker."""

    def use(text: str) -> None:
        monkeypatch.setattr(
            child, "worker_command", lambda folder: [sys.executable, "-c", WORKER + text, str(folder.resolve())]
        )

    return use


@pytest.fixture
def make_nsys(tmp_path: Path) -> Callable[..., Path]:
    """Writes a fake nsys; each argument is the shell text of one of its deeds."""

    def make(
        *,
        version: str = "echo NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0",
        help_: str = f"echo {FLAGS}",
        profile: str = '"$@"; code=$?; : > "$out.nsys-rep"; exit $code',
        export: str = 'printf "SQLite format 3\\000" > "$out"',
        importer: str | None = "exit 0",
        folder: str = "nsight",
    ) -> Path:
        target, host = tmp_path / folder / "target-linux-x64", tmp_path / folder / "host-linux-x64"
        target.mkdir(parents=True)
        if importer is not None:
            host.mkdir()
            script(host / "QdstrmImporter", f'if [ "$1" = --version ]; then exit 0; fi\nout=$4\n{importer}')
        return script(
            target / "nsys",
            f"""
case "$1" in
--version) {version}; exit;;
profile) if [ "$2" = --help ]; then {help_}; exit; fi;;
export) ;;
*) exit 64;;
esac
deed=$1; out=
while shift; do
  case "$1" in --output=*) out=${{1#--output=}};; --*) ;; *) break;; esac
done
if [ $deed = profile ]; then {profile}; else {export}; fi""",
        )

    return make


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
