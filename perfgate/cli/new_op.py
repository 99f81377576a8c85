"""``perfgate new-op NAME``: a working skeleton of an op, and its test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("new-op")(new_op)


def new_op(
    name: Annotated[str, typer.Argument(help="family/op, like moe/combine.")],
    into: Annotated[Path, typer.Option("--into", help="Folder of workloads.")] = Path("workloads"),
    tests: Annotated[Path, typer.Option("--tests", help="Folder of tests.")] = Path("tests"),
) -> None:
    """Write a skeleton that runs as it stands, and its test."""
    from perfgate.discover import bundled_folder
    from perfgate.skeleton import write_skeleton

    ops, test = write_skeleton(name, into, tests)
    option = "" if into.resolve() == bundled_folder("workloads").resolve() else f" --workloads {into}"
    print(f"wrote {ops} and {test}")
    print(f"next: perfgate run --op {name} --case smoke --device cpu{option}")
    print(f"      pytest {test}")
