"""``perfgate merge``: the runs of several CI jobs, or of a job's nodes, in one verdict."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("merge")(merge)


def merge(
    runs: Annotated[list[Path], typer.Argument(help="The parts' run directories, or a folder of them.")],
    out: Annotated[str, typer.Option(help="The run directory to make. [runs/<time>]")] = "",
    thresholds: Annotated[str, typer.Option(help="The budget file that was named to the parts. [chosen by the device]")] = "",
    on_inconclusive: Annotated[str, typer.Option("--on-inconclusive", help="fail (exit 4) or pass.")] = "fail",
    workloads: Annotated[
        list[str] | None, typer.Option("--workloads", help="Folder or file with more ops, as the shards had; repeatable.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json, csv, markdown or github, on stdout.")] = "table",
    export: Annotated[
        list[str] | None, typer.Option("--export", metavar="FORMAT=PATH", help="Beside the run; repeatable.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Operations, memory, bits and error in the table too.")] = False,
) -> None:
    """Join all runs of `perfgate run --shard i/n` into one run, judged as a whole; exits as `perfgate run` would.

    Parts are the shards of a suite, or the nodes of one program's job: there a step takes as long as the slowest rank of all.
    Refused: unlike machines (exit code 5), other commits, options or budgets, a part given twice (2). With a part missing or
    cut short the run is INCOMPLETE (5). `perfgate check`, `report` and `history` read it like any other run.
    """
    from perfgate.cli._console import err
    from perfgate.cli.report import check_format, show
    from perfgate.merge import merge as join
    from perfgate.render import parse_exports, write_exports

    check_format(format_)
    exports = parse_exports(export or [])
    finished = join(
        runs,
        out=out,
        command=shlex.join(["perfgate", *sys.argv[1:]]),
        thresholds=thresholds,
        on_inconclusive=on_inconclusive,
        workloads=workloads or (),
    )
    show(finished.result, format_, wide)
    write_exports(finished.result, exports)
    err().print(f"report: {finished.directory.path / 'report.html'}", markup=False)
    raise typer.Exit(finished.result.verdict.exit_code)
