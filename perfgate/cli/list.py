"""``perfgate list``: the catalog of ops, cases and implementations, exempt ones included."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("list")(list_ops)


def list_ops(
    workloads: Annotated[list[str], typer.Option("--workloads", help="A folder or file with more ops; repeatable.")] = [],  # noqa: B006
    op: Annotated[str, typer.Option("--op", help="Only this op, with its cases' parameters.")] = "",
    format_: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show every op with its cases, implementations and roles; exempt ops with their reason."""
    from perfgate.discover import load
    from perfgate.errors import UsageError

    registry = load(workloads)
    rows = [describe(one) for one in ([registry.op(op)] if op else registry)]
    if format_ == "json":
        import json

        print(json.dumps(rows, indent=2))
    elif format_ == "table":
        _table(rows, detailed=bool(op))
    else:
        raise UsageError(f"--format {format_}", "use table or json")


def describe(op: Any) -> dict[str, Any]:
    """An op as plain values."""
    return {
        "op": op.name,
        "kind": op.kind,
        "racy": op.racy,
        "exempt": op.exempt_reason,
        "phases": list(op.phases) if not op.exempt_reason else [],
        "cases": {case.name: dict(case.parameters) for case in op.case_list},
        "implementations": [
            {"name": one.name, "role": one.role, "mode": one.mode, "backend": one.backend} for one in op.implementations
        ],
        "source": op.source,
    }


def _table(rows: list[dict[str, Any]], detailed: bool) -> None:
    from rich.table import Table

    from perfgate.cli._console import out

    console = out()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("op", "phases", "cases", "implementations (role)"):
        table.add_column(column, overflow="fold")
    for row in rows:
        if row["exempt"]:
            table.add_row(row["op"], "–", "–", f"exempt: {row['exempt']}")
        else:
            implementations = "\n".join(f"{one['name']} ({one['role']})" for one in row["implementations"])
            table.add_row(row["op"], ", ".join(row["phases"]), ", ".join(row["cases"]), implementations)
    console.print(table)
    if detailed:
        for row in rows:
            for name, parameters in row["cases"].items():
                console.print(f"  {name}: " + ", ".join(f"{key}={value}" for key, value in parameters.items()), markup=False)
            if row["racy"]:
                console.print(f"  racy: {row['racy']}", markup=False)
            console.print(f"  declared in {row['source']}", markup=False)
    console.print(f"{len(rows)} ops, {sum(bool(row['exempt']) for row in rows)} of them exempt")
