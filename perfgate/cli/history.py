"""``perfgate history``: the same ranges over many runs, their changes, and both arms against a base run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("history")(history)


def history(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them, like runs/.")],
    base: Annotated[Path | None, typer.Option(help="A run that each arm of the latest one is held against.")] = None,
    allow: Annotated[str, typer.Option(help="How much slower an arm may be than in the base run.")] = "2%",
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Only ranges that match, like 'moe/*'.")] = "*",
    html: Annotated[Path | None, typer.Option(help="Write a page with sparklines there.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show how overhead and both arms' times went from run to run, and where their level changed.

    With --base, exits 1 where an arm is surely slower than allowed (default_regression, deterministic_regression), 5 where the
    machines differ or a range is gone, 4 where more measuring is needed. Without it, 0.
    """
    from perfgate import history as past
    from perfgate.budgets import parse_percent
    from perfgate.cli._console import out
    from perfgate.errors import UsageError
    from perfgate.reasons import SEVERITY
    from perfgate.render import _history, write
    from perfgate.render import only as part
    from perfgate.store import load_result

    if format_ not in ("table", "json"):
        raise UsageError(f"--format {format_}", "use table or json")
    try:
        allowed = parse_percent(allow)
    except ValueError as error:
        raise UsageError(f"--allow {allow}: {error}") from None
    results = past.load(runs)
    seen = past.history(results, only)
    if not seen.series:
        raise UsageError("none of these runs has a complete, judged range that matches", "`perfgate report RUN` shows one run")
    found = []
    if base is not None:
        latest = max(past.usable(results), key=lambda one: (one.run.started, one.run.id))
        found = past.regressions(part(load_result(base), only), part(latest, only), allowed)
    if format_ == "json":
        typer.echo(_history.dumps(seen, found), nl=False)
    else:
        console = out()
        console.print(_history.table(seen, found, width=console.width), soft_wrap=True)
    if html is not None:
        from perfgate.render.html.history import render

        write(html, render(seen, found))
    codes = {"fail": 1, "invalid": 5, "inconclusive": 4}
    met = {codes.get(one.status, 0) for one in found}
    raise typer.Exit(next((code for code in SEVERITY if code in met), 0))
