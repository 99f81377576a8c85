"""``perfgate run``: from kernels to a verdict."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("run")(run)


def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- CMD", help="Any training entry, gated instead of the ops.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="default, deterministic or both; only both gives a verdict.")] = None,
    suite: Annotated[
        str | None, typer.Option(help="smoke, small, typical, large, edges, pr, full. [GPU: typical, CPU: smoke]")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="The i-th of n parts of the ops, or node of a program; see `perfgate merge`."),
    ] = None,
    op: Annotated[list[str] | None, typer.Option("--op", help="Only this op; repeatable.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", help="Only this case, whatever its suite; repeatable.")] = None,
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", help="Only this one beside the default; repeatable.")
    ] = None,
    judged_only: Annotated[
        bool | None, typer.Option("--judged-only", help="Only what is judged: no candidates, contenders.")
    ] = None,
    workloads: Annotated[
        list[str] | None, typer.Option("--workloads", help="Folder or file with more ops; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or a GPU's index.")] = None,
    profiler: Annotated[str | None, typer.Option(help="auto, nsys (insists), torch, or replay.")] = None,
    replay_from: Annotated[str | None, typer.Option("--replay-from", help="A stored run that stands in for the GPU.")] = None,
    thresholds: Annotated[str | None, typer.Option(help="A budget file. [chosen by the device's name]")] = None,
    blocks: Annotated[int | None, typer.Option(help="ABBA blocks before the first look. [3]")] = None,
    max_blocks: Annotated[
        int | None, typer.Option("--max-blocks", help="Go on to this many while a range is undecided. [as --blocks]")
    ] = None,
    time_budget: Annotated[float | None, typer.Option("--time-budget", help="Seconds after which no block is added.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Measured instances of each range in each child. [30]")] = None,
    replays: Annotated[int | None, typer.Option(help="Replays whose bits are compared, per process. [3]")] = None,
    confirm: Annotated[
        bool | None, typer.Option("--confirm/--no-confirm", help="Time both arms once more, unprofiled.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one child. [600]")] = None,
    out: Annotated[str | None, typer.Option(help="The run directory to make. [runs/<time>]")] = None,
    on_inconclusive: Annotated[
        str | None, typer.Option("--on-inconclusive", help="fail (exit 4) or pass, for ranges that stay undecided.")
    ] = None,
    keep_report: Annotated[
        bool | None, typer.Option("--keep-report", help="Keep the .nsys-rep; it holds the whole environment.")
    ] = None,
    memory_fill: Annotated[
        bool | None, typer.Option("--memory-fill", help="Leave torch's fill of new memory on in the deterministic arm.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and about how long; run nothing.")] = False,
    config: Annotated[str | None, typer.Option(help="A TOML file with these options and, for a program, its command.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="dense, moe or hybrid: one of ours as the program; CMD adds to it."),
    ] = None,
    recipe_size: Annotated[str | None, typer.Option("--recipe-size", help="h200 or tiny. [GPU: h200, CPU: tiny]")] = None,
    mode_args: Annotated[
        list[str] | None,
        typer.Option("--mode-args", metavar='ARM="ARGS"', help="With CMD: appended to CMD in that arm."),
    ] = None,
    mode_env: Annotated[
        list[str] | None, typer.Option("--mode-env", metavar="ARM=NAME=VALUE", help="With CMD: set in that arm.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="ARM", help="With CMD: the arm that is judged. [the last deterministic one]")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="With CMD: ranges judged beside the step. [those with a budget]"),
    ] = None,
    step_range: Annotated[
        str | None, typer.Option("--step-range", metavar="NAME", help="With CMD: the range of one step. [step]")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="With CMD: the steady window, from 0, half-open. [3/4 of all]"),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="With CMD: what each run writes, compared bit by bit; {run} is its folder."),
    ] = None,
    tokens_per_step: Annotated[int | None, typer.Option("--tokens-per-step", help="With CMD: of all ranks together.")] = None,
    ranks: Annotated[int | None, typer.Option(help="With CMD: how many must show the step. [as CMD says]")] = None,
    per_rank: Annotated[
        bool | None,
        typer.Option("--per-rank", help="With CMD: nsys inside the launcher: python -m perfgate.program.rank -- PROGRAM"),
    ] = None,
    profiled_blocks: Annotated[
        int | None,
        typer.Option("--profiled-blocks", help="With CMD: blocks under nsys; 0: the step alone. [as --blocks]"),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="table, json, csv, markdown or github, on stdout.")] = "table",
    export: Annotated[list[str] | None, typer.Option("--export", help="FORMAT=PATH beside the run; repeatable.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Operations, memory, bits and error in the table too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Run each op's default and deterministic implementation under nsys and judge what determinism costs.

    With -- CMD, any training entry: its step and its own NVTX ranges, arm against arm.

    Options can stand in [tool.perfgate] of pyproject.toml too. Exit codes: 0 pass, 1 over budget or wrong, 2 bad request,
    3 bits differ, 4 inconclusive, 5 nothing valid was measured, 6 a workload or the profiler failed.
    """
    from perfgate.cli._requests import requested

    options = dict(locals())
    for own in ("dry_run", "quiet", "format_", "export", "wide", "requested"):
        options.pop(own)
    request = requested(options, Path.cwd())

    from perfgate.cli._console import err
    from perfgate.cli._console import out as results
    from perfgate.cli._progress import Lines
    from perfgate.cli.report import check_format, show
    from perfgate.render import parse_exports, write_exports

    check_format(format_)
    exports = parse_exports(export or [])
    if dry_run:
        results().print(request.described(), markup=False, soft_wrap=True)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a CI that cancels: as Ctrl-C, and no child is left behind
    finished = request.carried_out(shlex.join(["perfgate", *sys.argv[1:]]), Lines(err(quiet)))
    show(finished.result, format_, wide)
    write_exports(finished.result, exports)
    err(quiet).print(f"report: {finished.directory.path / 'report.html'}", markup=False)
    raise typer.Exit(finished.result.verdict.exit_code)
