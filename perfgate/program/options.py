"""What ``perfgate run -- CMD`` was asked for: the command line, ``--config FILE`` and ``[tool.perfgate.run]`` in one object."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from perfgate.config import read_table
from perfgate.errors import UsageError

Pairs = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ProgramOptions:
    """Field names are the option names, ``-`` written ``_``; arms stand in ``mode_args`` and ``mode_env`` by name."""

    command: tuple[str, ...] = ()
    mode_args: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (arm, arguments appended to the command)
    mode_env: tuple[tuple[str, Pairs], ...] = ()  # (arm, variables)
    judge: str = ""  # "" is the last deterministic arm named
    match: str = ""  # "" judges the ranges that have a budget of their own
    step_range: str = ""  # "" is "step"
    steps: str = ""  # "11:41"; "" leaves the first quarter out
    metrics: str = ""
    tokens_per_step: int = 0
    ranks: int = 0  # 0: what the command or the program says
    per_rank: bool = False
    profiled_blocks: int = -1  # -1: as many as blocks

    def __post_init__(self) -> None:
        wrong = [
            f"{name} = {value} (at least {least})"
            for name, value, least in (
                ("tokens-per-step", self.tokens_per_step, 0),
                ("ranks", self.ranks, 0),
                ("profiled-blocks", self.profiled_blocks, -1),
            )
            if value < least
        ]
        names = [name for name, _ in (*self.mode_args, *self.mode_env)]
        wrong += [f"{name!r} is no name for an arm" for name in names if not _NAME.fullmatch(name)]
        wrong += [
            f"{name!r} is no variable's name"
            for _, variables in self.mode_env
            for name, _ in variables
            if not _VARIABLE.fullmatch(name)
        ]
        if wrong:
            raise UsageError("; ".join(wrong), "`perfgate run --help` explains the options")
        self.window()

    def window(self) -> tuple[int | None, int | None]:
        """First step and the one behind the last; ``None`` where left open. Raises :class:`UsageError`."""
        if not self.steps:
            return None, None
        found = re.fullmatch(r"\s*(\d*)\s*:\s*(\d*)\s*", self.steps)
        if not found:
            raise UsageError(f"--steps {self.steps}", "write FIRST:LAST, half-open and counted from 0, like 11:41")
        first, last = (int(part) if part else None for part in found.groups())
        if last is not None and last <= (first or 0):
            raise UsageError(f"--steps {self.steps} holds no step", "it is half-open: 11:41 are the 30 steps 11 to 40")
        return first, last


KEYS = tuple(one.name for one in fields(ProgramOptions))


def configure_program(overrides: Mapping[str, Any], folder: Path, file: Path | None = None) -> ProgramOptions:
    """``[tool.perfgate.run]`` of ``folder``'s pyproject.toml, then ``file`` (``--config``), then ``overrides``.

    ``overrides`` holds what the command line gave (``None`` or empty: not given). Of arms the command line adds to the files'.
    Raises :class:`UsageError` for unknown keys and values of the wrong type, with the file's name.
    """
    table = read_table(folder / "pyproject.toml", "tool", "perfgate", "run")
    if "command" in table.values:
        raise UsageError(
            f"{table.file}: [tool.perfgate.run] may not name the command: then `perfgate run` could no longer run the ops",
            "put it into a file of its own: --config FILE",
        )
    found = _of_table(table.values, f"{table.file} [tool.perfgate.run]", strict=True)
    if file is not None:
        own = read_table(file)
        found |= _of_table(own.values, own.file, strict=False)
    given = {name: value for name, value in overrides.items() if value is not None and value != ()}
    for name, parse in (("mode_args", _argument), ("mode_env", _variable)):
        if name in given:
            given[name] = _joined(found.get(name, ()), [parse(text) for text in given[name]], replace=name == "mode_args")
    return ProgramOptions(**{**found, **given})


def _of_table(values: Mapping[str, Any], place: str, *, strict: bool) -> dict[str, Any]:
    """The keys of ours in a table; unknown ones are an error where it may hold nothing else."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name in KEYS:
            found[name] = _typed(key, name, value, place)
        elif strict:
            near = get_close_matches(name, KEYS, n=1)
            mend = f"did you mean {near[0].replace('_', '-')}?" if near else f"known: {', '.join(KEYS)}"
            raise UsageError(f"{place}: unknown key {key!r}", mend)
    return found


def _typed(key: str, name: str, value: Any, place: str) -> Any:
    default = getattr(ProgramOptions, name)
    if name == "command":
        if isinstance(value, str):
            return tuple(_split(value, place))
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return tuple(value)
        raise UsageError(f'{place}: {key} = {value!r} should be like "torchrun train.py"', "mend that line")
    if name == "mode_args":
        if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
            return tuple((arm, tuple(_split(text, place))) for arm, text in value.items())
        raise UsageError(f"{place}: {key} is a table: ", '[mode-args] deterministic = "--deterministic-mode"')
    if name == "mode_env":
        tables = isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())
        if tables and all(isinstance(text, str) for one in value.values() for text in one.values()):
            return tuple((arm, tuple(variables.items())) for arm, variables in value.items())
        raise UsageError(f"{place}: {key} is a table of tables of strings", '[mode-env.deterministic] NAME = "1"')
    if type(value) is type(default):
        return value
    raise UsageError(f"{place}: {key} = {value!r} should be like {default!r}", "mend that line")


def _argument(text: str) -> tuple[str, tuple[str, ...]]:
    arm, equals, arguments = text.partition("=")
    if not equals:
        raise UsageError(f"--mode-args {text}", 'write NAME="ARGUMENTS", like deterministic="--deterministic-mode"')
    return arm, tuple(_split(arguments, f"--mode-args {arm}"))


def _variable(text: str) -> tuple[str, Pairs]:
    parts = text.split("=", 2)
    if len(parts) != 3:
        raise UsageError(f"--mode-env {text}", "write ARM=NAME=VALUE, like deterministic=MYLIB_DETERMINISTIC=1")
    return parts[0], ((parts[1], parts[2]),)


def _joined(
    known: Iterable[tuple[str, tuple[Any, ...]]], more: Iterable[tuple[str, tuple[Any, ...]]], *, replace: bool
) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """One entry per arm: ``more`` in the place of (``replace``) or behind what is ``known`` of that arm."""
    found = dict(known)
    mine: dict[str, tuple[Any, ...]] = {}
    for arm, values in more:
        mine[arm] = (*mine.get(arm, () if replace else found.get(arm, ())), *values)
    return tuple((found | mine).items())


def _split(text: str, place: str) -> Sequence[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{place}: {text!r}: {error}", "close the quotes") from None
