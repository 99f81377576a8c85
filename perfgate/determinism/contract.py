"""The determinism contract: what each mode demands of the environment and of torch, applied explicitly in both arms.

Nothing here imports torch until :func:`apply` runs, so a launcher can use
:func:`variables`, :func:`child_environment` and :func:`check` without it.

The order of :func:`apply` is fixed: refuse incompatible options, check the environment and fill what is unset, then set
torch's flags. It is idempotent and fails closed: one :class:`ContractError` lists every violation, and nothing was changed.

What a library captured at its first use (cuBLAS its workspace, NCCL its algorithm) can't be taken back: that needs a fresh
process, and :func:`apply` refuses to change a variable once CUDA is initialised.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import get_args

from perfgate.determinism.torch_flags import flags, flags_of, set_flags
from perfgate.errors import UsageError
from perfgate.model import Mode

MODES: tuple[Mode, ...] = get_args(Mode)


class ContractError(UsageError):
    """The environment or the options break the contract of the mode; every violation is listed."""


@dataclass(frozen=True)
class Variable:
    """One environment variable of the contract.

    ``pattern`` is a regular expression that an accepted value matches in full; ``accepts`` says the same in words.
    ``canonical`` is filled in deterministic mode when the variable is unset (``None``: left unset).
    """

    name: str
    pattern: str
    accepts: str
    canonical: str | None
    why: str = ""

    def accepted(self, value: str) -> bool:
        """Whether deterministic mode may run with this value."""
        return re.fullmatch(self.pattern, value) is not None


@dataclass(frozen=True)
class Contract:
    """The variables and the options that deterministic mode refuses (name without dashes -> why)."""

    variables: tuple[Variable, ...]
    forbidden: Mapping[str, str] = field(default_factory=dict)

    def extended(self, variables: Sequence[Variable] = (), forbidden: Mapping[str, str] | None = None) -> Contract:
        """The contract with a project's own additions; a variable of the same name replaces ours."""
        replaced = {variable.name: variable for variable in (*self.variables, *variables)}
        return Contract(tuple(replaced.values()), {**self.forbidden, **(forbidden or {})})


_ALGORITHM = r"(ring|collnetdirect|collnetchain|\^nvls)"

STANDARD = Contract(
    variables=(
        Variable(
            "NCCL_ALGO",
            rf"(?i){_ALGORITHM}(,{_ALGORITHM})*",
            "a list of Ring, CollnetDirect, CollnetChain, ^NVLS",
            "Ring",
            "Tree may change its order between nodes",
        ),
        Variable(
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
            "0",
            "0",
            "0",
            "Transformer Engine picks racy attention backward kernels otherwise",
        ),
        Variable(
            "CUBLAS_WORKSPACE_CONFIG",
            ":4096:8|:16:8",
            ":4096:8 or :16:8",
            ":4096:8",
            "cuBLAS picks its algorithm by the workspace it finds free on a stream",
        ),
        Variable("MAMBA_DETERMINISTIC", "1.*", "a value that starts with 1", None, "unset: follows torch's flag"),
        Variable("CAUSAL_CONV1D_DETERMINISTIC", "1.*", "a value that starts with 1", None, "unset: follows torch's flag"),
    ),
    forbidden={
        "cross-entropy-loss-fusion": "fused cross entropy has no fixed order of addition",
        "tp-comm-overlap": "overlapped tensor-parallel communication adds chunks in arrival order",
    },
)


@dataclass(frozen=True)
class VariableState:
    """How one variable stands in an environment: ``problem`` is "" where it is fine, ``fills`` what would be set."""

    variable: Variable
    value: str | None
    problem: str = ""
    fills: str | None = None
    removes: bool = False


@dataclass(frozen=True)
class AppliedPolicy:
    """What :func:`apply` set, for the evidence and for :meth:`restore`."""

    mode: Mode
    memory_fill: bool
    filled: Mapping[str, str]  # variables that were unset and are set now
    removed: Mapping[str, str]  # variables of the deterministic arm that the default arm must not inherit
    in_force: Mapping[str, str | None]  # every variable of the contract, as it stands now
    torch_flags: Mapping[str, bool]  # as set
    torch_before: Mapping[str, bool]

    def restore(self) -> None:
        """Puts torch's flags back and, where CUDA was not initialised meanwhile, the variables too.

        With CUDA initialised the variables stay as the libraries captured them, so that the environment doesn't lie.
        """
        set_flags(self.torch_before)
        if not _cuda_initialised():
            for name in self.filled:
                os.environ.pop(name, None)
            os.environ.update(self.removed)


def state(environ: Mapping[str, str], mode: Mode, contract: Contract = STANDARD) -> list[VariableState]:
    """How every variable of the contract stands for ``mode``. Values that break it carry a ``problem`` in words.

    In default mode only a value that the deterministic arm would have set is removed: it must not be inherited. Any other
    value (``NCCL_ALGO=Tree``) is the user's own default and stays.
    """
    _known(mode)
    states = []
    for variable in contract.variables:
        value = environ.get(variable.name)
        if mode == "default":
            inherited = value is not None and variable.accepted(value)
            problem = f"{variable.name}={value} belongs to the deterministic arm: unset it" if inherited else ""
            states.append(VariableState(variable, value, problem, removes=inherited))
        elif value is None:
            states.append(VariableState(variable, None, fills=variable.canonical))
        elif variable.accepted(value):
            states.append(VariableState(variable, value))
        else:
            reason = f" ({variable.why})" if variable.why else ""
            problem = f"{variable.name}={value!r} is not {variable.accepts}{reason}"
            states.append(VariableState(variable, value, problem))
    return states


