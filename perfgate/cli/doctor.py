"""``perfgate doctor``: what this machine has for the gate, and what mends what it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfgate.doctor import Check

MARKS = {"ok": "green", "warning": "yellow", "error": "bold red"}


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("doctor")(doctor)


def doctor(format_: Annotated[str, typer.Option("--format", help="table or json.")] = "table") -> None:
    """Check GPU, driver, clocks, torch, triton, nvtx, nsys, its importer, and one probe capture that must hold its range.

    Exit code 0 where all is well or merely limited (warnings); 6 where something that `run --profiler nsys` needs is broken.
    """
    from perfgate.doctor import examine, exit_code
    from perfgate.errors import UsageError

    if format_ not in ("table", "json"):
        raise UsageError(f"--format {format_}", "use table or json")
    checks = []
    for check in examine():
        checks.append(check)
        if format_ == "table":
            _show(check)
    code = exit_code(checks)
    if format_ == "json":
        _print_json(checks, code)
    else:
        _conclude(checks)
    raise typer.Exit(code)


def _show(check: Check) -> None:
    from rich.text import Text

    from perfgate.cli._console import out

    line = Text.assemble((f"{check.status:<8}", MARKS[check.status]), f"{check.name:<14} {check.text}")
    out().print(line, soft_wrap=True)
    if check.mend:
        out().print(Text(f"{'':<8}{'':<14} next: {check.mend}"), soft_wrap=True)


def _conclude(checks: list[Check]) -> None:
    from perfgate.cli._console import out

    broken = [check.name for check in checks if check.status == "error"]
    if broken:
        out().print(
            f"broken: {', '.join(broken)}; `perfgate run --profiler nsys` can't work here", soft_wrap=True, markup=False
        )
    else:
        out().print("`perfgate run --profiler nsys` works here", markup=False)


def _print_json(checks: list[Check], code: int) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps({"exit_code": code, "checks": [asdict(check) for check in checks]}, indent=2))
