"""``perfgate report``: shows a stored run again, in any format, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from perfgate.model import GateResult


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(name="report")(report)


def report(
    run: Path = typer.Argument(..., help="A run directory, or its result.json."),
    format: str = typer.Option("table", "--format", help="What to print: table, json, csv, markdown."),  # noqa: A002
    export: list[str] = typer.Option([], "--export", metavar="FORMAT=PATH", help="Write another view; repeat for more."),
    wide: bool = typer.Option(False, "--wide", help="Operations, memory, bits and error per implementation too."),
    html: bool = typer.Option(True, "--html/--no-html", help="Write report.html beside result.json again."),
) -> None:
    """Show a stored run again; never judges (that is `perfgate check`), so it exits 0 whatever the verdict was."""
    from perfgate.render import FORMATS, parse_exports, write, write_exports

    exports = parse_exports(export)
    path = run / "result.json" if run.is_dir() else run
    result = _read(path)
    show(result, format, wide)
    if html:
        write(path.parent / "report.html", FORMATS["html"](result))
    write_exports(result, exports)


def show(result: GateResult, format: str, wide: bool = False) -> None:  # noqa: A002
    """Prints a result on stdout as ``table``, ``json``, ``csv`` or ``markdown``."""
    from perfgate.cli._console import out
    from perfgate.errors import UsageError
    from perfgate.render import FORMATS

    printable = ("table", "json", "csv", "markdown")
    if format not in printable:
        mend = f"formats are {', '.join(printable)}; others go to a file: --export {format}=PATH"
        raise UsageError(f"--format {format}: not a format for the terminal", mend)
    if format == "table":
        from perfgate.render.terminal import render

        console = out()
        console.print(render(result, width=console.width, wide=wide), soft_wrap=True)
    else:
        typer.echo(FORMATS[format](result), nl=False)


def _read(path: Path) -> GateResult:
    from perfgate.errors import UsageError
    from perfgate.render.json import loads

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: {reason}", "name a run directory that holds result.json, like runs/latest") from None
    return loads(text)
