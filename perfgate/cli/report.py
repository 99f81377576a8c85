"""``perfgate report``: shows a stored run again, in any format, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfgate.model import GateResult

PRINTABLE = ("table", "json", "csv", "markdown", "github")


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("report")(report)


def report(
    run: Annotated[Path, typer.Argument(help="A run directory, or its result.json.")],
    format_: Annotated[str, typer.Option("--format", help="table, json, csv, markdown, or github (annotations).")] = "table",
    export: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT=PATH", help="csv, github, html, json, junit, markdown, perfetto or sarif; repeatable."),
    ] = None,
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Only ranges that match, like 'moe/*'; the verdict stays.")] = "",
    wide: Annotated[bool, typer.Option("--wide", help="Operations, memory, bits and error per implementation too.")] = False,
    html: Annotated[bool, typer.Option("--html/--no-html", help="Write report.html beside result.json again.")] = True,
) -> None:
    """Show a stored run again. It never judges (that is `perfgate check`), so it exits 0 whatever the verdict was.

    With --only, report.html is left alone: name a page of its own with --export html=PATH.
    """
    from perfgate.render import FORMATS, parse_exports, write, write_exports
    from perfgate.store import load_result

    exports = parse_exports(export or ())
    result = load_result(run)
    if only:
        result = matching(result, only)
    show(result, format_, wide)
    if html and not only:
        write((run if run.is_dir() else run.parent) / "report.html", FORMATS["html"](result))
    write_exports(result, exports)


def check_format(format_: str) -> None:
    """Refuses what :func:`show` can't print. Raises :class:`UsageError`."""
    from perfgate.errors import UsageError

    if format_ not in PRINTABLE:
        mend = f"formats are {', '.join(PRINTABLE)}; others go to a file: --export {format_}=PATH"
        raise UsageError(f"--format {format_}: not a format for the terminal", mend)


def show(result: GateResult, format_: str, wide: bool = False) -> None:
    """Prints a result on stdout in one of :data:`PRINTABLE`. Raises :class:`UsageError` for another format."""
    from perfgate.cli._console import out
    from perfgate.render import FORMATS

    check_format(format_)
    if format_ == "table":
        from perfgate.render.terminal import render

        console = out()
        console.print(render(result, width=console.width, wide=wide), soft_wrap=True)
    else:
        typer.echo(FORMATS[format_](result), nl=False)


def matching(result: GateResult, pattern: str) -> GateResult:
    """The part of a result whose range or op matches ``pattern``; verdict and counts stay those of the whole run.

    Raises :class:`UsageError` where none matches.
    """
    import dataclasses

    from perfgate.errors import UsageError
    from perfgate.model import Reason
    from perfgate.render import only

    part = only(result, pattern)
    every = sorted({c.range for c in result.comparisons})
    if not part.comparisons:
        raise UsageError(f"--only {pattern}: matches no range of this run", f"ranges are like {', '.join(every[:5])}")
    shown = len({c.range for c in part.comparisons})
    note = Reason("PART_OF_A_RUN", f"shows {shown} of {len(every)} ranges (--only {pattern}); the verdict is of the whole run")
    return dataclasses.replace(part, findings=(note, *result.findings))