def check(
    environ: Mapping[str, str],
    mode: Mode,
    *,
    options: Sequence[str] = (),
    contract: Contract = STANDARD,
) -> None:
    """Raises one :class:`ContractError` that lists every violation of ``mode`` in ``environ`` and ``options``.

    ``options`` is a command line (``["--tp-comm-overlap", "model.tp_comm_overlap=true"]``). Unset variables are no violation:
    they are filled. In default mode the deterministic arm's values are violations.
    """
    states = state(environ, mode, contract)
    problems = [*refused_options(options, mode, contract), *(each.problem for each in states if each.problem)]
    if problems:
        unset = " ".join(each.variable.name for each in states if each.problem)
        raise ContractError(
            f"{mode} mode can't run here:\n" + "\n".join(f"  - {problem}" for problem in problems),
            f"unset {unset}" if unset else "leave these options out",
        )


def refused_options(options: Sequence[str], mode: Mode, contract: Contract = STANDARD) -> list[str]:
    """The options of a command line that deterministic mode refuses, in words. They are never flipped silently.

    Dashes and underscores are the same, ``--name``, ``--name=value`` and ``group.name=value`` are understood; a value of
    false, 0, no or off is no use of the option.
    """
    if mode == "default":
        return []
    reasons = {_plain(name): why for name, why in contract.forbidden.items()}
    found = []
    for option in options:
        name, has_value, value = option.partition("=")
        if not (option.startswith("-") or has_value) or value.lower() in ("false", "0", "no", "off"):
            continue
        for candidate in dict.fromkeys((_plain(name), _plain(name).rpartition(".")[2])):
            if candidate in reasons:
                found.append(f"option {option}: {reasons[candidate]}")
                break
    return found


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("_", "-").lower()


def variables(mode: Mode, contract: Contract = STANDARD) -> dict[str, str | None]:
    """What a child's environment of ``mode`` gets where nothing was set before; ``None`` means: must be unset."""
    _known(mode)
    return {variable.name: variable.canonical if mode == "deterministic" else None for variable in contract.variables}


def child_environment(environ: Mapping[str, str], mode: Mode, contract: Contract = STANDARD) -> dict[str, str]:
    """A copy of ``environ`` for a child process of ``mode``.

    Deterministic: checked (:class:`ContractError`) and filled. Default: the deterministic arm's values are left out.
    """
    if mode == "deterministic":
        check(environ, mode, contract=contract)
    child = dict(environ)
    _change(child, state(environ, mode, contract))
    return child


def apply(
    mode: Mode,
    *,
    memory_fill: bool = False,
    options: Sequence[str] = (),
    contract: Contract = STANDARD,
) -> AppliedPolicy:
    """Puts ``mode`` in force in this process: variables and torch flags, explicitly in both arms, never ``warn_only``.

    ``memory_fill`` is ``torch.utils.deterministic.fill_uninitialized_memory``, which costs time of its own.
    Raises :class:`ContractError` with every violation, before anything is changed. CUDA already initialised and a variable
    that would change is a violation: what the libraries captured can't be undone.
    """
    states = state(os.environ, mode, contract)
    if mode == "deterministic":
        check(os.environ, mode, options=options, contract=contract)
    changing = [each.variable.name for each in states if each.fills is not None or each.removes]
    if changing and _cuda_initialised():
        raise ContractError(
            f"CUDA is already initialised, so {mode} mode can't change {', '.join(changing)}: libraries have captured them",
            f'use a fresh process: eval "$(perfgate env --mode {mode})" before it starts, or apply it before CUDA starts',
        )
    filled, removed = _change(os.environ, states)
    before = flags()
    set_flags(flags_of(mode == "deterministic", memory_fill))
    in_force = {variable.name: os.environ.get(variable.name) for variable in contract.variables}
    return AppliedPolicy(mode, memory_fill, filled, removed, in_force, flags(), before)


@contextmanager
def policy(
    mode: Mode,
    *,
    memory_fill: bool = False,
    options: Sequence[str] = (),
    contract: Contract = STANDARD,
) -> Iterator[AppliedPolicy]:
    """:func:`apply` for the length of a ``with`` block, restored after exceptions and when nested."""
    applied = apply(mode, memory_fill=memory_fill, options=options, contract=contract)
    try:
        yield applied
    finally:
        applied.restore()


def _change(environ: MutableMapping[str, str], states: Sequence[VariableState]) -> tuple[dict[str, str], dict[str, str]]:
    filled = {each.variable.name: each.fills for each in states if each.fills is not None}
    removed = {each.variable.name: each.value for each in states if each.removes and each.value is not None}
    environ.update(filled)
    for name in removed:
        del environ[name]
    return filled, removed


def _cuda_initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())


def _known(mode: str) -> None:
    if mode not in MODES:
        raise UsageError(f"no mode {mode!r}", f"modes are {', '.join(MODES)}")
