"""Budgets: thresholds/*.toml, read strictly, chosen by the device's name, looked up by range. Today's date is passed in."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perfgate.errors import UnusableError, UsageError
from perfgate.model import BudgetRef, Metric, Reason

DEFAULTS = "*"  # the range of a BudgetRef that came from [defaults]
_TIMES = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse_percent(text: object) -> float:
    """``"15%"`` -> 0.15, ``"-50%"`` -> -0.5. Raises ``ValueError``."""
    found = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", text) if isinstance(text, str) else None
    if not found:
        raise ValueError(f'{text!r} is no percentage; write it like "15%" or "-50%"')
    return float(found[1]) / 100


def _overhead(text: object) -> float:
    value = parse_percent(text)
    if value <= -1:
        raise ValueError(f"{text!r} demands a time of 0 or less")
    return value


def _time(text: object) -> int:
    return round(_quantity(text, _TIMES, '"1us"'))


def _memory(text: object) -> float | int:
    """A float is a ratio, an int is bytes."""
    if isinstance(text, str) and text.strip().endswith("%"):
        return parse_percent(text)
    return round(_quantity(text, _SIZES, '"10%" or "512MiB"'))


def _quantity(text: object, units: dict[str, int], like: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-zµ]+)\s*", text) if isinstance(text, str) else None
    if not found or found[2] not in units:
        raise ValueError(f"{text!r} is no quantity in {', '.join(units)}; write it like {like}")
    return float(found[1]) * units[found[2]]


def _date(value: object) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if type(value) is not date:
        raise ValueError(f"{value!r} is no date; write it like 2027-06-30")
    return value


def _said(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


Percent = Annotated[float, BeforeValidator(_overhead)]
Duration = Annotated[int, BeforeValidator(_time)]
MemoryLimit = Annotated[float | int, BeforeValidator(_memory)]
Day = Annotated[date, BeforeValidator(_date)]
Said = Annotated[str, BeforeValidator(_said)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Defaults(_Strict):
    """``[defaults]``: what a ``[[budget]]`` leaves out, and the budget of every range that has none of its own."""

    metric: Metric = "busy"
    overhead: Percent | None = None
    goal: Percent | None = None
    abs_floor: Duration = 1_000
    memory: MemoryLimit | None = None
    reason: Said = "default of the file"
    owner: Said = "nobody"


class Entry(_Strict):
    """One ``[[budget]]``."""

    range: Said
    metric: Metric | None = None
    overhead: Percent
    goal: Percent | None = None
    abs_floor: Duration | None = None
    memory: MemoryLimit | None = None
    reason: Said
    owner: Said
    expires: Day


class File(_Strict):
    """A whole thresholds file."""

    version: Literal[1]
    match: Annotated[list[Said], Field(min_length=1)]
    provisional: bool = False
    defaults: Defaults = Defaults()
    budget: list[Entry] = []


@dataclass(frozen=True)
class Budgets:
    """The budgets of one file as of ``today``; ``lines`` holds the line of each ``[[budget]]``."""

    file: str
    content: File
    lines: tuple[int, ...]
    defaults_line: int
    today: date

    def find(self, range: str) -> BudgetRef | None:  # noqa: A002 — the field's own word
        """The budget of ``op:case:phase``: the most specific pattern, or ``[defaults]``; ``None`` where neither has one.

        Most specific: the whole range spelt out, then the most letters that are no wildcard, then the fewest wildcards, then
        the last in the file. An expired budget no longer counts: ``[defaults]`` does.
        """
        entry = self._entry(range)
        if entry is not None and not self._expired(entry):
            return self._own(entry)
        return self._default()

    def metric(self, range: str, otherwise: Metric = "busy") -> Metric:  # noqa: A002
        """The metric that the budget of a range judges."""
        found = self.find(range)
        return otherwise if found is None else found.metric

    def findings(self, registered: Iterable[str], measured: Iterable[str]) -> tuple[Reason, ...]:
        """UNMATCHED_BUDGET, NOT_BUDGETED, EXPIRED_BUDGET and PROVISIONAL_BUDGET, each with file and line.

        ``registered`` are the ranges of all known ops, ``measured`` those of this run: a pattern must match one of them.
        """
        known, run = sorted(set(registered)), sorted(set(measured))
        found = [self._unmatched(entry, [*known, *run]) for entry in self.content.budget]
        found += [self._not_budgeted(range_) for range_ in run]
        found += [self._outdated(entry, run) for entry in self.content.budget]
        if self.content.provisional:
            text = f"{self.file}: these budgets are provisional: nobody has measured on this card yet"
            found.append(Reason("PROVISIONAL_BUDGET", text, "`perfgate budget suggest RUN` writes measured ones"))
        return tuple(one for one in found if one is not None)

    def line(self, entry: Entry) -> int:
        """Where ``entry`` begins in the file."""
        return self.lines[next(place for place, one in enumerate(self.content.budget) if one is entry)]

    def _entry(self, range_: str) -> Entry | None:
        fitting = [
            (_specificity(one.range, range_), place)
            for place, one in enumerate(self.content.budget)
            if pattern_matches(one.range, range_)
        ]
        return self.content.budget[max(fitting)[1]] if fitting else None

    def _expired(self, entry: Entry) -> bool:
        return self.today > entry.expires

    def _own(self, entry: Entry) -> BudgetRef:
        defaults = self.content.defaults
        memory = defaults.memory if entry.memory is None else entry.memory
        return BudgetRef(
            range=entry.range,
            metric=entry.metric or defaults.metric,
            overhead=entry.overhead,
            goal=defaults.goal if entry.goal is None else entry.goal,
            abs_floor_ns=defaults.abs_floor if entry.abs_floor is None else entry.abs_floor,
            memory_ratio=memory if isinstance(memory, float) else None,
            memory_bytes=memory if isinstance(memory, int) else None,
            reason=entry.reason,
            owner=entry.owner,
            expires=entry.expires.isoformat(),
            file=self.file,
            line=self.line(entry),
            provisional=self.content.provisional,
        )

    def _default(self) -> BudgetRef | None:
        defaults = self.content.defaults
        if defaults.overhead is None:
            return None
        return BudgetRef(
            range=DEFAULTS,
            metric=defaults.metric,
            overhead=defaults.overhead,
            goal=defaults.goal,
            abs_floor_ns=defaults.abs_floor,
            memory_ratio=defaults.memory if isinstance(defaults.memory, float) else None,
            memory_bytes=defaults.memory if isinstance(defaults.memory, int) else None,
            reason=defaults.reason,
            owner=defaults.owner,
            expires="",
            file=self.file,
            line=self.defaults_line,
            provisional=self.content.provisional,
        )

    def _unmatched(self, entry: Entry, ranges: Sequence[str]) -> Reason | None:
        if any(pattern_matches(entry.range, one) for one in ranges):
            return None
        near = get_close_matches(entry.range, ranges, n=1, cutoff=0.5)
        text = f"{self.file}:{self.line(entry)}: budget {entry.range!r} matches no registered range and none of this run"
        return Reason(
            "UNMATCHED_BUDGET", text, f"did you mean {near[0]!r}?" if near else "mend the pattern or delete the budget"
        )

    def _not_budgeted(self, range_: str) -> Reason | None:
        if self.find(range_) is not None:
            return None
        entry = self._entry(range_)
        place = self.file if entry is None else f"{self.file}:{self.line(entry)}"
        why = "has no budget" if entry is None else f"has only one that expired on {entry.expires}"
        text = f"{place}: {range_} {why}, and [defaults] sets no overhead"
        return Reason("NOT_BUDGETED", text, "`perfgate budget suggest RUN` writes one")

    def _outdated(self, entry: Entry, run: Sequence[str]) -> Reason | None:
        if not self._expired(entry) or not any(self._entry(one) is entry for one in run):
            return None
        place = f"{self.file}:{self.line(entry)}"
        text = f"{place}: budget {entry.range!r} ({entry.owner}) expired on {entry.expires}, so [defaults] apply"
        return Reason("EXPIRED_BUDGET", text, "measure again, then renew it with a reason (`perfgate budget suggest RUN`)")


def read(path: Path, today: date) -> Budgets:
    """One thresholds file. Raises :class:`UsageError` that names file and line of everything wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {error}", "name a thresholds file with --thresholds") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise UsageError(f"{path}:{line}: malformed TOML: {error}", "mend that line") from error
    lines = _Lines(text)
    try:
        content = File.model_validate(table)
    except ValidationError as error:
        problems = [f"{path}:{lines.of(problem['loc'])}: {_explain(problem)}" for problem in error.errors()]
        raise UsageError("\n".join(problems), "thresholds/README.md explains every key") from error
    starts = tuple(lines.of(("budget", place)) for place in range(len(content.budget)))
    seen: dict[str, int] = {}
    for entry, line in zip(content.budget, starts, strict=True):
        if entry.range in seen:
            raise UsageError(f"{path}:{line}: a second budget for {entry.range!r}, the first is in line {seen[entry.range]}")
        seen[entry.range] = line
    return Budgets(str(path), content, starts, lines.of(("defaults",)), today)


