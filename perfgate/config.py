"""``[tool.perfgate]`` and the command line in one frozen object; the command line wins."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, get_args

from perfgate.errors import UsageError
from perfgate.model import Mode
from perfgate.shards import parse_shard

MODES = (*get_args(Mode), "both")
ON_INCONCLUSIVE = ("fail", "pass")
TABLES = ("contract", "coverage", "run")  # sub-tables of [tool.perfgate] that others read
PROFILERS = ("auto", "nsys", "torch", "replay")


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run does. Field names are the option names, ``-`` written ``_``."""

    mode: str = "both"
    op: tuple[str, ...] = ()
    case: tuple[str, ...] = ()
    suite: str = ""  # "" is smoke on a CPU, typical on a GPU
    shard: str = ""  # "i/n": only the i-th of n parts of the plan
    implementation: tuple[str, ...] = ()
    judged_only: bool = False  # default and judged implementation alone: no candidates, no contenders
    workloads: tuple[str, ...] = ()
    device: str = "auto"  # auto | cpu | a GPU's index
    profiler: str = "auto"
    replay_from: str = ""
    thresholds: str = ""
    blocks: int = 3
    max_blocks: int = 0  # 0: no more than blocks
    iterations: int = 30
    warmup: int = 5
    replays: int = 3
    confirm: bool = True
    seed: int = 0
    timeout: float = 600.0  # seconds for one child
    time_budget: float = 0.0  # seconds for all blocks, 0 none
    out: str = ""
    on_inconclusive: str = "fail"
    keep_report: bool = False
    memory_fill: bool = False

    def __post_init__(self) -> None:
        wrong = [
            f"{name} = {value!r} (one of {', '.join(allowed)})"
            for name, value, allowed in (
                ("mode", self.mode, MODES),
                ("profiler", self.profiler, PROFILERS),
                ("on-inconclusive", self.on_inconclusive, ON_INCONCLUSIVE),
            )
            if value not in allowed
        ]
        wrong += [
            f"{name} = {value} (at least {least})"
            for name, value, least in (
                ("blocks", self.blocks, 1),
                ("max-blocks", self.max_blocks, 0),
                ("iterations", self.iterations, 3),
                ("warmup", self.warmup, 1),
                ("replays", self.replays, 2),
                ("timeout", self.timeout, 1),
                ("time-budget", self.time_budget, 0),
            )
            if not least <= value < inf
        ]
        if self.device not in ("auto", "cpu") and not self.device.isdecimal():
            wrong.append(f"device = {self.device!r} (auto, cpu or a GPU's index)")
        if self.replay_from and self.profiler != "replay":
            wrong.append(f"replay-from = {self.replay_from!r} (only with --profiler replay)")
        if self.shard:
            parse_shard(self.shard)
        if wrong:
            raise UsageError("; ".join(wrong), "`perfgate run --help` explains the options")


@dataclass(frozen=True)
class Table:
    """A table of a TOML file; empty where there is no such file or table."""

    values: dict[str, Any] = field(default_factory=dict)
    file: str = ""


def configure(overrides: dict[str, Any], folder: Path, file: Path | None = None, also: Collection[str] = ()) -> Config:
    """``[tool.perfgate]`` of ``folder``'s pyproject.toml, then ``file``, then ``overrides`` (``None`` means not given).

    ``file`` (``--config``) holds the same keys at its top, and those of ``also``, which somebody else reads.
    Raises :class:`UsageError` for malformed TOML (with its line), unknown keys and values of the wrong type.
    """
    from_file = _options(read_table(folder / "pyproject.toml", "tool", "perfgate"), " in [tool.perfgate]", TABLES)
    if file is not None:
        if not file.is_file():
            raise UsageError(f"--config {file}: no such file", "name a TOML file")
        from_file |= _options(read_table(file), "", also)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in overrides.items() if value is not None}
    return replace(Config(), **{**from_file, **{key: value for key, value in given.items() if value != ()}})


def _options(table: Table, place: str, others: Collection[str]) -> dict[str, Any]:
    config = Config()
    kinds = [one.name for one in fields(Config)]
    unknown = [key for key in table.values if not {key, key.replace("-", "_")} & {*kinds, *others}]
    if unknown:
        raise UsageError(f"{table.file}: unknown key {unknown[0]!r}{place}", f"known: {', '.join(sorted((*kinds, *others)))}")
    return {
        key.replace("-", "_"): _typed(key, value, getattr(config, key.replace("-", "_")), table.file, place)
        for key, value in table.values.items()
        if key.replace("-", "_") in kinds
    }


def _typed(key: str, value: Any, otherwise: Any, file: str, place: str) -> Any:
    if isinstance(otherwise, tuple):
        value = (value,) if isinstance(value, str) else value
        if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            return tuple(value)
    elif isinstance(otherwise, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif type(value) is type(otherwise):
        return value
    raise UsageError(f"{file}: {key} = {value!r}{place} should be like {otherwise!r}", "mend that line")


def read_table(path: Path, *place: str) -> Table:
    """The table at ``place`` in a TOML file. Raises :class:`UsageError` for malformed TOML and where it is no table."""
    if not path.is_file():
        return Table()
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}", "mend the file's TOML") from error
    for name in place:
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise UsageError(f"{path}: {name} in [{'.'.join(place)}] is no table", "mend the file's TOML")
    return Table(found, str(path))
