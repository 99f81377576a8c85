"""The arms of a program's run: what is appended to its command, which environment it gets, in which order they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.determinism.contract import Contract, check, child_environment
from perfgate.errors import UsageError
from perfgate.model import Mode, Role
from perfgate.profilers.child_environment import without_secrets
from perfgate.program.options import Pairs, ProgramOptions

RUN = "{run}"  # in the command, its arguments, variables and --metrics: the folder of that one run
METRICS, STEPS = "metrics", "steps"  # in that folder
_OURS = frozenset(
    {"PERFGATE_MODE", "PERFGATE_ARM", "PERFGATE_RUN_DIR", "PERFGATE_METRICS_DIR", "PERFGATE_STEPS_DIR"}
    | {"PERFGATE_STEP_RANGE", "PERFGATE_PROFILED", "PERFGATE_RANK_CAPTURE"}
)


@dataclass(frozen=True)
class Arm:
    """One side of the comparison; every arm but the default is held to the deterministic contract."""

    name: str
    mode: Mode
    role: Role
    judged: bool = False
    arguments: tuple[str, ...] = ()
    variables: Pairs = ()


def arms_of(options: ProgramOptions) -> tuple[Arm, ...]:
    """default, deterministic, then every other name in the order it was given.

    Judged is ``--judge``, else the last one. Raises :class:`UsageError` where ``--judge`` names no deterministic arm.
    """
    arguments, variables = dict(options.mode_args), dict(options.mode_env)
    names = list(dict.fromkeys(("default", "deterministic", *arguments, *variables)))
    judged = options.judge or names[-1]
    if judged not in names[1:]:
        raise UsageError(f"--judge {judged} is no deterministic arm", f"there are: {', '.join(names[1:])}")
    return tuple(
        Arm(
            name,
            "default" if name == "default" else "deterministic",
            _role(name, judged),
            name == judged,
            arguments.get(name, ()),
            variables.get(name, ()),
        )
        for name in names
    )


def _role(name: str, judged: str) -> Role:
    if name in ("default", "deterministic"):
        return "default" if name == "default" else "stock_deterministic"
    return "champion" if name == judged else "candidate"


def order(arms: Sequence[Arm], block: int) -> tuple[Arm, ...]:
    """A B C C B A, in every second block C B A A B C: two runs of each arm, and drift cancels."""
    forth = tuple(arms) if block % 2 == 0 else tuple(reversed(arms))
    return (*forth, *reversed(forth))


def command_of(arm: Arm, options: ProgramOptions, run: Path) -> list[str]:
    """The program's command in one run of one arm."""
    return [part.replace(RUN, str(run)) for part in (*options.command, *arm.arguments)]


def environment_of(
    arm: Arm, options: ProgramOptions, run: Path, inherited: Mapping[str, str], contract: Contract
) -> dict[str, str]:
    """The environment of one run: the user's less what looks like a secret, the arm's variables, the contract's, ours.

    Raises :class:`~perfgate.determinism.contract.ContractError` where the deterministic contract refuses a variable or an
    option of the command, :class:`UsageError` where the default arm is given a variable that belongs to the other.
    """
    given = {name: value.replace(RUN, str(run)) for name, value in arm.variables}
    base = {name: value for name, value in without_secrets(inherited).items() if name not in _OURS} | given
    if arm.mode == "deterministic":
        check(base, arm.mode, options=command_of(arm, options, run), contract=contract)
    child = child_environment(base, arm.mode, contract)
    if lost := [name for name in given if name not in child]:
        text = f"--mode-env {arm.name}={lost[0]}={given[lost[0]]} is the deterministic arm's: the default must not have it"
        raise UsageError(text, "leave it out")
    return {
        **child,
        "PYTHONUNBUFFERED": child.get("PYTHONUNBUFFERED", "1"),
        "PERFGATE_MODE": arm.mode,
        "PERFGATE_ARM": arm.name,
        "PERFGATE_RUN_DIR": str(run),
        "PERFGATE_METRICS_DIR": str(run / METRICS),
        "PERFGATE_STEPS_DIR": str(run / STEPS),
        "PERFGATE_STEP_RANGE": options.step_range or "step",
    }


def differences(arm: Arm, default: Arm, environments: Mapping[str, Mapping[str, str]]) -> list[str]:
    """``NAME=value`` of ``arm`` (``NAME unset``) where its environment is not the default's, in order of the names."""
    own, other = environments[arm.name], environments[default.name]
    changed = sorted(name for name in own.keys() | other.keys() if own.get(name) != other.get(name))
    return [f"{name}={own[name]}" if name in own else f"{name} unset" for name in changed]