def choose(folder: Path, device: str, today: date, named: Path | None = None) -> Budgets:
    """The budgets for a device's name ("NVIDIA H200", "cpu"), from ``folder``'s ``*.toml``, or from the file ``named``.

    Raises :class:`UnusableError` (exit code 5) where no file or several match the name, :class:`UsageError` for a broken file.
    """
    if named is not None:
        return read(named, today)
    every = [read(path, today) for path in sorted(folder.glob("*.toml"))]
    fitting = [one for one in every if matches_device(one, device)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = " and ".join(one.file for one in fitting)
        raise UnusableError(f"{names} all match the device {device!r}", "name one with --thresholds FILE")
    raise UnusableError(
        f"no thresholds file in {folder} matches the device {device!r}",
        "copy the nearest one, set match and provisional = true, or name one with --thresholds FILE",
    )


def matches_device(budgets: Budgets, device: str) -> bool:
    """True where the file's ``match`` fits a device's name."""
    return any(_glob(pattern, device, re.IGNORECASE) for pattern in budgets.content.match)


def pattern_matches(pattern: str, range_: str) -> bool:
    """True where ``pattern`` (``*`` and ``?`` are wildcards) matches op:case:phase, or the op alone."""
    return _glob(pattern, range_) or _glob(pattern, _op_of(range_))


def _glob(pattern: str, text: str, flags: int = 0) -> bool:
    """Only * and ? are special: a foreign range's name may hold brackets."""
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, text, flags | re.DOTALL) is not None


