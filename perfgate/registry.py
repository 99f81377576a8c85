"""Ops and how they are found: what a workload file declares and what the other stages read.

A workload file declares with :class:`Op` and holds no timing, profiling, NVTX or hashing code::

    op = Op("moe/combine", kind="triton", racy="scatter_add_ adds one token's rows in arrival order")
    op.cases(smoke=dict(tokens=32, hidden=64), typical=dict(tokens=16384, hidden=2048))

    @op.inputs
    def inputs(case, device, generator): ...

    @op.default("torch.scatter_add_")
    def scatter_add(x): ...

Importing this module imports neither torch nor triton, and a workload's ``ops.py`` must not either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perfgate.errors import UsageError
from perfgate.model import MODE_OF_ROLE, Mode, Role

F = TypeVar("F", bound=Callable[..., Any])

_OP_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)+")
_CASE_NAME = re.compile(r"[a-z0-9_]+(-[a-z0-9_]+)*")
_IMPLEMENTATION_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
PHASES = ("fwd", "bwd", "step")


@dataclass(frozen=True)
class Case:
    """A named set of shapes and options; parameters read as attributes: ``case.tokens``."""

    name: str
    parameters: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["parameters"][name]
        except KeyError:
            raise AttributeError(f"case has no parameter {name!r}") from None

    def get(self, name: str, otherwise: Any = None) -> Any:
        """The parameter, or ``otherwise`` where this case does not name it."""
        return self.parameters.get(name, otherwise)


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    ``run(x)`` takes what the op's ``inputs`` made and returns a tensor or a tuple/dict of tensors. ``workspace(case)`` is the
    declared extra memory in bytes. ``supports(case, device)`` returns "" or the reason why it can't run there (a capability
    probe; ``device`` is a torch device string). ``backend`` "triton" means: needs a GPU.
    """

    name: str
    role: Role
    run: Callable[..., Any]
    backend: str = "torch"
    workspace: Callable[[Case], int] | None = None
    supports: Callable[[Case, str], str] | None = None

    @property
    def mode(self) -> Mode:
        return MODE_OF_ROLE[self.role]


