"""The kernels of both arms' median instances side by side, each with a letter that the timeline uses too."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase

from perfgate.model import ArmFigures, Comparison, KernelTime

COLOURS = 7  # how many the style sheet has
_NAMED = 60  # kernels that get a row; the rest share one


@dataclass(frozen=True)
class Launch:
    """One kernel with one launch configuration: its exclusive ns and its count per arm; ``None`` where an arm has none."""

    letter: str
    colour: int
    name: str
    kind: str
    grid: str
    block: str
    registers: int
    shared_memory: int
    default: KernelTime | None
    other: KernelTime | None

    @property
    def delta_ns(self) -> int:
        return (self.other.exclusive_ns if self.other else 0) - (self.default.exclusive_ns if self.default else 0)


@dataclass(frozen=True)
class KernelTable:
    """Largest first; ``rest`` counts the launches beyond the table and ``rest_ns`` sums them per arm."""

    launches: tuple[Launch, ...]
    rest: int
    rest_ns: tuple[int, int]
    default_ns: int
    other_ns: int


def kernels_of(comparison: Comparison) -> KernelTable | None:
    """Both arms' kernels joined by name and launch configuration, or ``None`` where neither arm's are known."""
    arms = _by_launch(comparison.default), _by_launch(comparison.deterministic)
    keys = dict.fromkeys([*arms[0], *arms[1]])
    if not keys:
        return None
    letters = letters_of(comparison)
    rows = []
    for key in keys:
        default, other = arms[0].get(key), arms[1].get(key)
        one = default or other
        assert one is not None  # noqa: S101 - the key came from one of the two
        letter = letters[one.name]
        rows.append(
            Launch(
                letter=name_of(letter),
                colour=letter % COLOURS,
                name=one.name,
                kind=one.kind,
                grid=one.grid,
                block=one.block,
                registers=one.registers,
                shared_memory=one.shared_memory,
                default=default,
                other=other,
            )
        )
    rows.sort(key=lambda row: -max(kernel.exclusive_ns for kernel in (row.default, row.other) if kernel))
    rest = rows[_NAMED:]
    return KernelTable(
        launches=tuple(rows[:_NAMED]),
        rest=len(rest),
        rest_ns=(
            sum(row.default.exclusive_ns for row in rest if row.default),
            sum(row.other.exclusive_ns for row in rest if row.other),
        ),
        default_ns=sum(kernel.exclusive_ns for kernel in arms[0].values()),
        other_ns=sum(kernel.exclusive_ns for kernel in arms[1].values()),
    )


def letters_of(comparison: Comparison) -> dict[str, int]:
    """A number per kernel name, 0 the one that takes most time in either arm."""
    times: dict[str, int] = {}
    for arm in (comparison.default, comparison.deterministic):
        for kernel in arm.kernels if arm else ():
            times[kernel.name] = max(times.get(kernel.name, 0), kernel.exclusive_ns)
        for name, _, _ in arm.timeline if arm else ():
            times.setdefault(name, 0)
    return {name: number for number, name in enumerate(sorted(times, key=lambda name: (-times[name], name)))}


def name_of(number: int) -> str:
    """0 is A, 25 is Z, 26 is AA."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = ascii_uppercase[digit] + text
    return text


def _by_launch(arm: ArmFigures | None) -> dict[tuple[object, ...], KernelTime]:
    return {(k.name, k.kind, k.grid, k.block, k.registers, k.shared_memory): k for k in arm.kernels} if arm else {}
