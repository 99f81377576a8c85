"""``perfgate scrub``: a copy of an nsys export that is safe to store or publish."""

from __future__ import annotations

from pathlib import Path

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("scrub")(scrub)


def scrub(
    trace: Path = typer.Argument(..., metavar="TRACE", help="An .sqlite export or an .nsys-rep."),
    output: Path = typer.Option(..., "--output", "-o", help="Where the scrubbed SQLite goes."),
) -> None:
    """Copy a trace without environment, paths, host names and process lists: only what `perfgate ranges` reads.

    An nsys report embeds the whole environment, tokens included. The .nsys-rep itself can't be scrubbed: delete it.
    """
    from perfgate.cli._trace_inputs import exported
    from perfgate.errors import UsageError
    from perfgate.traces.slim import slim

    if output.exists() and trace.exists() and output.samefile(trace):
        raise UsageError(f"{output} is the trace itself", "name another file")
    with exported(trace) as (source, _):
        slim(source, output)
    typer.echo(f"{output}: {output.stat().st_size:,} bytes, without environment, paths, host names and process lists")
