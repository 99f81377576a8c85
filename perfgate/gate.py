"""The story: plan, run the children, read what they left, compare, judge, ask for more until every range is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from perfgate.budgets import Budgets
from perfgate.budgets import choose as choose_budgets
from perfgate.card_lock import only_one_on
from perfgate.config import ON_INCONCLUSIVE, Config
from perfgate.devices import choose_device, device_name, why_no_gpu
from perfgate.discover import bundled_folder, module, readable
from perfgate.discover import load as load_ops
from perfgate.environment import fingerprint
from perfgate.errors import UnusableError, UsageError
from perfgate.judge import judge, verdict
from perfgate.model import GateResult, Reason
from perfgate.plan import make_plan
from perfgate.profilers import choose as choose_profiler
from perfgate.registry import Registry
from perfgate.sequential import Looks
from perfgate.session import Prepared, Progress, Session
from perfgate.store import RunDirectory, load_result


@dataclass(frozen=True)
class Finished:
    """A run's result and where it lies."""

    result: GateResult
    directory: RunDirectory


def prepare(config: Config) -> Prepared:
    """Finds ops, budgets, device and profiler.

    Raises :class:`~perfgate.errors.PerfgateError` for all that can't be as asked; nothing has run by then.
    """
    registry = load_ops(config.workloads)
    stored = Path(config.replay_from) if config.replay_from else None
    machine = _stored_machine(stored) if stored else _this_machine(config.device)
    profiler, findings = choose_profiler(
        config.profiler, device=machine.device, replay_from=stored, keep_report=config.keep_report
    )
    plan = make_plan(registry, config, machine.device, profiler.name)
    budgets = budgets_of(machine.name, config.thresholds)
    found = budgets.findings(ranges_of(registry), {one.range for one in plan.variants})
    _refuse_broken_budgets(found)
    looks = Looks.plan(config.blocks, config.max_blocks or config.blocks)
    return Prepared(plan, registry, budgets, profiler, (*machine.findings, *findings, *found), looks, machine.environment)


def _refuse_broken_budgets(findings: Sequence[Reason]) -> None:
    """Before minutes of measuring: a budget that matches nothing is exit code 2, a range without any budget exit code 5."""
    for code, kind in (("UNMATCHED_BUDGET", UsageError), ("NOT_BUDGETED", UnusableError)):
        found = [one for one in findings if one.code == code]
        if found:
            raise kind("\n".join(one.text for one in found), found[0].next)


def run(config: Config, *, command: str, progress: Progress) -> Finished:
    """The whole gate. A run that is cut short is written too, as ``complete: false``, and can never pass."""
    prepared = prepare(config)
    directory = RunDirectory.create(config.out, datetime.now(UTC))
    session = Session(prepared, directory, command, progress)
    with (
        only_one_on(prepared.plan.device if prepared.profiler.name != "replay" else "cpu", say=progress.say),
        session.concluded(),
    ):
        session.check_bits()
        session.measure_blocks()
        session.confirm()
    return Finished(session.result(), directory)


def check(run_: Path, *, thresholds: str = "", on_inconclusive: str = "fail", workloads: Sequence[str] = ()) -> GateResult:
    """A stored result judged again, against the budgets as they stand now. Runs and writes nothing.

    ``workloads`` are more ops whose ranges a budget may name, as the run was given them.
    Raises :class:`~perfgate.errors.UsageError` for a result that can't be read and for an unknown ``on_inconclusive``.
    """
    if on_inconclusive not in ON_INCONCLUSIVE:
        raise UsageError(f"--on-inconclusive {on_inconclusive}", f"use {' or '.join(ON_INCONCLUSIVE)}")
    return judged_again(load_result(run_), thresholds=thresholds, on_inconclusive=on_inconclusive, workloads=workloads)


