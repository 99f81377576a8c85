"""The recipes as programs: what ``perfgate run --recipe NAME`` stands for, and how ``perfgate recipe`` starts one.

The training code lies with the other bundled workloads (``workloads/recipes``) and is the only part that imports torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfgate.determinism import contract
from perfgate.devices import choose_device
from perfgate.discover import bundled_folder, module
from perfgate.errors import UsageError, WorkloadError
from perfgate.model import Mode

STEPS = 41
ATTENTION = " --kernel attention=two_pass"  # the champion arm's, where its heads are wide enough for the kernel
WINDOW = "11:41"  # steps counted from 0: after compilation, the allocator's growth and the clocks' settling


def run_options(recipe: str, size: str, arguments: Sequence[str] = (), *, gpu: bool = True) -> dict[str, Any]:
    """What ``perfgate run --recipe`` stands for, by option: command (with ``arguments`` added), arms, window and budgets.

    Raises :class:`UsageError` for a recipe or a size that is none.
    """
    _shapes(recipe, size)
    command = [sys.executable, "-m", "perfgate", "recipe", recipe, "--size", size, "--steps", str(STEPS), *arguments]
    options: dict[str, Any] = {
        "command": command,
        "mode_args": [
            "default=--arm default",
            "deterministic=--arm deterministic",
            f"champion=--arm champion{ATTENTION if size == 'h200' else ''}",
        ],
        "judge": "champion",
        "step_range": "step",
        "steps": WINDOW,
    }
    if gpu and size != "tiny":  # the recipes' budgets are of whole steps on a GPU
        options["thresholds"] = str(bundled_folder("thresholds") / "recipes" / f"{recipe}.toml")
    return options


def _shapes(recipe: str, size: str) -> Any:
    try:
        return module("recipes.sizes").size_of(recipe, size)
    except ValueError as error:
        raise UsageError(str(error), "`perfgate recipe --help`") from None


def _kernels(shapes: Any, arm: str, chosen: Mapping[str, str]) -> dict[str, str]:
    try:
        kernels: dict[str, str] = module("recipes.table").kernels_of(shapes, arm, chosen)
    except ValueError as error:
        raise UsageError(str(error), "workloads/recipes/table.py holds them all") from None
    return kernels


def arm_and_mode(arm: str | None, environ: Mapping[str, str]) -> tuple[str, Mode]:
    """The arm that was asked for, else ``PERFGATE_ARM``, else ``PERFGATE_MODE``, else default; and the mode it needs.

    Raises :class:`UsageError` where ``PERFGATE_MODE`` says another mode.
    """
    told = environ.get("PERFGATE_MODE", "")
    chosen = arm or environ.get("PERFGATE_ARM") or told or "default"
    mode: Mode = "default" if chosen == "default" else "deterministic"
    if told and told != mode:
        raise UsageError(f"arm {chosen} needs {mode} mode, but PERFGATE_MODE={told}", "unset it, or name another arm")
    return chosen, mode


def chosen_kernels(texts: Sequence[str]) -> dict[str, str]:
    """``["attention=triton_exact"]`` as a dict. Raises :class:`UsageError` for anything else."""
    pairs = [text.partition("=") for text in texts]
    for op, equals, kernel in pairs:
        if not (op and equals and kernel):
            raise UsageError(f"--kernel {op}{equals}{kernel} is not OP=KERNEL", "write it like attention=torch.sdpa")
    return {op: kernel for op, _, kernel in pairs}


def train(
    recipe: str,
    size: str | None,
    *,
    arm: str,
    mode: Mode,
    steps: int,
    device: str,
    seed: int,
    kernels: Mapping[str, str],
    memory_fill: bool,
    metrics: Path | None,
    run_dir: Path | None,
    told: Any,
) -> list[dict[str, float]]:
    """With ``mode`` in force tells (``told(line)``) which kernel each op uses and trains: loss and grad norm of each step.

    ``device`` is ``auto``, ``cpu`` (where kernels in Triton run in its interpreter) or a GPU's index; ``size`` None: h200 on a
    GPU, tiny on a CPU. The kernels also go to ``run_dir``/kernels.json, the scalars below ``metrics``.
    Raises :class:`UsageError` for names that are none, :class:`WorkloadError` for a kernel that can't run here and
    :class:`~perfgate.determinism.contract.ContractError` for an environment that breaks the contract.
    """
    _shapes(recipe, size or "tiny")
    if metrics is not None and metrics.is_dir() and any(metrics.iterdir()):
        raise UsageError(f"{metrics} holds files already: two runs' scalars would mix", "name a new folder")
    if device not in ("auto", "cpu") and not device.isdecimal():
        raise UsageError(f"no device {device!r}", "auto, cpu, or a GPU's index")
    place = choose_device(device)
    if place == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    size = size or ("tiny" if place == "cpu" else "h200")
    shapes = _shapes(recipe, size)
    used = _kernels(shapes, arm, kernels)
    filling = ", new memory filled" if memory_fill else ""
    told(f"recipe {recipe}, size {size}, arm {arm} ({mode} mode{filling}), {steps} steps on {place}, seed {seed}")
    for op, kernel in used.items():
        told(f"kernel  {op:<18} {kernel}")
    if run_dir is not None:
        (run_dir / "kernels.json").write_text(json.dumps(used, indent=1) + "\n")
    with contract.policy(mode, memory_fill=memory_fill):
        try:
            rows: list[dict[str, float]] = module("recipes.train").train(shapes, used, place, steps, seed, metrics)
        except NotImplementedError as error:
            raise WorkloadError(str(error), "choose another: --kernel OP=KERNEL; nothing is fallen back to") from error
    return rows
