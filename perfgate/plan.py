"""What a run will do: ops × cases × phases × implementations as child processes. Pure: starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfgate.config import Config
from perfgate.errors import UsageError
from perfgate.model import MODE_OF_ROLE, Exempt, Mode, RunSpec, Variant
from perfgate.registry import Case, Implementation, Op, Registry
from perfgate.shards import of_shard

ORDER: dict[int, tuple[Mode, ...]] = {  # drift that is linear in time cancels inside a block and between two
    0: ("default", "deterministic", "deterministic", "default"),
    1: ("deterministic", "default", "default", "deterministic"),
}
BITS_PROCESSES: dict[Mode, int] = {"default": 1, "deterministic": 2}  # two: bits must also survive a fresh process


@dataclass(frozen=True)
class Plan:
    """The chosen variants and the children that measure them."""

    variants: tuple[Variant, ...]
    exempt: tuple[Exempt, ...]
    modes: tuple[Mode, ...]
    device: str
    config: Config
    profiler: str = "none"
    planned: tuple[str, ...] = ()  # every op:case:phase of all shards, where this is the plan of one

    def of_mode(self, mode: Mode) -> tuple[Variant, ...]:
        """The variants whose role belongs to ``mode``."""
        return tuple(one for one in self.variants if MODE_OF_ROLE[one.role] == mode)

    def block(self, number: int, purpose: Literal["time", "confirm"] = "time") -> list[RunSpec]:
        """The four timing children of one block: A B B A, the next one B A A B; fewer where only one mode runs."""
        order = [mode for mode in ORDER[number % 2] if mode in self.modes]
        return [self._spec(purpose, mode, number, position) for position, mode in enumerate(order) if self.of_mode(mode)]

    def bits(self) -> list[RunSpec]:
        """The unprofiled children that check bits, memory and accuracy."""
        return [
            self._spec("bits", mode, 0, process)
            for mode in self.modes
            for process in range(BITS_PROCESSES[mode])
            if self.of_mode(mode)
        ]

    def confirmation(self) -> list[RunSpec]:
        """The unprofiled timing children, one per mode."""
        return [self._spec("confirm", mode, 0, 0) for mode in self.modes if self.of_mode(mode)] if self.config.confirm else []

    def _spec(self, purpose: Literal["time", "bits", "confirm"], mode: Mode, block: int, position: int) -> RunSpec:
        config = self.config
        return RunSpec(
            id=f"{purpose}-b{block:02}-{position}-{mode}",
            purpose=purpose,
            mode=mode,
            variants=self.of_mode(mode),
            device=self.device,
            block=block,
            position=position,
            iterations=config.iterations,
            warmup=config.warmup,
            replays=config.replays,
            seed=config.seed,
            workload_paths=config.workloads,
            profiler=self.profiler if purpose == "time" else "none",
            memory_fill=config.memory_fill,
        )


def make_plan(registry: Registry, config: Config, device: str, profiler: str) -> Plan:
    """The plan for ``config`` on ``device`` ("cpu" or "cuda:N").

    Raises :class:`UsageError` for an unknown op, case, suite or implementation (naming what there is), for a choice that
    selects nothing, and for an op asked for by name of which it selects nothing: what was asked for never drops out unseen.
    More shards than the plan can fill are refused. A formula of a chosen op that raises, or gives no whole number, is told here
    too, not after the measuring.
    """
    suite = config.suite or ("smoke" if device == "cpu" else "typical")
    ops = [registry.op(name) for name in config.op] or list(registry)
    runnable = [op for op in ops if not op.exempt_reason]
    _refuse_unknown(config, runnable)
    chosen = {
        op.name: [one for case in _cases(op, config, suite) for one in _variants(op, case, config, device)] for op in runnable
    }
    variants = tuple(variant for found in chosen.values() for variant in found)
    exempt = tuple(Exempt(op.name, op.exempt_reason) for op in ops if op.exempt_reason)
    if not variants:
        if config.op and exempt:
            raise UsageError(f"{exempt[0].op} is exempt: {exempt[0].reason}", "choose another --op; `perfgate list` shows them")
        _refuse_empty(runnable, config, suite)
    _refuse_left_out(config, runnable, chosen, suite)
    _refuse_broken_formulas(registry, variants)
    modes: tuple[Mode, ...] = ("default", "deterministic") if config.mode == "both" else (config.mode,)  # type: ignore[assignment]
    if not config.shard:
        return Plan(variants, exempt, modes, device, config, profiler)
    planned = tuple(dict.fromkeys(one.range for one in variants))
    return Plan(of_shard(variants, config.shard), exempt, modes, device, config, profiler, planned)


def _cases(op: Op, config: Config, suite: str) -> list[Case]:
    if not config.case:
        return op.in_suite(suite)
    if config.op:
        return [op.case(name) for name in config.case]
    return [case for case in op.case_list if case.name in config.case]


def _variants(op: Op, case: Case, config: Config, device: str) -> list[Variant]:
    """The default is always there: without it nothing can be compared. None of an op without any of the wanted ones."""
    if config.implementation and all(one.name not in config.implementation for one in op.implementations):
        return []
    chosen = _judged(op, device) if config.judged_only else op.implementations
    return [
        Variant(op.name, case.name, phase, one.name, one.role)
        for phase in op.phases
        for one in chosen
        if not config.implementation or one.name in config.implementation or one.role == "default"
    ]


def _judged(op: Op, device: str) -> list[Implementation]:
    """Default and champion; the stock path where there is no champion, or one that may turn out not to run on ``device``."""
    champion = op.with_role("champion")
    stands_in = device == "cpu" or champion is None or champion.supports is not None
    roles = ("default", "champion", *(("stock_deterministic",) if stands_in else ()))
    return [one for one in op.implementations if one.role in roles]


def _refuse_unknown(config: Config, ops: Sequence[Op]) -> None:
    implementations = {one.name for op in ops for one in op.implementations}
    cases = {case.name for op in ops for case in op.case_list}
    for what, wanted, known in (("implementation", config.implementation, implementations), ("case", config.case, cases)):
        for name in wanted:
            if name not in known and not (what == "case" and config.op):  # then the op itself names its cases
                raise UsageError(f"no {what} {name!r} in the chosen ops", f"there are: {', '.join(sorted(known))}")


def _refuse_left_out(config: Config, ops: Sequence[Op], chosen: Mapping[str, Sequence[Variant]], suite: str) -> None:
    for op in ops:
        if config.op and not chosen[op.name]:
            lacks = "none of the wanted implementations" if _cases(op, config, suite) else f"no case in suite {suite!r}"
            has = (*(case.name for case in op.case_list), *(one.name for one in op.implementations))
            raise UsageError(f"op {op.name} has {lacks}", f"it has {', '.join(has)}; or leave it out")


def _refuse_broken_formulas(registry: Registry, variants: Sequence[Variant]) -> None:
    for variant in variants:
        op = registry.op(variant.op)
        case = op.case(variant.case)
        implementation = next(one for one in op.implementations if one.name == variant.implementation)
        try:
            found = {
                "workspace": 0 if implementation.workspace is None else implementation.workspace(case),
                "bytes_moved": 0 if op.bytes_moved is None else op.bytes_moved(case, variant.phase),
                "flops": 0 if op.flops is None else op.flops(case, variant.phase),
            }
        except Exception as error:
            raise UsageError(
                f"{variant.name}: a formula raised {type(error).__name__}: {error}", f"mend {op.source}"
            ) from error
        for formula, value in found.items():
            if not isinstance(value, int):
                raise UsageError(f"{variant.name}: {formula}= gives {value!r}, not a whole number", f"mend {op.source}")


def _refuse_empty(ops: Sequence[Op], config: Config, suite: str) -> None:
    cases = sorted({case.name for op in ops for case in op.case_list})
    what = f"no case {', '.join(config.case)}" if config.case else f"no case in suite {suite!r}"
    suites = sorted({name for op in ops for name in op.suite_cases} | {"smoke", "small", "typical", "large", "edges", "full"})
    raise UsageError(f"{what} in the chosen ops", f"cases: {', '.join(cases)}; suites: {', '.join(suites)}")
