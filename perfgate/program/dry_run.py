"""What ``perfgate run --dry-run -- CMD`` says."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from perfgate.determinism.project import contract_of
from perfgate.program.arms import RUN, Arm, command_of, differences, environment_of, order
from perfgate.program.prepared import Prepared


def describe(prepared: Prepared) -> str:
    """Each arm's command and environment, the order of a block, the number of runs, the budgets."""
    options, place = prepared.options, Path(RUN)
    contract = contract_of(Path.cwd())
    environments = {arm.name: environment_of(arm, options, place, os.environ, contract) for arm in prepared.arms}
    default = prepared.arms[0]
    lines = [f"device {prepared.device}, budgets {prepared.budgets.file}"]
    for arm in prepared.arms:
        lines.append(f"  {arm.name}{_said(arm)}: {shlex.join(command_of(arm, options, place))}")
        if arm is not default:
            lines.append(f"    {' '.join(differences(arm, default, environments)) or 'the same environment as the default'}")
    blocks, per_block = prepared.looks.at[0], 2 * len(prepared.arms)
    lines.append(f"a block: {' '.join(arm.name for arm in order(prepared.arms, 0))}; every second one turned around")
    more = f", up to {prepared.looks.at[-1]} while a range is undecided" if prepared.looks.at[-1] > blocks else ""
    runs = (prepared.profiled_blocks + blocks) * per_block
    lines.append(
        f"{runs} runs: {prepared.profiled_blocks * per_block} under nsys for the ranges ({prepared.profiled_blocks} blocks), "
        f"{blocks * per_block} for the step's time ({blocks} blocks{more}); at most {prepared.config.timeout:g} s each"
    )
    inside = ", nsys inside the launcher" if prepared.launcher.per_rank else ""
    where = f", those of node {prepared.config.shard} here" if prepared.config.shard else ""
    lines.append(f"ranks: {prepared.expected_ranks or 'as many as show the step'}{where}{inside}")
    return "\n".join(lines)


def _said(arm: Arm) -> str:
    return f" ({arm.mode} contract, judged)" if arm.judged else f" ({arm.mode} contract)" if arm.name != arm.mode else ""
