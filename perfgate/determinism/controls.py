"""Was this harness able to see a race at all? A deterministic claim is worth what its control shows.

Below three contributions per output a race can't show (addition commutes), and hardware decides whether a larger one does. So
a control's result is reported, never asserted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfgate.model import Comparison
from perfgate.registry import Op


@dataclass(frozen=True)
class Sensitivity:
    """How often the racy control differed. ``differing`` is ``None`` where none ran."""

    control: str  # "torch.index_add_ at typical"
    differing: int | None
    compared: int

    @property
    def proven(self) -> bool:
        """Whether a race was seen: only then does "no replay differs" say something about the deterministic arm."""
        return bool(self.differing)

    def __str__(self) -> str:
        return sensitivity_told(self.control, self.differing, self.compared)


def sensitivity_told(control: str, differing: int | None, compared: int) -> str:
    """One sentence for every view."""
    if differing is None or compared == 0:
        return f"unproven sensitivity: no racy control ran{f' ({control})' if control else ''}"
    if differing == 0:
        return f"unproven sensitivity: the control {control} did not differ in {compared} replays"
    return f"this harness saw {control} differ in {differing} of {compared} replays"


def control_of(op: Op) -> tuple[str, str]:
    """The implementation and the case that show ``op``'s race: what the op names, else its default at its largest case.

    ("", "") where the op declares no race, so that no control can be wanted.
    """
    default = op.with_role("default")
    if not op.racy or default is None or not op.case_list:
        return "", ""
    sizes = [case.name for case in op.case_list]
    largest = next((name for name in ("large", "typical", "small") if name in sizes), sizes[-1])
    return op.control or default.name, op.control_case or largest


def sensitivity_by_op(comparisons: Iterable[Comparison]) -> dict[str, Sensitivity]:
    """The best control of each op in a run: its default's replays in the case and phase where most of them differed.

    One working control speaks for all cases of an op: small ones are too small to race.
    """
    best: dict[str, Sensitivity] = {}
    for comparison in comparisons:
        name = comparison.default.implementation if comparison.default else ""
        seen = Sensitivity(
            f"{name} at {comparison.case}:{comparison.phase}" if name else "",
            comparison.bits.default_differing,
            comparison.bits.default_replays,
        )
        known = best.get(comparison.op)
        if known is None or (seen.differing or 0, seen.compared) > (known.differing or 0, known.compared):
            best[comparison.op] = seen
    return best
