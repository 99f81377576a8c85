"""The runs of one program on several nodes -> one run: every step's slowest rank over all nodes, judged once.

On each node ``perfgate run --shard i/n -- torchrun --nnodes n --node-rank …`` runs the same runs in the same order, and sees
the ranks of its node. Here what the nodes' captures hold is put side by side, run by run, and read as if one node had held it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfgate.config import Config
from perfgate.determinism.project import contract_of
from perfgate.errors import PerfgateError, UnusableError, UsageError
from perfgate.gate import Finished
from perfgate.model import Capture, GateResult, Reason
from perfgate.parts import Part, cut_short, missing_parts, refuse_other_budgets, told_by
from perfgate.program.arms import STEPS, arms_of
from perfgate.program.evidence import STEP
from perfgate.program.launch import PROGRAM, Launcher, traces_of
from perfgate.program.metrics import Checked, Comparer
from perfgate.program.options import ProgramOptions
from perfgate.program.prepared import Prepared, program_budgets, ranks_in
from perfgate.program.session import ProgramSession
from perfgate.render import FORMATS
from perfgate.sequential import Looks
from perfgate.session import Progress
from perfgate.store import RunDirectory

# What the merged run tells anew, of all ranks.
TOLD_ANEW = (
    *("INCOMPLETE", "NO_EFFECT", "STEP_CLOCK", "STEP_UNDER_NSYS", "THROUGHPUT", "RANKS", "STRAGGLER", "UNATTRIBUTED_GPU_TIME"),
    *("METRICS_EQUAL", "METRICS_DIFFER", "METRICS_ROUNDED", "AA_DIFFERS", "CONTRADICTION"),
    *("UNMATCHED_BUDGET", "NOT_BUDGETED", "EXPIRED_BUDGET", "PROVISIONAL_BUDGET"),
)


def merge_nodes(
    parts: Sequence[Part], *, out: str, command: str, thresholds: str, on_inconclusive: str, progress: Progress | None = None
) -> Finished:
    """The merged run of all nodes, written to ``out`` with their records of steps and traces.

    Raises :class:`UnusableError` (exit code 5) where the nodes together don't show all ranks, or unequally many steps, and
    :class:`UsageError` where the nodes were judged by other budgets; nothing stays written then.
    """
    first, missing = parts[0], missing_parts(parts)
    options = _options(first)
    device = str(first.stored["program"].get("device") or first.result.run.device)
    told = [*_missing(missing), *cut_short(parts), *told_by(parts, TOLD_ANEW)]
    complete = not missing and all(part.result.run.complete for part in parts)
    looks = first.result.run.looks
    config = Config(
        blocks=looks[0], max_blocks=looks[-1], on_inconclusive=on_inconclusive, shard=first.result.run.shard if missing else ""
    )
    prepared = Prepared(
        config,
        options,
        arms_of(options),
        device,
        program_budgets(device != "cpu", thresholds),
        Launcher(options, contract_of(Path.cwd()), None, config.timeout),
        Looks.plan(looks[0], looks[-1]),
        0,
        options.ranks or ranks_in(options.command),
        {**first.result.environment, "warnings": _warnings(parts)},
        (),
    )
    directory = RunDirectory.create(out, datetime.now(UTC))
    try:
        captures = _gathered(parts, directory)
        session = ProgramSession(prepared, directory, command, progress or _Silent())
        session.take_in(captures, _NodesMetrics(parts), told, complete=complete)
        result = session.result()
        refuse_other_budgets(parts, result.comparisons)
    except PerfgateError:
        shutil.rmtree(directory.path, ignore_errors=True)
        raise
    return Finished(_written(result, parts, directory, first), directory)


def _options(part: Part) -> ProgramOptions:
    try:
        return TypeAdapter(ProgramOptions).validate_python(part.stored["program"]["options"])
    except (ValidationError, KeyError) as error:
        raise UsageError(f"{part.folder / 'run.json'}: program.options can't be read: {error}", "run that node again") from None


def _missing(missing: Sequence[str]) -> list[Reason]:
    if not missing:
        return []
    text = f"node {' and '.join(missing)} is missing, and with it its ranks: a slower one there would not be seen"
    return [Reason("INCOMPLETE", text, "give the runs of all nodes, from the folder that they share")]


def _warnings(parts: Iterable[Part]) -> list[str]:
    return list(dict.fromkeys(text for part in parts for text in part.result.environment.get("warnings") or ()))


def _gathered(parts: Sequence[Part], directory: RunDirectory) -> list[Capture]:
    """The captures that every node has, in the order in which they ran, with all nodes' records and traces in ``directory``.

    Left out: failed runs, and blocks that did not count on some node. Raises :class:`UnusableError` where nothing is left.
    """
    ran = [{one.spec.id: one for one in RunDirectory(part.folder).captures() if one.complete} for part in parts]
    counted = [_counted(part.result) for part in parts]
    common: list[Capture] = []
    for name, capture in ran[0].items():
        slot = (capture.spec.purpose, capture.spec.block)
        if all(name in others for others in ran) and all(slot in blocks for blocks in counted):
            common.append(capture)
    again = {one.spec.id.rpartition("-")[0] for one in common if one.spec.id.endswith("-nvtx")}
    common = [one for one in common if one.spec.id not in again]  # showed no step, and was run once more under nsys
    if not common:
        raise UnusableError("the nodes have no run in common that counted", "see what each node's own report.html says")
    for capture in common:
        _gather(parts, capture, directory.path / capture.folder)
    return sorted(common, key=lambda one: (one.spec.purpose == "confirm", one.spec.block, one.spec.position))


def _counted(result: GateResult) -> set[tuple[str, int]]:
    """(purpose, block) of every block whose runs stand in a node's result."""
    arms = [figures for one in result.comparisons if one.op == STEP for figures in (one.default, one.deterministic) if figures]
    samples = [sample for figures in arms for sample in figures.samples]
    timed = {("confirm", one.block) for one in samples if one.step_wall_ns}
    return timed | {("time", one.block) for one in samples if one.host_ns}


