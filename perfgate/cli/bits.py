"""``perfgate bits``: digests of outputs, recorded in one process and compared with those of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfgate.determinism.records import Entry

DIFFERENT = 3

Workloads = Annotated[list[str], typer.Option("--workloads", help="A folder or file with more ops; repeatable.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or a GPU's index.")]
Replays = Annotated[int, typer.Option("--replays", min=2, help="Runs in this process; the first is the reference.")]
Contention = Annotated[bool, typer.Option("--contention", help="Keep side streams busy from the second run on.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the inputs.")]


def register(app: typer.Typer) -> None:
    """Adds the verb with its three parts."""
    bits = typer.Typer(no_args_is_help=True, help="Record digests of outputs, compare two records, see the racy controls.")
    bits.command("record")(record)
    bits.command("compare")(compare)
    bits.command("control")(control)
    app.add_typer(bits, name="bits")


def record(
    out: Annotated[Path, typer.Option("--out", help="The file to write (JSON).")],
    op: Annotated[list[str], typer.Option("--op", help="An op; repeatable. Default: all.")] = [],  # noqa: B006
    case: Annotated[list[str], typer.Option("--case", help="A case; repeatable.")] = [],  # noqa: B006
    suite: Annotated[str, typer.Option("--suite", help="smoke, small, typical, large, edges, full.")] = "",
    implementation: Annotated[list[str], typer.Option("--implementation", help="Only these; repeatable.")] = [],  # noqa: B006
    function: Annotated[
        list[str], typer.Option("--function", help="Instead of ops: file.py:function that returns tensors; repeatable.")
    ] = [],  # noqa: B006
    mode: Annotated[
        str, typer.Option("--mode", help="default or deterministic: its policy and its implementations.")
    ] = "deterministic",
    workloads: Workloads = [],  # noqa: B006
    device: Device = "auto",
    replays: Replays = 3,
    contention: Contention = False,
    seed: Seed = 0,
) -> None:
    """Run subjects under a mode's policy and write the SHA-256 of all their outputs, to be compared on another node.

    Exit code: 0 all replays equal, 3 a replay differs within this process (the file is written all the same), 6 one failed.
    """
    from perfgate.config import Config
    from perfgate.determinism.contract import MODES, policy
    from perfgate.determinism.project import contract_of
    from perfgate.determinism.records import Record, write_record
    from perfgate.devices import choose_device
    from perfgate.environment import fingerprint
    from perfgate.errors import UsageError, WorkloadError

    if mode not in MODES:
        raise UsageError(f"no mode {mode!r}", f"modes are {', '.join(MODES)}")
    if function and (op or case or suite or implementation):
        raise UsageError("--function stands instead of ops", "leave --op, --case, --suite and --implementation out")
    config = Config(
        mode=mode,
        op=tuple(op),
        case=tuple(case),
        suite=suite,
        implementation=tuple(implementation),
        workloads=tuple(workloads),
        replays=replays,
        seed=seed,
    )
    place = choose_device(device)
    environment = fingerprint(place)
    with policy(mode, contract=contract_of(Path.cwd())) as applied:
        if function:
            from perfgate.determinism.recording import record_function

            entries = [_told(record_function(target, replays=replays, contention=contention)) for target in function]
        else:
            from perfgate.determinism.recording import record_ops

            entries = [_told(entry) for entry in record_ops(config, place, contention=contention)]
    write_record(Record(mode, seed, environment, dict(applied.in_force), {one.name: one for one in entries}), out)
    recorded = [one for one in entries if one.status == "ok"]
    print(f"{len(recorded)} of {len(entries)} recorded in {out}")
    failed = [one.name for one in entries if one.status == "failed"]
    if failed or not recorded:
        raise WorkloadError(f"not recorded: {', '.join(failed) or 'anything'}", "the lines above say why")
    raise typer.Exit(DIFFERENT if any(one.differing for one in recorded) else 0)


def compare(
    first: Annotated[Path, typer.Argument(help="A record.")],
    second: Annotated[Path, typer.Argument(help="Another, from another process, allocation or node.")],
) -> None:
    """Compare two records. What is in one alone is a difference. Exit code: 0 equal, 3 different, 2 unreadable."""
    from perfgate.determinism.records import compare_records, read_record
    from perfgate.environment import unlike
    from perfgate.errors import UsageError

    if first.exists() and second.exists() and first.samefile(second):
        raise UsageError(f"{first} and {second} are the same", "give two records")
    a, b = read_record(first), read_record(second)
    count, differences = compare_records(a, b)
    for one in differences:
        print(f"{one.entry}: {one.text}")
    print(f"{'DIFFERENT' if differences else 'EQUAL'}: {len(differences)} differences, {count} entries compared")
    notes = [str(one) for one in unlike(a.environment, b.environment)]
    notes += [f"{what}: {x!r} against {y!r}" for what, x, y in (("mode", a.mode, b.mode), ("seed", a.seed, b.seed)) if x != y]
    notes += [
        f"{name}: {value!r} against {b.variables.get(name)!r}"
        for name, value in a.variables.items()
        if value != b.variables.get(name)
    ]
    for note in notes:
        print(f"the records' surroundings differ: {note}")
    raise typer.Exit(DIFFERENT if differences else 0)


def control(
    op: Annotated[list[str], typer.Option("--op", help="An op; repeatable. Default: every op that declares a race.")] = [],  # noqa: B006
    workloads: Workloads = [],  # noqa: B006
    device: Device = "auto",
    replays: Replays = 9,
    contention: Contention = False,
    seed: Seed = 0,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Replay each op's racy control at the size that shows it, to learn whether this harness sees a race on this machine.

    Hardware decides whether a race shows, so the result is reported and the exit code is 0.
    """
    import json
    from dataclasses import asdict

    from perfgate.determinism.contract import policy
    from perfgate.devices import choose_device
    from perfgate.discover import load
    from perfgate.errors import UsageError

    if format_ not in ("text", "json"):
        raise UsageError(f"--format {format_}", "use text or json")
    registry, place = load(workloads), choose_device(device)
    ops = [registry.op(name) for name in op] or list(registry)
    with policy("default"):
        from perfgate.determinism.recording import see_control

        rows = []
        for one in ops:
            seen = see_control(one, place, replays=replays, seed=seed, contention=contention)
            if seen is not None:
                rows.append({"op": one.name, "proven": seen.proven, **asdict(seen)})
            if format_ == "text" and (seen is not None or op):
                print(f"{one.name}: {seen or 'declares no race, so there is no control'}")
    if format_ == "json":
        print(json.dumps(rows, indent=1))


def _told(entry: Entry) -> Entry:
    """Prints an entry's line at once: recording large cases takes a while."""
    told = f"{entry.differing} of {entry.compared} replays differ" + (f": {entry.first_difference}" if entry.differing else "")
    print(f"{entry.name}: {entry.problem or told}", flush=True)
    return entry
