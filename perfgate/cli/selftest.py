"""``perfgate selftest``: is the gate to be trusted, on this machine now, and by its own arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfgate.selftest import SelfTest
    from perfgate.simulate import Outcome, Rate, Simulation

COLUMNS = ("false fail", "1 % below", "false pass", "found at +2 %", "blocks")


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("selftest")(selftest)


def selftest(
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Try the decision rule on noise of known truth instead.")
    ] = False,
    recorded: Annotated[
        list[Path] | None, typer.Option("--recorded", help="With --simulate: noise of this stored run or pool too; repeatable.")
    ] = None,
    runs: Annotated[int, typer.Option(help="With --simulate: runs per scenario.", min=50)] = 1000,
    seed: Annotated[int, typer.Option(help="With --simulate: of the random numbers.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or a GPU's index.")] = "auto",
    profiler: Annotated[str, typer.Option(help="auto, nsys (insists) or torch.")] = "auto",
    blocks: Annotated[int, typer.Option(help="ABBA blocks before the first look.")] = 3,
    max_blocks: Annotated[int, typer.Option("--max-blocks", help="Go on to this many while a control is undecided.")] = 12,
    out: Annotated[str, typer.Option(help="Folder for the run directories. [runs/<time>]")] = "",
    format_: Annotated[str, typer.Option("--format", help="table, json or (with --simulate) markdown.")] = "table",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Run controls whose verdict is known: equal arms must pass, a slowdown must fail, a race and an empty range be caught.

    Exits with 0 where all came out as they must, 4 where noise left one undecided, 1 where one came out wrong.
    """
    from perfgate.errors import UsageError

    if format_ not in ("table", "json", "markdown") or (format_ == "markdown" and not simulate):
        raise UsageError(f"--format {format_}", "use table or json; markdown only with --simulate")
    if recorded and not simulate:
        raise UsageError("--recorded needs --simulate", "perfgate selftest --simulate --recorded RUN")
    if simulate:
        _simulate(recorded or [], runs, seed, format_)
        return
    _live(device, profiler, blocks, max_blocks, out, format_, quiet)


def _simulate(recorded: list[Path], runs: int, seed: int, format_: str) -> None:
    from perfgate.noise import recorded as noise_of
    from perfgate.simulate import simulate

    found = simulate(noise_of(recorded), runs=runs, seed=seed)
    if format_ == "json":
        import json

        typer.echo(json.dumps(found.as_json(), indent=1))
    elif format_ == "markdown":
        typer.echo("\n".join(_markdown(found)))
    else:
        _table(found)


def _live(device: str, profiler: str, blocks: int, max_blocks: int, out: str, format_: str, quiet: bool) -> None:
    import shlex
    import sys
    from datetime import date
    from functools import partial
    from tempfile import TemporaryDirectory

    from perfgate import gate
    from perfgate.cli._console import err
    from perfgate.cli._progress import Lines
    from perfgate.config import Config
    from perfgate.selftest import selftest as run_controls

    config = Config(device=device, profiler=profiler, blocks=blocks, max_blocks=max_blocks, out=out)
    run = partial(gate.run, command=shlex.join(["perfgate", *sys.argv[1:]]), progress=Lines(err(quiet)))
    with TemporaryDirectory(prefix="perfgate-") as folder:
        found = run_controls(config, Path(folder), run, date.today())
    if format_ == "json":
        import json
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(found) | {"exit_code": found.exit_code}, indent=1))
    else:
        typer.echo("\n".join(_told(found)))
    raise typer.Exit(found.exit_code)


def _told(found: SelfTest) -> Iterator[str]:
    from perfgate.units import format_limit, format_percent

    for one in found.controls:
        mark = "ok" if one.ok else "undecided" if one.inconclusive else "WRONG"
        yield f"{mark:<9} {one.name:<16} expected {one.expected}, found {one.found}"
        yield f"          {one.text}"
    yield f"budget {format_limit(found.budget)}, detectable {format_percent(found.mde, sign=False)}, device {found.device}"
    yield {
        0: "the gate can be trusted on this machine now",
        4: "this machine is too noisy for a control: run when it is idle, or with more --max-blocks",
        1: "a control came out wrong: no verdict of this machine can be trusted until that is explained",
    }[found.exit_code]


def _table(found: Simulation) -> None:
    from rich.table import Table

    from perfgate.cli._console import out

    table = Table(box=None, pad_edge=False, header_style="bold", title=_head(found), title_justify="left")
    table.add_column("rule: noise", overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for one in (*found.perfgate, *found.naive):
        table.add_row(f"{one.rule}: {one.scenario}", *_cells(one))
    out().print(table)


def _markdown(found: Simulation) -> Iterator[str]:
    yield _head(found) + "\n"
    yield "| rule | noise | " + " | ".join(COLUMNS) + " |"
    yield "|---|---|" + "---:|" * len(COLUMNS)
    for one in (*found.perfgate, *found.naive):
        yield "| " + " | ".join((one.rule, one.scenario, *_cells(one))) + " |"


def _head(found: Simulation) -> str:
    looks = ", ".join(map(str, found.looks.at))
    return f"Budget +15 %, looks at {looks} blocks, {found.runs} runs per scenario, seed {found.seed}; 95 % bounds in brackets"


def _cells(one: Outcome) -> Iterator[str]:
    for rate in (one.false_fail, one.false_fail_below, one.false_pass, one.power):
        yield _rate(rate)
    yield "–" if one.blocks is None else f"{one.blocks:.1f}"


def _rate(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.value:.1%} [{rate.low:.1%}, {rate.high:.1%}]"
