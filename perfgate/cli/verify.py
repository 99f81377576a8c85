"""``perfgate verify``: are two training runs' recorded scalars equal, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DIFFERENT = 3


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("verify")(verify)


def verify(
    run_a: Annotated[Path, typer.Argument(help="A run: a folder or file of TensorBoard events, .jsonl or .csv.")],
    run_b: Annotated[Path, typer.Argument(help="The other run, with the same seeds, data and settings.")],
    exclude: Annotated[
        list[str], typer.Option("--exclude", help="Leave tags out, by shell pattern; repeatable. Time, speed, memory are.")
    ] = [],  # noqa: B006
    include: Annotated[
        list[str], typer.Option("--include", help="Compare tags that would be left out, by shell pattern; repeatable.")
    ] = [],  # noqa: B006
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Compare two training runs' scalars bit for bit, per rank and step. There is no tolerance.

    A missing tag, step or rank is a difference. Exit code: 0 equal, 3 different, 2 unreadable.
    """
    from perfgate.determinism import metrics
    from perfgate.determinism.metrics.views import as_json, as_text
    from perfgate.errors import UsageError

    shown = {"text": as_text, "json": as_json}
    if format_ not in shown:
        raise UsageError(f"--format {format_}", "use text or json")
    seen = metrics.verify(run_a, run_b, exclude=exclude, include=include)
    print(shown[format_](seen, str(run_a), str(run_b)))
    raise typer.Exit(0 if seen.equal else DIFFERENT)
