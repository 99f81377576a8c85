"""``perfgate check RUN``: a stored run judged again, on any machine, against the budgets as they stand now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("check")(check)


def check(
    run: Annotated[Path, typer.Argument(help="A run directory, or its result.json.")],
    thresholds: Annotated[str, typer.Option(help="A budget file. [chosen by the device that the run was made on]")] = "",
    on_inconclusive: Annotated[str, typer.Option("--on-inconclusive", help="fail (exit 4) or pass.")] = "fail",
    workloads: Annotated[
        list[str] | None, typer.Option("--workloads", help="Folder or file with more ops that budgets may name; repeatable.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json, csv, markdown, or github (annotations).")] = "table",
) -> None:
    """Judge a stored run again, without a GPU. Writes nothing; exits as `perfgate run` would."""
    from perfgate import gate
    from perfgate.cli.report import show

    result = gate.check(run, thresholds=thresholds, on_inconclusive=on_inconclusive, workloads=workloads or ())
    show(result, format_)
    raise typer.Exit(result.verdict.exit_code)
