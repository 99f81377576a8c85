"""The story: plan, run the children, read what they left, compare, judge, ask for more until every range is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from perfgate.budgets import Budgets
from perfgate.budgets import choose as choose_budgets
from perfgate.compare import effect
from perfgate.config import Config
from perfgate.devices import choose_device, device_name
from perfgate.discover import bundled_folder, readable
from perfgate.discover import load as load_ops
from perfgate.judge import judge, verdict
from perfgate.model import Comparison, GateResult
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
    device = choose_device(config.device)
    stored = Path(config.replay_from) if config.replay_from else None
    profiler, findings = choose_profiler(config.profiler, device=device, replay_from=stored)
    plan = make_plan(registry, config, device, profiler.name)
    budgets = budgets_of(device_name(device), config.thresholds)
    found = budgets.findings(ranges_of(registry), {one.range for one in plan.variants})
    looks = Looks.plan(config.blocks, max(config.blocks, config.max_blocks))
    return Prepared(plan, registry, budgets, profiler, (*findings, *found), looks)


def run(config: Config, *, command: str, progress: Progress) -> Finished:
    """The whole gate. A run that is cut short is written too, as ``complete: false``, and can never pass."""
    prepared = prepare(config)
    directory = RunDirectory.create(config.out, datetime.now(UTC))
    session = Session(prepared, directory, command, progress)
    with session.concluded():
        session.check_bits()
        session.measure_blocks()
        session.confirm()
    return Finished(session.result(), directory)


def check(run_: Path, *, thresholds: str = "", on_inconclusive: str = "fail") -> GateResult:
    """A stored result judged again, against the budgets as they stand now. Runs and writes nothing."""
    stored = load_result(run_)
    environment = stored.environment
    card = (environment.get("gpu") or {}).get("name") or stored.run.device
    budgets = budgets_of(card, thresholds)
    registry = load_ops()
    measured = {one.range for one in stored.comparisons}
    told_by_budgets = ("UNMATCHED_BUDGET", "NOT_BUDGETED", "EXPIRED_BUDGET", "PROVISIONAL_BUDGET")
    kept = tuple(one for one in stored.findings if one.code not in told_by_budgets)
    findings = (*kept, *budgets.findings({*ranges_of(registry), *measured}, measured))
    again = judge(
        [_unjudged(one, budgets) for one in stored.comparisons], budgets, racy_ops={op.name for op in registry if op.racy}
    )
    return replace(
        stored,
        comparisons=again,
        findings=findings,
        verdict=verdict(again, findings, complete=stored.run.complete, on_inconclusive=on_inconclusive),
    )


def budgets_of(card: str, thresholds: str) -> Budgets:
    """The budgets for a card's name, from the named file or the bundled ones, with a file name that is the same everywhere."""
    named = Path(thresholds) if thresholds else None
    budgets = choose_budgets(bundled_folder("thresholds"), card, date.today(), named)
    return replace(budgets, file=readable(Path(budgets.file).resolve()))


def ranges_of(registry: Registry) -> set[str]:
    """Every ``op:case:phase`` that could be measured."""
    return {f"{op.name}:{case.name}:{phase}" for op in registry for case in op.case_list for phase in op.phases}


def _unjudged(one: Comparison, budgets: Budgets) -> Comparison:
    """The comparison in the metric that its budget names now, without status and reasons."""
    metric = one.metric if one.metric == "host" else budgets.metric(one.range)
    if metric == one.metric or one.default is None or one.deterministic is None:
        return replace(one, status="invalid", reasons=())
    found = effect(one.default, one.deterministic, metric)
    return replace(one, **{**vars(found), "signals": found.signals}, status="invalid", reasons=())