@dataclass
class Op:
    """What is computed, with its cases and implementations.

    ``name`` is ``family/op``. ``kind`` says what the kernels are written in (triton, torch-op, cuda-ext, external-lib, ...).
    ``racy`` names the mechanism that makes the default non-deterministic ("" if it is not). ``phases`` are what is timed:
    fwd calls the implementation; bwd times ``torch.autograd.grad`` of its outputs with respect to ``gradients`` (keys of
    the inputs dict); step times both together. ``max_error`` limits the relative L2 error to the float64 reference.
    ``bytes_moved(case, phase)`` and ``flops(case, phase)`` are the least that must be done, for the roofline.
    """

    name: str
    kind: str = "torch-op"
    racy: str = ""
    phases: Sequence[str] = ("fwd",)
    gradients: Sequence[str] = ()
    max_error: float | None = None
    bytes_moved: Callable[[Case, str], int] | None = None
    flops: Callable[[Case, str], int] | None = None
    exempt_reason: str = ""
    source: str = ""  # file of the declaration, set when it is found
    tests: Sequence[str] = ()  # test files relative to the repository root, for the coverage gate
    control: str = ""  # the implementation whose replays show the race; "": the default
    control_case: str = ""  # the case large enough to show it; "": the largest of large, typical, small
    case_list: list[Case] = field(default_factory=list)
    implementations: list[Implementation] = field(default_factory=list)
    make_inputs: Callable[..., Any] | None = None
    compute_reference: Callable[..., Any] | None = None
    suite_cases: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _OP_NAME.fullmatch(self.name):
            raise UsageError(f"op name {self.name!r} is not family/op in lower case", 'write it like "moe/combine"')
        unknown = [phase for phase in self.phases if phase not in PHASES]
        if unknown:
            raise UsageError(f"op {self.name}: unknown phase {unknown[0]!r}", f"phases are {', '.join(PHASES)}")
        if any(phase != "fwd" for phase in self.phases) and not self.gradients:
            raise UsageError(f"op {self.name}: phase bwd or step needs gradients=", 'name the inputs: gradients=("rows",)')

    @classmethod
    def exempt(cls, name: str, reason: str, **options: Any) -> Op:
        """An op that nobody can make deterministic: it stays in the catalog with ``reason``."""
        if not reason.strip():
            raise UsageError(f"op {name}: an exempt op needs a reason", "say why nobody can make it deterministic")
        return cls(name, exempt_reason=reason, **options)

    def cases(self, **named: Mapping[str, Any]) -> None:
        """Declares cases: ``typical=dict(tokens=16384)``. A keyword ``edge_holes`` names the case ``edge-holes``."""
        for key, parameters in named.items():
            name = "edge-" + key[5:].replace("_", "-") if key.startswith("edge_") else key
            if not _CASE_NAME.fullmatch(name) or any(case.name == name for case in self.case_list):
                raise UsageError(
                    f"op {self.name}: case {name!r} is misnamed or declared twice", "lower case, digits, _ and -; once"
                )
            self.case_list.append(Case(name, dict(parameters)))

    def suites(self, **named: Sequence[str]) -> None:
        """Puts cases into suites beyond the one that has the case's own name: ``typical=("dsv3",)``."""
        for suite, cases in named.items():
            self.suite_cases[suite] = (*self.suite_cases.get(suite, ()), *cases)

    def in_suite(self, suite: str) -> list[Case]:
        """The cases of ``suite``: smoke, small, typical, large, edges, full (all but smoke), or one the op names itself."""
        named = self.suite_cases.get(suite, ())
        return [
            case
            for case in self.case_list
            if case.name in named
            or case.name == suite
            or (suite == "edges" and case.name.startswith("edge-"))
            or (suite == "full" and case.name != "smoke")
        ]

    def inputs(self, function: F) -> F:
        """Registers ``inputs(case, device, generator) -> dict of tensors``: seeded by ``generator``, on ``device``."""
        self.make_inputs = function
        return function

    def reference(self, function: F) -> F:
        """Registers ``reference(x)``; ``x`` holds the same inputs with floating tensors in float64."""
        self.compute_reference = function
        return function

    def default(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers what users run today; exactly one."""
        return self._register(name, "default", options)

    def stock_deterministic(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers what users get when they turn determinism on; at most one."""
        return self._register(name, "stock_deterministic", options)

    def champion(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers the deterministic implementation that the gate judges; at most one."""
        return self._register(name, "champion", options)

    def candidate(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers another deterministic implementation: ranked, not judged."""
        return self._register(name, "candidate", options)

    def contender(self, name: str, **options: Any) -> Callable[[F], F]:
        """Registers a fast non-deterministic implementation, so that a win over a weak default isn't called a win."""
        return self._register(name, "contender", options)

    def _register(self, name: str, role: Role, options: dict[str, Any]) -> Callable[[F], F]:
        if not _IMPLEMENTATION_NAME.fullmatch(name):
            raise UsageError(
                f"op {self.name}: implementation name {name!r} may hold letters, digits and _.+- only", "rename it"
            )
        if any(known.name == name for known in self.implementations):
            raise UsageError(f"op {self.name}: implementation {name!r} is declared twice", "rename one of them")
        if role not in ("candidate", "contender") and any(known.role == role for known in self.implementations):
            raise UsageError(f"op {self.name}: a second {role} ({name!r})", "register it as candidate or contender")

        def register(function: F) -> F:
            self.implementations.append(Implementation(name, role, function, **options))
            return function

        return register

    def with_role(self, role: Role) -> Implementation | None:
        """The implementation in a role that only one can have, or ``None``."""
        return next((known for known in self.implementations if known.role == role), None)

    def case(self, name: str) -> Case:
        """The case of that name. Raises :class:`UsageError` with the names there are."""
        for case in self.case_list:
            if case.name == name:
                return case
        raise UsageError(f"op {self.name} has no case {name!r}", f"it has {', '.join(case.name for case in self.case_list)}")

    def problems(self) -> list[str]:
        """What is missing before this op can run, in words; empty if nothing."""
        if self.exempt_reason:
            return []
        found = []
        if self.make_inputs is None:
            found.append("no @op.inputs")
        if not self.case_list:
            found.append("no op.cases(...)")
        if self.with_role("default") is None:
            found.append("no @op.default(...)")
        if not any(
            known.role in ("champion", "stock_deterministic") for known in self.implementations
        ):  # the gate judges these
            found.append("no deterministic implementation (@op.champion or @op.stock_deterministic)")
        if self.control and all(known.name != self.control for known in self.implementations):
            found.append(f"control names an implementation that does not exist: {self.control}")
        if self.control_case and all(case.name != self.control_case for case in self.case_list):
            found.append(f"control_case names a case that does not exist: {self.control_case}")
        for suite, names in self.suite_cases.items():
            missing = [name for name in names if all(case.name != name for case in self.case_list)]
            found.extend(f"suite {suite} names a case that does not exist: {name}" for name in missing)
        return found


class Registry:
    """The ops found, by name."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = {op.name: op for op in sorted(ops, key=lambda op: op.name)}

    def __iter__(self) -> Iterator[Op]:
        return iter(self._ops.values())

    def __len__(self) -> int:
        return len(self._ops)

    def op(self, name: str) -> Op:
        """The op of that name. Raises :class:`UsageError` that names the closest ones."""
        if name not in self._ops:
            from difflib import get_close_matches

            near = get_close_matches(name, self._ops, n=3, cutoff=0.4)
            raise UsageError(
                f"no op {name!r}", f"did you mean {' or '.join(near)}?" if near else "`perfgate list` shows them all"
            )
        return self._ops[name]
