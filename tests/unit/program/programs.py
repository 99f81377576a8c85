"""A program that runs nowhere: what its runs leave is written down, so that the whole gate is tested without a process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pytest

from perfgate.budgets import Budgets, read
from perfgate.config import Config
from perfgate.model import Capture
from perfgate.program import evidence, session
from perfgate.program.arms import arms_of
from perfgate.program.options import ProgramOptions
from perfgate.program.prepared import Prepared
from perfgate.program.session import ProgramSession
from perfgate.render import FORMATS
from perfgate.sequential import Looks
from perfgate.store import RunDirectory
from tests.unit.test_per_step import P0, Program

TODAY = date(2026, 11, 29)
BUDGETS = """version = 1
match = ["program"]
[defaults]
overhead = "15%"
[[budget]]
range = "step"
metric = "step_wall"
overhead = "10%"
abs_floor = "1ns"
reason = "r"
owner = "o"
expires = 2027-05-31
"""


@dataclass
class Behaviour:
    """What one arm does: ns per step unprofiled and in its layer's kernel, what it writes, how it fails."""

    step: int = 1_000_000
    kernel: int = 400_000
    kernel_name: str = "gemm"
    loss: float | None = None
    loss_differs_in: tuple[int, ...] = ()  # runs of this arm, counted from 0
    steps: int = 12
    ranks: int = 2
    allocated: int | None = 1000
    error: str = ""
    launches_lost: int = 0
    drift: float = 0.0  # by how much the last step is slower than the first


@dataclass
class Launched:
    """Stands in for the launcher."""

    arms: dict[str, Behaviour]
    records: bool = True  # the program uses perfgate.steps
    facts: object = "nsys"
    ran: list[tuple[str, str]] = field(default_factory=list)
    traces: dict[Path, object] = field(default_factory=dict)
    per_rank: bool = False

    def capture(self, spec, arm, folder, watched):
        known = self.arms[arm.name]
        times = sum(name == arm.name for name, _ in self.ran)
        self.ran.append((arm.name, watched))
        own = folder / "program"
        for name in ("steps", "metrics"):
            (own / name).mkdir(parents=True)
        if known.error:
            return Capture(spec, f"captures/{spec.id}", error=known.error, blame="workload")
        wobble = 1 + 0.001 * (len(self.ran) % 3)
        if known.loss is not None:
            loss = known.loss + (1e-9 if times in known.loss_differs_in else 0)
            (own / "metrics" / "loss.jsonl").write_text(
                "".join(json.dumps({"step": n, "loss": loss + n}) + "\n" for n in range(3))
            )
        if self.records:
            for rank in range(known.ranks):
                self._record(own / "steps" / f"rank-{rank}.jsonl", rank, known, round(known.step * wobble))
        if watched:
            self.traces[folder / "trace.sqlite"] = _trace(known, watched, wobble)
        return Capture(spec, f"captures/{spec.id}", complete=True)

    def _record(self, file, rank, known, step):
        lines = [{"schema": 1, "rank": rank, "world": known.ranks, "pid": rank + 1}]
        slow = step // 2 if rank else step  # rank 0 is the slow one
        starts = [round(n * slow * (1 + known.drift * n / known.steps)) for n in range(known.steps)]
        lines += [{"step": n, "start_ns": at, "tokens": 100, "ended": "ok"} for n, at in enumerate(starts)]
        lines.append(
            {
                "end_ns": known.steps * slow,
                "event_ns": None,
                "allocated_bytes": known.allocated,
                "reserved_bytes": known.allocated,
            }
        )
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _trace(known, watched, wobble):
    program = Program()
    step = round(known.step * wobble)
    for rank in range(known.ranks):
        process = P0 * (rank + 1)
        for number in range(known.steps):
            at = number * step
            program.range("step", at, at + step - 10, process)
            program.range("layer", at + 10, at + 1000, process)
            if watched == "gpu":
                program.kernel(known.kernel_name, at + 20, at + 100, at + 100 + round(known.kernel * wobble), process)
                program.kernel("adam", at + step - 100, at + step - 90, at + step - 80, process)
    for place in range(known.launches_lost):
        del program.ops[2 * place + 4]
    return program.trace(has_gpu=watched == "gpu")


class Silent:
    def started(self, spec): ...
    def finished(self, capture): ...
    def say(self, text): ...


def budgets(folder: Path, text: str = BUDGETS) -> Budgets:
    file = folder / "budgets.toml"
    file.write_text(text)
    return read(file, TODAY)


class Gate:
    """A session over :class:`Launched`, in a fresh directory."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched, text: str = BUDGETS, **options
    ) -> None:
        blocks, cards = options.pop("blocks", 1), options.pop("cards", ("cuda:0",))
        more = options.pop("max_blocks", blocks)
        if not options.pop("html", False):  # drawing takes longer than all the rest
            monkeypatch.setattr(session, "FORMATS", {**FORMATS, "html": lambda result: ""})
        self.launched = launched
        given = ProgramOptions(command=("torchrun", "train.py"), **options)
        profiled = blocks if given.profiled_blocks < 0 else given.profiled_blocks
        config = Config(blocks=blocks, max_blocks=more)
        environment = {"device": "cuda", "gpu": {"name": "NVIDIA H200"}}
        looks = Looks.plan(blocks, more)
        prepared = Prepared(
            *(
                config,
                given,
                arms_of(given),
                "cuda:0",
                budgets(folder, text),
                launched,
                looks,
                profiled,
                0,
                environment,
                (),
                cards,
            )
        )
        directory = RunDirectory(folder / "run")
        (folder / "run" / "captures").mkdir(parents=True)
        monkeypatch.setattr(
            evidence, "traces_of", lambda place: [one for one in (place / "trace.sqlite",) if one in launched.traces]
        )
        monkeypatch.setattr(evidence, "read", lambda path: launched.traces[path])
        self.session = ProgramSession(prepared, directory, "perfgate run", Silent())

    def run(self):
        with self.session.concluded():
            self.session.measure()
        return self.session.result()


def arms(**changes: dict[str, object]) -> dict[str, Behaviour]:
    """default and deterministic alike, but for ``changes`` by arm."""
    names = dict.fromkeys(("default", "deterministic", *changes))
    return {name: replace(Behaviour(), **changes.get(name, {})) for name in names}
