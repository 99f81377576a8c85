"""Reads the spec, sets the mode's policy, runs the purpose, writes the done file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perfgate.determinism.contract import policy
from perfgate.determinism.project import contract_of
from perfgate.discover import load
from perfgate.model import RunSpec
from perfgate.profilers.spec_file import load_spec
from perfgate.worker import bits, confirm, timing
from perfgate.worker.job import Job, Outcome

PURPOSES: dict[str, Callable[[RunSpec, list[Job], Path], list[Outcome]]] = {
    "time": timing.run,
    "bits": bits.run,
    "confirm": confirm.run,
}


def main(path: Path) -> None:
    """Runs the spec at ``path``; its folder receives ``results.jsonl`` (while it runs) and ``done.json`` (last)."""
    spec = load_spec(path)
    folder = path.parent
    with policy(spec.mode, memory_fill=spec.memory_fill, contract=contract_of(Path.cwd())):
        if spec.device != "cpu":
            torch.cuda.set_device(spec.device)  # Triton launches, memory figures and events take the current device
        registry = load(spec.workload_paths)
        jobs = [Job.of(registry, variant, spec) for variant in spec.variants]
        outcomes = PURPOSES[spec.purpose](spec, jobs, folder)
    write_done(folder / "done.json", {"complete": True, "variants": {one.variant: one.as_json() for one in outcomes}})


def write_done(path: Path, content: dict[str, Any]) -> None:
    """Writes ``content`` in one step: a reader sees all of it or no file."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=1))
    os.replace(unfinished, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
