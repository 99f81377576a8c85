"""The runs that are parts of one job (shards of a suite, nodes of a program), and what they must have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate.environment import unlike
from perfgate.errors import UnusableError, UsageError
from perfgate.history import find_runs
from perfgate.model import Comparison, GateResult, MergedRun, Reason
from perfgate.shards import parse_shard
from perfgate.store import RunDirectory, load_result

FREE = ("shard", "out", "device", "keep_report", "timeout", "replay_from")  # settings that parts need not share
OF_NODE = ("--node-rank", "--node_rank", "--local-addr", "--local_addr")  # options of a launcher that name its node
OF_BUDGET = ("metric", "overhead", "goal", "abs_floor_ns", "memory_ratio", "memory_bytes")


@dataclass(frozen=True)
class Part:
    """One run: its result, its ``run.json``, where they lie, what it was asked for."""

    result: GateResult
    folder: Path
    number: int
    total: int
    stored: dict[str, Any]
    settings: dict[str, Any]

    @property
    def word(self) -> str:
        """``shard`` of a suite, ``node`` of a program."""
        return "node" if self.of_program else "shard"

    @property
    def label(self) -> str:
        return f"{self.word} {self.result.run.shard}"

    @property
    def name(self) -> str:
        return f"{self.label} ({self.folder})"

    @property
    def of_program(self) -> bool:
        return "program" in self.stored

    @property
    def merged(self) -> MergedRun:
        run = self.result.run
        return MergedRun(run.id, run.started, run.shard, run.seconds, run.complete)


def load_parts(paths: Iterable[Path]) -> list[Part]:
    """Every part under ``paths`` (run directories, or folders of them) in order of their numbers.

    Raises :class:`UsageError` for a run that is no part, for one part given twice, and for parts of a suite and of a program;
    what :func:`refuse_unlike` raises too.
    """
    parts = sorted((_part(file.parent) for file in find_runs(paths)), key=lambda part: part.number)
    seen: dict[int, Part] = {}
    for part in parts:
        twin = seen.setdefault(part.number, part)
        if twin is not part:
            raise UsageError(f"{part.label} is given twice: {twin.folder} and {part.folder}", "give the one that counts")
        if part.of_program != parts[0].of_program:
            raise UsageError(f"{parts[0].name} and {part.name} are of different jobs", "merge a suite and a program apart")
        refuse_unlike(parts[0], part)
    return parts


def _part(folder: Path) -> Part:
    result = load_result(folder)
    if result.run.merged:
        raise UsageError(f"{folder} is a merged run already", "give the parts' own runs")
    if not result.run.shard:
        raise UsageError(f"{folder} is no shard: it holds a whole run", "only runs made with --shard i/n can be merged")
    number, total = parse_shard(result.run.shard)
    stored = RunDirectory.open(folder).read_run()
    key, place = ("program", "options") if "program" in stored else ("plan", "config")
    settings = stored[key].get(place) if isinstance(stored.get(key), dict) else None
    if not isinstance(settings, dict):
        raise UsageError(f"{folder / 'run.json'} lacks {key}.{place}", "the file was edited; run that part again")
    kept = {key: value for key, value in settings.items() if key not in FREE}
    if isinstance(kept.get("command"), list):
        kept["command"] = of_any_node(kept["command"])
    return Part(result, folder, number, total, stored, kept)


def of_any_node(command: Sequence[str]) -> list[str]:
    """A launcher's command without what names the node it runs on."""
    kept: list[str] = []
    for place, word in enumerate(command):
        if word.partition("=")[0] not in OF_NODE and not (place and command[place - 1] in OF_NODE):
            kept.append(word)
    return kept


def refuse_unlike(a: Part, b: Part) -> None:
    """Raises where the figures of two parts can't stand in one table.

    :class:`UnusableError` (exit code 5) for unlike machines, :class:`UsageError` (2) for other code, settings or plans.
    """
    different = unlike(a.result.environment, b.result.environment)
    if different:
        told = "; ".join(map(str, different))
        raise UnusableError(
            f"ENVIRONMENT_CHANGED: {a.name} and {b.name} were made on unlike machines: {told}",
            "run all parts on machines of one kind: the same card, driver, torch, triton and nsys",
        )
    for what, one, other in _what_must_agree(a, b):
        if one != other:
            raise UsageError(
                f"{a.name} and {b.name} differ in {what}: {_short(one)} against {_short(other)}",
                "run all parts from one commit with the same options but --shard and --out",
            )


def _what_must_agree(a: Part, b: Part) -> Iterable[tuple[str, Any, Any]]:
    yield f"the number of {a.word}s", a.total, b.total
    one, other = a.result, b.result
    code, others = one.environment.get("git") or {}, other.environment.get("git") or {}
    for field in ("commit", "changes"):
        yield f"the {field} of the checkout", code.get(field), others.get(field)
    for key in ("perfgate", "kernel_configs"):
        yield key, one.environment.get(key), other.environment.get(key)
    for field in ("mode", "profiler", "looks"):
        yield field, getattr(one.run, field), getattr(other.run, field)
    for key in sorted({*a.settings, *b.settings}):
        yield f"option {key}", a.settings.get(key), b.settings.get(key)
    yield "the planned ranges", one.run.planned, other.run.planned


def missing_parts(parts: Sequence[Part]) -> list[str]:
    """``i/n`` of every part that is not there."""
    total, seen = parts[0].total, {part.number for part in parts}
    return [f"{number}/{total}" for number in range(1, total + 1) if number not in seen]


def cut_short(parts: Iterable[Part]) -> list[Reason]:
    """INCOMPLETE for every part that never came to its end."""
    found = []
    for part in parts:
        if not part.result.run.complete:
            why = next((one.text for one in part.result.findings if one.code == "INCOMPLETE"), "it never came to its end")
            again = f"run it again: {part.result.run.command}"
            found.append(Reason("INCOMPLETE", f"{part.name} was cut short: {why}", again))
    return found


def told_by(parts: Sequence[Part], leave_out: Collection[str]) -> Iterable[Reason]:
    """What the parts' findings say, once where all say it, else with the part's name; without the codes of ``leave_out``."""
    every = [[one for one in part.result.findings if one.code not in leave_out] for part in parts]
    shared = set(every[0]).intersection(*every[1:])
    yield from (one for one in every[0] if one in shared)
    for part, told in zip(parts, every, strict=True):
        yield from (replace(one, text=f"{part.label}: {one.text}") for one in told if one not in shared)


def refuse_other_budgets(parts: Sequence[Part], again: Iterable[Comparison]) -> None:
    """Raises :class:`UsageError` where a range was judged by another budget in its part than now."""
    before = [(part, one) for part in parts for one in part.result.comparisons if one.judged]
    now = {one.name: one.budget for one in again if one.judged}
    for part, one in before:
        for key in OF_BUDGET:
            then, here = (getattr(budget, key, None) for budget in (one.budget, now.get(one.name, one.budget)))
            if then != here:
                raise UsageError(
                    f"{one.range}: its budget's {key} was {then} in {part.name}, here it is {here}",
                    "merge with the budgets that the parts had (--thresholds FILE); `perfgate check` judges by others",
                )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