def _gather(parts: Sequence[Part], capture: Capture, folder: Path) -> None:
    """Every node's records of steps, and its traces as ``rank-<n>/`` in the order of the nodes."""
    (folder / PROGRAM / STEPS).mkdir(parents=True)
    traces = 0
    for part in parts:
        theirs = part.folder / capture.folder
        for record in sorted((theirs / PROGRAM / STEPS).glob("rank-*.jsonl")):
            target = folder / PROGRAM / STEPS / record.name
            if target.exists():
                target = target.with_name(f"{record.stem}-node-{part.number}.jsonl")
            shutil.copy2(record, target)
        for trace in traces_of(theirs):
            (folder / f"rank-{traces}").mkdir()
            shutil.copy2(trace, folder / f"rank-{traces}" / trace.name)
            traces += 1


class _NodesMetrics(Comparer):
    """How each arm's metrics stood on the nodes that wrote some: the worst of them."""

    def __init__(self, parts: Iterable[Part]) -> None:
        super().__init__()
        for part in parts:
            program = part.result.program
            values = {arm.arm: arm.metric_values or 0 for arm in program.arms} if program else {}
            for one in part.result.comparisons:
                if one.op == STEP and one.bits.processes:
                    bits = one.bits
                    mine = Checked(bits.processes, bits.differing, values.get(one.implementation, 0), bits.first_difference)
                    self._take(one.implementation, mine)
                    if bits.default_differing is not None:
                        default = Checked(bits.default_replays + 1, bits.default_differing, values.get("default", 0))
                        self._take("default", default)

    def _take(self, arm: str, seen: Checked) -> None:
        known = [self._found[arm]] if arm in self._found else []
        self._found[arm] = reduce(lambda a, b: b if (b.differing, b.runs) > (a.differing, a.runs) else a, [*known, seen])


def _written(result: GateResult, parts: Sequence[Part], directory: RunDirectory, first: Part) -> GateResult:
    run = replace(
        result.run,
        started=min(part.result.run.started for part in parts),
        profiler=first.result.run.profiler,
        looks=first.result.run.looks,
        seconds=max(part.result.run.seconds for part in parts),
        shard="",
        merged=tuple(part.merged for part in parts),
    )
    result = replace(result, run=run)
    plan: dict[str, Any] = first.stored["program"]
    directory.write_run({"run": asdict(run), "program": plan, "environment": result.environment})
    for name, format_ in (("result.json", "json"), ("leaderboard.csv", "csv"), ("report.html", "html")):
        directory.write_text(name, FORMATS[format_](result))
    return result


class _Silent:
    """Nothing runs here that could be told of."""

    def started(self, spec: object) -> None: ...
    def finished(self, capture: object) -> None: ...
    def say(self, text: str) -> None: ...
