"""Records a run's scalars with all their bits: TensorBoard event files where it is installed, else JSON lines."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class Scalars:
    """Keeps scalars on their device while the run goes on, so that no step waits for them; writes them at the end.

    In a ``with`` block they are written also when a step fails. f32 values are exact in both formats.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.steps: list[dict[str, torch.Tensor]] = []

    def add(self, **values: torch.Tensor) -> None:
        """The scalars of the next step."""
        self.steps.append({name: value.detach().clone() for name, value in values.items()})

    def __enter__(self) -> Scalars:
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder is not None and self.steps:
            self.folder.mkdir(parents=True, exist_ok=True)
            write = _tensorboard if tensorboard_installed() else _json_lines
            write(self.folder, self.rows())

    def rows(self) -> list[dict[str, float]]:
        """One dict per step."""
        return [{name: value.item() for name, value in step.items()} for step in self.steps]


def tensorboard_installed() -> bool:
    """Whether event files can be written."""
    return importlib.util.find_spec("tensorboard") is not None


def _tensorboard(folder: Path, rows: list[dict[str, float]]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, row in enumerate(rows):
            for name, value in row.items():
                writer.add_scalar(name, value, step)


def _json_lines(folder: Path, rows: list[dict[str, float]]) -> None:
    lines: list[Mapping[str, Any]] = [{"step": step, **row} for step, row in enumerate(rows)]
    (folder / "scalars.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
