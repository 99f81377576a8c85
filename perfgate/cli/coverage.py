"""``perfgate coverage``: every kernel is registered and tested, and a changed one's test changed too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("coverage")(coverage)


def coverage(
    base_ref: Annotated[str, typer.Option("--base-ref", help="Also judge what changed since the merge base with REF.")] = "",
    exempt: Annotated[
        str | None, typer.Option("--exempt", help="Why no test changed with a kernel: waives that rule alone, and is logged.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json or github (annotations).")] = "text",
    root: Annotated[
        Path | None, typer.Option("--root", help="The repository; default: the nearest with [tool.perfgate.coverage].")
    ] = None,
) -> None:
    """Check that every kernel is registered and has tests; with --base-ref, that a changed one's tests changed too.

    Exit code: 0 clean, 1 findings, 2 configuration.
    """
    from perfgate.determinism.coverage import examine, views
    from perfgate.determinism.coverage.config import find_root, read_config
    from perfgate.errors import UsageError

    shown = {"text": views.as_text, "json": views.as_json, "github": views.as_github}
    if format_ not in shown:
        raise UsageError(f"--format {format_}", f"use {', '.join(shown)}")
    if exempt is not None and not exempt.strip():
        raise UsageError("--exempt needs a reason")
    config = read_config(find_root(Path.cwd()) if root is None else root.resolve())
    seen = examine(config, base_ref=base_ref, exempt=(exempt or "").strip())
    print(shown[format_](seen))
    raise typer.Exit(1 if seen.findings else 0)
