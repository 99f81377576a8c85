"""Is this gate, on this machine, now, to be trusted? Four controls whose verdict is known go through the whole main job.

1. ``selftest/same``: an implementation against itself, budget max(3 %, 2 × MDE): must pass.
2. ``selftest/slower``: extra copies inside the range, 2 % over that budget (2 × MDE where that is more): must fail.
3. ``selftest/racy``: a race that calls itself deterministic: its bits must differ.
4. ``selftest/empty``: a range in which nothing runs: must be refused, never read as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from perfgate.budgets import read
from perfgate.config import Config
from perfgate.determinism import selftest_ops
from perfgate.devices import choose_device
from perfgate.judge import judge
from perfgate.model import Comparison, GateResult, Metric
from perfgate.sequential import Looks

if TYPE_CHECKING:
    from perfgate.gate import Finished

LEAST_BUDGET = 0.03
LEAST_EXCESS = 0.02
Run = Callable[[Config], "Finished"]


@dataclass(frozen=True)
class Control:
    """One control: what had to come out and what did."""

    name: str
    expected: str
    found: str  # status and codes
    ok: bool
    text: str  # the figures
    inconclusive: bool = False


@dataclass(frozen=True)
class SelfTest:
    """All controls, and the budget and minimum detectable effect (fractions) that they were held against."""

    budget: float
    mde: float | None
    controls: tuple[Control, ...]
    device: str

    @property
    def exit_code(self) -> int:
        """0 where all came out as they must, 4 where the only trouble is that one stayed undecided, else 1."""
        wrong = [one for one in self.controls if not one.ok]
        return 0 if not wrong else 4 if all(one.inconclusive for one in wrong) else 1


def selftest(config: Config, folder: Path, run: Run, today: date) -> SelfTest:
    """Runs the controls with ``run`` (the gate) under ``config``; private budgets and, with ``config.out``, runs go below it.

    ``folder`` holds the budget files while the gate reads them. Raises what the gate raises.
    """
    base = replace(config, workloads=(*config.workloads, selftest_ops.__file__), confirm=False)
    metric: Metric = "host" if choose_device(config.device) == "cpu" else "busy"
    ops = tuple(op.name for op in (selftest_ops.same, selftest_ops.slower, selftest_ops.racy, selftest_ops.empty))
    private = _budgets(folder, LEAST_BUDGET, metric)
    first = run(_of(base, "controls", op=ops, suite=selftest_ops.SUITE, max_blocks=0, thresholds=private)).result
    same, slow = _of_op(first, selftest_ops.same.name), _of_op(first, selftest_ops.slower.name)
    mde = same.mde
    budget = max(LEAST_BUDGET, 2 * (mde or 0.0))
    if budget > LEAST_BUDGET or slow.status == "inconclusive":
        private = _budgets(folder, budget, metric)
        (same,) = judge([same], read(Path(private), today), looks=Looks.plan(config.blocks, config.blocks))
        case = f"plus{extra_copies(budget, mde or 0.0)}"
        slow = _of_op(run(_of(base, "slowdown", op=(slow.op,), case=(case,), thresholds=private)).result, slow.op)
    controls = (
        _control(same, "pass", "WITHIN_BUDGET"),
        _control(slow, "fail", "OVER_BUDGET"),
        _control(_of_op(first, selftest_ops.racy.name), "fail", "BITS_DIFFER"),
        _control(_of_op(first, selftest_ops.empty.name), "invalid", "NOTHING_MEASURED"),
    )
    return SelfTest(budget, mde, controls, first.run.device)


def extra_copies(budget: float, mde: float) -> int:
    """How many copies on top of a hundred lie 2 % (or 2 × MDE) over the budget; at most what is declared."""
    wanted = math.ceil(round(100 * (budget + max(LEAST_EXCESS, 2 * mde)), 6))
    return min(wanted, selftest_ops.MOST_EXTRA)


def _of(base: Config, part: str, **changes: object) -> Config:
    out = str(Path(base.out) / part) if base.out else ""
    return replace(base, out=out, **changes)  # type: ignore[arg-type]


def _of_op(result: GateResult, name: str) -> Comparison:
    return next(one for one in result.comparisons if one.op == name and one.judged)


def _control(one: Comparison, status: str, code: str) -> Control:
    codes = [reason.code for reason in one.reasons]
    ok = code in codes and one.status == status
    text = next((reason.text for reason in one.reasons if reason.code == code), one.reasons[0].text if one.reasons else "")
    return Control(one.op, code, f"{one.status} ({', '.join(codes)})", ok, text, one.status == "inconclusive")


def _budgets(folder: Path, overhead: float, metric: Metric) -> str:
    """A private budget file for every device; the empty control is always held against GPU time."""
    path = folder / f"selftest-{overhead:.4f}.toml"
    path.write_text("\n".join(_lines(overhead, metric)))
    return str(path)


def _lines(overhead: float, metric: Metric) -> Iterator[str]:
    percent = f"{100 * overhead:.4f}%"
    yield from ("version = 1", 'match = ["*"]', "[defaults]", f'metric = "{metric}"')
    yield from (f'overhead = "{percent}"', 'abs_floor = "0us"')
    yield from ("[[budget]]", f'range = "{selftest_ops.empty.name}"', 'metric = "busy"', f'overhead = "{percent}"')
    yield from ('reason = "a range in which nothing runs"', 'owner = "perfgate selftest"', "expires = 9999-12-31", "")
