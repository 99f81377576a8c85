"""``perfgate env``: a mode's environment, as a launcher's shell can take it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfgate.determinism.contract import Contract, VariableState
    from perfgate.model import Mode


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("env")(env)


def env(
    mode: Annotated[str, typer.Option("--mode", help="default or deterministic.")] = "deterministic",
    format_: Annotated[str, typer.Option("--format", help="shell, json or table.")] = "shell",
    command: Annotated[
        list[str] | None, typer.Argument(help="The command to be launched, after --: its options are checked too.")
    ] = None,
) -> None:
    """Print the variables of a mode: eval "$(perfgate env --mode deterministic)" before a launcher.

    Fails closed: where the environment or an option of COMMAND breaks the contract, every violation is listed, the exit code
    is 2, and the shell that evaluates the output gets `false`.
    """
    from perfgate.determinism.contract import MODES, state
    from perfgate.determinism.project import contract_of
    from perfgate.errors import UsageError

    if mode not in MODES:
        raise UsageError(f"no mode {mode!r}", f"modes are {', '.join(MODES)}")
    if format_ not in ("shell", "json", "table"):
        raise UsageError(f"--format {format_}", "use shell, json or table")
    contract = contract_of(Path.cwd())
    states = state(os.environ, mode, contract)
    if format_ == "table":
        _table(states)
    _check(mode, command or (), contract, shell=format_ == "shell")
    if format_ == "shell":
        _shell(states)
    elif format_ == "json":
        import json

        print(json.dumps({one.variable.name: None if one.removes else one.value or one.fills for one in states}, indent=1))


def _check(mode: Mode, command: Sequence[str], contract: Contract, *, shell: bool) -> None:
    """In default mode the deterministic arm's values are no violation here: they are what the output unsets."""
    from perfgate.determinism.contract import check
    from perfgate.errors import PerfgateError

    if mode == "default":
        return
    try:
        check(os.environ, mode, options=command, contract=contract)
    except PerfgateError:
        if shell:
            print("false")  # so that eval fails too
        raise


def _shell(states: Sequence[VariableState]) -> None:
    import shlex

    for one in states:
        value = one.value or one.fills
        if one.removes:
            print(f"unset {one.variable.name}")
        elif value is not None:
            print(f"export {one.variable.name}={shlex.quote(value)}")


def _table(states: Sequence[VariableState]) -> None:
    from rich.table import Table

    from perfgate.cli._console import out

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("variable", "now", "state"):
        table.add_column(column, overflow="fold")
    for one in states:
        table.add_row(one.variable.name, "unset" if one.value is None else repr(one.value), _state(one))
    out().print(table, markup=False)


def _state(one: VariableState) -> str:
    if one.problem:
        return one.problem
    return f"will be {one.fills}" if one.fills is not None else "ok"
