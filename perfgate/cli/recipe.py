"""``perfgate recipe``: trains one of the bundled small models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("recipe")(recipe)


def recipe(
    name: Annotated[str, typer.Argument(help="dense, moe or hybrid.")],
    size: Annotated[str | None, typer.Option(help="h200 or tiny. [GPU: h200, CPU: tiny]")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 41,
    arm: Annotated[str | None, typer.Option(help="default, deterministic or champion. [$PERFGATE_ARM, else default]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or a GPU's index.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights and tokens.")] = 0,
    kernel: Annotated[
        list[str] | None, typer.Option("--kernel", help="OP=KERNEL: another of the table's for this arm; repeatable.")
    ] = None,
    memory_fill: Annotated[
        bool, typer.Option("--memory-fill", help="Leave torch's fill of new memory on in deterministic mode.")
    ] = False,
    metrics: Annotated[str | None, typer.Option(help="Folder for loss and grad norm. [$PERFGATE_METRICS_DIR]")] = None,
) -> None:
    """Train a small seeded model: forward, backward, gradient norm, AdamW; which kernels it uses is told first.

    A program like any other for `perfgate run --mode both -- perfgate recipe NAME`; `perfgate run --recipe NAME` is short for
    that with its three arms, window and budgets.
    """
    from perfgate.recipes import arm_and_mode, chosen_kernels, train

    chosen, mode = arm_and_mode(arm, os.environ)
    folder = metrics or os.environ.get("PERFGATE_METRICS_DIR")
    own = os.environ.get("PERFGATE_RUN_DIR")
    rows = train(
        name,
        size,
        arm=chosen,
        mode=mode,
        steps=steps,
        device=device,
        seed=seed,
        kernels=chosen_kernels(kernel or []),
        memory_fill=memory_fill,
        metrics=Path(folder) if folder else None,
        run_dir=Path(own) if own else None,
        told=lambda line: print(line, flush=True),
    )
    print(f"loss {rows[0]['loss']:.6g} -> {rows[-1]['loss']:.6g}, grad norm {rows[-1]['grad_norm']:.6g}")
