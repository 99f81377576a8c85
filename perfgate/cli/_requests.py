"""What ``perfgate run`` was asked for: the ops, or a program of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfgate.config import Config, configure
from perfgate.errors import UsageError

if TYPE_CHECKING:
    from perfgate.gate import Finished
    from perfgate.program.options import ProgramOptions
    from perfgate.session import Progress

OF_OPS = frozenset(
    {"suite", "op", "case", "implementation", "judged_only", "workloads", "replay_from"}
    | {"iterations", "replays", "confirm", "memory_fill"}
)


@dataclass(frozen=True)
class Request:
    """A run that is asked for; ``program`` is ``None`` where the ops are."""

    config: Config
    program: ProgramOptions | None

    def described(self) -> str:
        """What would run, for ``--dry-run``."""
        if self.program is None:
            from perfgate.cli._dry_run import describe
            from perfgate.gate import prepare

            return describe(prepare(self.config))
        from perfgate.program import dry_run
        from perfgate.program.prepared import prepare as prepare_program

        return dry_run.describe(prepare_program(self.config, self.program))

    def carried_out(self, command: str, progress: Progress) -> Finished:
        """Runs it."""
        if self.program is None:
            from perfgate import gate

            return gate.run(self.config, command=command, progress=progress)
        from perfgate.program import gate as program_gate

        return program_gate.run(self.config, self.program, command=command, progress=progress)


def requested(given: dict[str, Any], folder: Path) -> Request:
    """What the command line, ``--config FILE`` and ``folder``'s pyproject.toml ask for together.

    Raises :class:`UsageError` where options of a program are given without one, or options of the ops with one.
    """
    from perfgate.program.options import KEYS, configure_program

    given = with_recipe(given)
    file = given.pop("config")
    file = Path(file) if file else None
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name in KEYS}
    others = {name: value for name, value in given.items() if name not in KEYS}
    config = configure(others, folder, file, KEYS)
    program = configure_program(own, folder, file)
    if not program.command:
        if useless := [name for name, value in own.items() if value]:
            option = useless[0].replace("_", "-")
            raise UsageError(f"--{option} needs a program", "name its command behind --: perfgate run ... -- torchrun train.py")
        return Request(config, None)
    if useless := [name for name in others if name in OF_OPS and others[name]]:
        option = useless[0].replace("_", "-")
        raise UsageError(f"--{option} chooses among the ops, but a program is to be run", "leave it out, or the command")
    return Request(config, program)


def with_recipe(given: dict[str, Any]) -> dict[str, Any]:
    """``given`` without ``recipe`` and ``recipe_size``: where one is named, its options stand for what was not given.

    What stands behind ``--`` is then the recipe's. Raises :class:`UsageError` for names that are none.
    """
    recipe, size = given.pop("recipe"), given.pop("recipe_size")
    if not recipe:
        if size:
            raise UsageError("--recipe-size needs a recipe", "name it: --recipe moe")
        return given
    from perfgate.devices import choose_device
    from perfgate.recipes import run_options

    gpu = choose_device(given["device"] or "auto") != "cpu"
    options = run_options(recipe, size or ("h200" if gpu else "tiny"), given["command"] or (), gpu=gpu)
    options["mode_args"] += given["mode_args"] or []  # of one arm: appended
    own = ("command", "mode_args")
    return {
        name: options[name] if name in options and (value is None or name in own) else value for name, value in given.items()
    }