def judged_again(
    stored: GateResult, *, thresholds: str = "", on_inconclusive: str = "fail", workloads: Sequence[str] = ()
) -> GateResult:
    """``stored`` with the verdict that its samples give against the budgets as they stand now.

    A program is judged by the file that judged it in its run, where that is still there and ``thresholds`` names no other.
    """
    planned = stored.run.looks
    card = card_of(stored.environment)
    if stored.program is not None:
        card = "program on a cpu" if card == "cpu" else "program"
        thresholds = thresholds or _budgets_of_the_run(stored)
    budgets = budgets_of(card, thresholds)
    registry = load_ops(workloads)
    racy = {op.name for op in registry if op.racy}
    measured = {one.range for one in stored.comparisons if one.judged or stored.program is None}
    told_by_budgets = ("UNMATCHED_BUDGET", "NOT_BUDGETED", "EXPIRED_BUDGET", "PROVISIONAL_BUDGET")
    kept = tuple(one for one in stored.findings if one.code not in told_by_budgets)
    known = {*ranges_of(registry), *(one.range for one in stored.comparisons)}
    found = budgets.findings(known, measured)
    if stored.program is not None and not _profiled(stored):  # --profiled-blocks 0: no range could be seen
        found = tuple(one for one in found if one.code != "UNMATCHED_BUDGET")
    findings = (*kept, *found)
    again = judge(
        [replace(one, status="invalid", reasons=(), racy=one.racy or one.op in racy) for one in stored.comparisons],
        budgets,
        looks=Looks.plan(planned[0], planned[-1]) if planned else None,
        family=len(stored.run.planned),
        foreign=stored.program is not None,
    )
    return replace(
        stored,
        comparisons=again,
        findings=findings,
        verdict=verdict(again, findings, complete=stored.run.complete, on_inconclusive=on_inconclusive, exempt=stored.exempt),
    )


def _profiled(stored: GateResult) -> bool:
    """Whether a program's ranges were looked for: unprofiled runs leave nothing but the step's wall time."""
    arms = (arm for one in stored.comparisons for arm in (one.default, one.deterministic) if arm is not None)
    return any(sample.host_ns for arm in arms for sample in arm.samples)


def _budgets_of_the_run(stored: GateResult) -> str:
    file = next((one.budget.file for one in stored.comparisons if one.budget is not None), "")
    places = (bundled_folder("thresholds").parent / file, Path(file))
    return next((str(place) for place in places if file and place.is_file()), "")


@dataclass(frozen=True)
class _Machine:
    device: str
    name: str
    environment: dict[str, Any]
    findings: tuple[Reason, ...] = ()


def _this_machine(wanted: str) -> _Machine:
    device = choose_device(wanted)
    found: tuple[Reason, ...] = ()
    if wanted == "auto" and device == "cpu":
        found = (Reason("NO_GPU", f"the CPU was taken: {why_no_gpu()}", "--device 0 insists on a GPU; `perfgate doctor`"),)
    tables = {"kernel_configs": module("blocks.configs").digest()}  # no kernel is tuned at run time: this names its table
    return _Machine(device, device_name(device), fingerprint(device) | tables, found)


def _stored_machine(run_: Path) -> _Machine:
    """The machine that a stored run was made on: a replay is judged as if it ran there.

    Blocks that did not count there are among the stored captures, so what was told of them stays told.
    """
    content = RunDirectory.open(run_).read_run()
    try:
        device, environment = content["plan"]["device"], content["environment"]
    except (KeyError, TypeError):
        raise UsageError(f"{run_ / 'run.json'} lacks plan.device or environment", "the file was edited; run again") from None
    dropped = [one for one in load_result(run_).findings if one.code in ("ENVIRONMENT_CHANGED", "BLOCK_DROPPED")]
    told = tuple(replace(one, code="ENVIRONMENT_CHANGED") for one in dropped)
    return _Machine(device, card_of(environment), environment, told)


def card_of(environment: dict[str, Any]) -> str:
    """The card's name in a stored environment; "cpu" where it was a CPU. Raises :class:`UsageError` where it names neither."""
    name = (environment.get("gpu") or {}).get("name") or environment.get("device")
    if not name:
        raise UsageError("the stored environment names no device", "the file was edited; run again")
    return str(name)


def budgets_of(card: str, thresholds: str) -> Budgets:
    """The budgets for a card's name, from the named file or the bundled ones, with a file name that is the same everywhere."""
    named = Path(thresholds) if thresholds else None
    budgets = choose_budgets(bundled_folder("thresholds"), card, date.today(), named)
    return replace(budgets, file=readable(Path(budgets.file).resolve()))


def ranges_of(registry: Registry) -> set[str]:
    """Every ``op:case:phase`` that could be measured."""
    return {f"{op.name}:{case.name}:{phase}" for op in registry for case in op.case_list for phase in op.phases}
