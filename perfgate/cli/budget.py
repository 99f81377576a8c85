"""``perfgate budget``: propose budgets from a run, lint the files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    verb = typer.Typer(help="Propose budgets from a run, or lint budget files.", no_args_is_help=True, rich_markup_mode=None)
    verb.command("suggest")(suggest)
    verb.command("check")(check)
    app.add_typer(verb, name="budget")


def suggest(run: Annotated[Path, typer.Argument(help="A run directory, or its result.json.")]) -> None:
    """Write [[budget]] entries for what RUN measured: cost + 3 x minimum detectable effect.

    reason, owner and expires are yours to fill in; until then the file is refused.
    """
    from perfgate.store import load_result
    from perfgate.suggest import suggest as entries

    typer.echo(entries(load_result(run)))


def check(
    files: Annotated[list[Path] | None, typer.Argument(help="Budget files. [those that come with perfgate]")] = None,
    workloads: Annotated[
        list[str] | None, typer.Option("--workloads", help="Folder or file with more ops; repeatable.")
    ] = None,
) -> None:
    """Lint budget files: TOML, keys, units, patterns that match nothing, expiry, devices that two files claim.

    Exits with 2 where something must be mended; what will have to be soon is named and exits with 0.
    """
    from datetime import date

    from perfgate.discover import bundled_folder, load
    from perfgate.lint import lint

    chosen = files or sorted(bundled_folder("thresholds").glob("*.toml"))
    registry = load(workloads or ())
    ranges = {f"{op.name}:{case.name}:{phase}" for op in registry for case in op.case_list for phase in op.phases}
    found = lint(chosen, ranges, date.today())
    for problem in found.errors:
        typer.echo(f"error: {problem.text}")
        if problem.next:
            typer.echo(f"  next: {problem.next}")
    for problem in found.warnings:
        typer.echo(f"warning: {problem.text}")
        if problem.next:
            typer.echo(f"  next: {problem.next}")
    typer.echo(f"{found.files} files, {found.budgets} budgets: {len(found.errors)} errors, {len(found.warnings)} warnings")
    raise typer.Exit(2 if found.errors else 0)
