"""All that is decided before a program runs: arms, budgets, nsys, how many ranks there must be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from perfgate.budgets import DEFAULTS, Budgets
from perfgate.budgets import choose as choose_budgets
from perfgate.config import Config
from perfgate.determinism.project import contract_of
from perfgate.devices import choose_device, why_no_gpu
from perfgate.discover import bundled_folder, readable
from perfgate.environment import fingerprint
from perfgate.errors import ProfilerError, UnusableError, UsageError
from perfgate.model import Reason
from perfgate.nvml import visible_cards
from perfgate.profilers.nsys import NsysProfiler
from perfgate.program.arms import Arm, arms_of, environment_of
from perfgate.program.evidence import STEP
from perfgate.program.launch import RANK_MODULE, Launcher
from perfgate.program.metrics import refuse_stale
from perfgate.program.options import ProgramOptions
from perfgate.sequential import Looks
from perfgate.traces.names import compile_pattern

TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
JOB_LAUNCHERS = ("srun", "mpirun", "mpiexec")
READY_LINES = """[[budget]]
range = "step"
metric = "step_wall"
overhead = "10%"
goal = "5%"
reason = "what a training step may pay for determinism"
owner = "{owner}"
expires = {year}-06-30"""


@dataclass(frozen=True)
class Prepared:
    """What a session needs."""

    config: Config
    options: ProgramOptions
    arms: tuple[Arm, ...]
    device: str
    budgets: Budgets
    launcher: Launcher
    looks: Looks
    profiled_blocks: int  # at the first look
    expected_ranks: int  # 0 unknown
    environment: dict[str, Any]
    findings: tuple[Reason, ...]
    cards: tuple[str, ...] = ()  # of this machine, which the program runs on: locked and watched while it runs

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"


def prepare(config: Config, options: ProgramOptions) -> Prepared:
    """Checks everything that can be checked before minutes of running.

    Raises :class:`~perfgate.errors.PerfgateError` for options, environments and budgets that can't be as asked, and where nsys
    is needed and missing.
    """
    if config.mode != "both":
        raise UsageError(f"--mode {config.mode} has no verdict for a program", "use --mode both")
    if config.profiler not in ("auto", "nsys"):
        raise UsageError(f"--profiler {config.profiler} can't watch a program", "programs are watched by nsys alone")
    if config.shard and (config.max_blocks > config.blocks or config.time_budget):
        text = "--shard runs one node of a job, and --max-blocks and --time-budget let each node stop where it will"
        raise UsageError(text, "use --blocks alone: all nodes must run the same runs")
    if shutil.which(options.command[0]) is None:
        raise UsageError(f"there is no program {options.command[0]!r}", "is it on PATH, and executable?")
    arms = arms_of(options)
    contract = contract_of(Path.cwd())
    for arm in arms:
        environment_of(arm, options, Path("/run-folder"), os.environ, contract)
    compile_pattern(options.match)
    refuse_stale(options.metrics)
    device = choose_device(config.device)
    budgets = program_budgets(device != "cpu", config.thresholds)
    looks = Looks.plan(config.blocks, config.max_blocks or config.blocks)
    profiled = looks.at[0] if options.profiled_blocks < 0 else options.profiled_blocks
    facts, findings = None, []
    try:
        facts = NsysProfiler.found().facts
    except ProfilerError:
        if profiled:  # without them a program that records its own steps needs no nsys
            raise
    if config.device == "auto" and device == "cpu":
        text = f"no GPU was found: {why_no_gpu()}"
        findings.append(Reason("NO_GPU", text, "--device 0 insists on a GPU; `perfgate doctor`"))
    launcher = Launcher(options, contract, facts, config.timeout, config.keep_report)
    expected = options.ranks or ranks_in(options.command)
    return Prepared(
        config=config,
        options=options,
        arms=arms,
        device=device,
        budgets=budgets,
        launcher=launcher,
        looks=looks,
        profiled_blocks=profiled,
        expected_ranks=expected,
        environment=fingerprint(device),
        findings=tuple(findings),
        cards=cards_of(device, options.command, expected, visible_cards() if device != "cpu" else 0),
    )


def program_budgets(gpu: bool, thresholds: str) -> Budgets:
    """``--thresholds``, else the bundled budgets for programs. Raises :class:`UnusableError` where the step has none."""
    named = Path(thresholds) if thresholds else None
    budgets = choose_budgets(bundled_folder("thresholds"), "program" if gpu else "program on a cpu", date.today(), named)
    own = budgets.find(f"{STEP}::")
    if own is None or own.range == DEFAULTS:
        why = (
            "has only an expired budget for"
            if any(one.range == STEP for one in budgets.content.budget)
            else "has no budget for"
        )
        lines = READY_LINES.format(owner="your team", year=date.today().year + 1)
        raise UnusableError(f"{budgets.file} {why} the program's step", f"write one there:\n{lines}")
    return Budgets(readable(Path(budgets.file).resolve()), budgets.content, budgets.lines, budgets.defaults_line, budgets.today)


def cards_of(device: str, command: Sequence[str], ranks: int, visible: int) -> tuple[str, ...]:
    """``device``, and where a launcher starts several ranks the first of ``visible`` cards, one per rank of this machine.

    A launcher that does not say how many (``--nproc-per-node gpu``) and one whose ranks lie on several machines (srun) may use
    every visible card.
    """
    if device == "cpu" or not (ranks > 1 or launcher_in(command)):
        return (device,)
    local = _option(command, ("--nproc-per-node", "--nproc_per_node")) or ranks or visible
    cards = [f"cuda:{number}" for number in range(min(local, visible))]
    return tuple(cards if device in cards else [*cards, device])


def ranks_in(command: Sequence[str]) -> int:
    """How many ranks a launcher's options name; 0 where they don't say (``--nproc-per-node gpu``, a script of its own)."""
    before = command[: command.index(RANK_MODULE)] if RANK_MODULE in command else command
    launcher = launcher_in(before)
    if not launcher:
        return 0
    if launcher not in TORCHRUN:
        return _option(before, ("-n", "--ntasks", "-np", "--np"))
    local = _option(before, ("--nproc-per-node", "--nproc_per_node"))
    return local * (_option(before, ("--nnodes",)) or 1)


def launcher_in(command: Sequence[str]) -> str:
    """The launcher that starts ``command``'s ranks; "" where none of those that are known does."""
    names = [Path(part).name for part in command]
    return next((one for one in (*JOB_LAUNCHERS, *TORCHRUN) if one in names), "")


def _option(command: Sequence[str], names: Sequence[str]) -> int:
    for place, part in enumerate(command):
        name, equals, value = part.partition("=")
        if name in names:
            given = value if equals else command[place + 1] if place + 1 < len(command) else ""
            return int(given) if given.isdecimal() else 0
    return 0