def _op_of(range_: str) -> str:
    return range_.rsplit(":", 2)[0]


def _specificity(pattern: str, range_: str) -> tuple[bool, int, int]:
    wildcards = pattern.count("*") + pattern.count("?")
    return pattern in (range_, _op_of(range_) if range_.endswith("::") else range_), len(pattern) - wildcards, -wildcards


def _explain(problem: Any) -> str:
    where = ".".join(
        str(part + 1) if isinstance(part, int) else part for part in problem["loc"] if part not in ("float", "int")
    )
    if problem["type"] == "extra_forbidden":
        level = Entry if problem["loc"][0] == "budget" else Defaults if problem["loc"][0] == "defaults" else File
        near = get_close_matches(str(problem["loc"][-1]), level.model_fields, n=1)
        return f"unknown key {where}" + (f", did you mean {near[0]}?" if near else "")
    if problem["type"] == "missing":
        return f"missing key {where}"
    return f"{where}: {str(problem['msg']).removeprefix('Value error, ')}"


class _Lines:
    """Where tables and keys stand in a TOML text that has been parsed without an error."""

    def __init__(self, text: str) -> None:
        self.places: dict[tuple[str | int, ...], int] = {}
        self.last = text.count("\n") + 1
        counts: dict[str, int] = {}
        table: tuple[str | int, ...] = ()
        inside = ""  # the quotes of a string over several lines
        for number, line in enumerate(text.splitlines(), 1):
            if inside:
                inside = "" if line.count(inside) % 2 else inside
                continue
            if array := re.match(r"\s*\[\[\s*([\w-]+)\s*\]\]", line):
                table = (array[1], counts.setdefault(array[1], 0))
                counts[array[1]] += 1
                self.places[table] = number
            elif header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
                table = tuple(header[1].split("."))
                self.places[table] = number
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]", line):
                self.places[*table, key[1]] = number
            inside = next((quotes for quotes in ('"""', "'''") if line.count(quotes) % 2), "")

    def of(self, location: Sequence[str | int]) -> int:
        """The line of ``location`` or of the closest table around it; 1 where there is none."""
        for length in range(len(location), 0, -1):
            if tuple(location[:length]) in self.places:
                return self.places[tuple(location[:length])]
        return 1
