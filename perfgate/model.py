"""The frozen values that the stages hand on. They are also the shape of ``result.json``.

Times are nanoseconds (int, ``None`` where not measured), memory is bytes, ratios are deterministic / default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

Mode = Literal["default", "deterministic"]
Role = Literal["default", "stock_deterministic", "champion", "candidate", "contender"]
Metric = Literal["busy", "span", "host", "step_wall"]
Blame = Literal["", "workload", "profiler"]
Status = Literal["pass", "fail", "inconclusive", "invalid", "error", "skipped"]

MODE_OF_ROLE: dict[Role, Mode] = {
    "default": "default",
    "contender": "default",
    "stock_deterministic": "deterministic",
    "champion": "deterministic",
    "candidate": "deterministic",
}


@dataclass(frozen=True)
class Variant:
    """One implementation of one op in one case and phase: what one NVTX range name stands for."""

    op: str
    case: str
    phase: str
    implementation: str
    role: Role

    @property
    def range(self) -> str:
        """``op:case:phase``, what budgets match."""
        return f"{self.op}:{self.case}:{self.phase}"

    @property
    def name(self) -> str:
        """``op:case:phase:implementation``, the NVTX range's name in domain ``perfgate``."""
        return f"{self.range}:{self.implementation}"


@dataclass(frozen=True)
class RunSpec:
    """One child process: what it runs, in which mode, for which purpose. Written as ``spec.json`` for the worker."""

    id: str  # "time-b00-0-default", "bits-0-deterministic", unique in a run, also its folder's name
    purpose: Literal["time", "bits", "confirm"]
    mode: Mode
    variants: tuple[Variant, ...]
    device: str  # "cuda:0" | "cpu"
    block: int = 0
    position: int = 0  # 0..3 inside the block
    iterations: int = 30
    warmup: int = 5
    replays: int = 3
    seed: int = 0
    workload_paths: tuple[str, ...] = ()
    profiler: str = "none"  # nsys | torch | none: what the worker must prepare for
    memory_fill: bool = False  # torch.utils.deterministic.fill_uninitialized_memory in deterministic arms


@dataclass(frozen=True)
class Capture:
    """What one child left behind. ``trace`` is the file to read, relative to the capture's folder ("" if none)."""

    spec: RunSpec
    folder: str  # relative to the run directory
    trace: str = ""
    complete: bool = False  # the worker's own done file was there and every check passed
    error: str = ""  # "" or what failed, in words that name the next action
    wall_seconds: float = 0.0
    blame: Blame = ""  # whose failure the error is
    note: str = ""  # what went wrong on the way and was mended: shown, never silent


@dataclass(frozen=True)
class ProcessSample:
    """One variant's instances in one capture; index i of every tuple is the same instance."""

    capture: str
    block: int
    position: int
    busy_ns: tuple[int, ...]  # empty where there was no GPU
    span_ns: tuple[int, ...]
    host_ns: tuple[int, ...]
    ops: tuple[int, ...]
    kernels: str = ""  # digest of the ordered (name, grid, block) launch list, equal over instances; "mixed" if not
    step_wall_ns: tuple[int, ...] = ()  # unprofiled confirmation children only, whose other tuples are empty


@dataclass(frozen=True)
class KernelTime:
    """One kernel (or copy, or fill) of the representative instance: ``exclusive_ns`` sum to its busy time exactly."""

    name: str
    kind: str
    grid: str
    block: str
    registers: int
    shared_memory: int
    count: int
    sum_ns: int
    exclusive_ns: int


@dataclass(frozen=True)
class ArmFigures:
    """One arm of a comparison: medians over all its instances and the raw samples behind them."""

    implementation: str
    busy_ns: int | None = None
    span_ns: int | None = None
    host_ns: int | None = None
    step_wall_ns: int | None = None
    ops: int | None = None
    samples: tuple[ProcessSample, ...] = ()
    kernels: tuple[KernelTime, ...] = ()  # of the representative (median) instance
    timeline: tuple[tuple[str, int, int], ...] = ()  # (kernel, start, end) ns from the first start, that same instance


@dataclass(frozen=True)
class Contribution:
    """A part of ``delta_ns``; all parts of a comparison sum to it exactly."""

    kind: Literal["added", "removed", "slower", "faster", "idle", "host"]
    kernel: str
    delta_ns: int


@dataclass(frozen=True)
class Memory:
    """Peaks above what was allocated before the range, in bytes (torch caching allocator)."""

    default_bytes: int | None = None
    deterministic_bytes: int | None = None
    default_reserved_bytes: int | None = None
    deterministic_reserved_bytes: int | None = None
    declared_bytes: int | None = None  # the implementation's own workspace formula
    output_bytes: int | None = None  # what the deterministic implementation returned; the rest of its peak is workspace


@dataclass(frozen=True)
class Work:
    """The least that the range must do, by the op's own formulas: bytes to and from memory, floating-point operations."""

    bytes: int | None = None
    flops: int | None = None


@dataclass(frozen=True)
class Bits:
    """Replays of one deterministic implementation, all its outputs digested each time."""

    replays: int = 0  # runs compared with the first, over all processes
    differing: int = 0
    digest: str = ""  # of the reference run
    default_differing: int | None = None  # the default's differing replays: the sensitivity control
    default_replays: int = 0
    processes: int = 0
    first_difference: str = ""


@dataclass(frozen=True)
class Accuracy:
    """Relative L2 error to the float64 reference, the worst output of each arm; ``None`` where not measured."""

    default: float | None = None
    deterministic: float | None = None
    limit: float | None = None  # the op's own limit, where it sets one


@dataclass(frozen=True)
class BudgetRef:
    """The budget that applied, with its place in the file."""

    range: str
    metric: Metric
    overhead: float  # 0.15 = +15 %
    goal: float | None
    abs_floor_ns: int
    memory_ratio: float | None
    memory_bytes: int | None
    reason: str
    owner: str
    expires: str
    file: str
    line: int
    provisional: bool = False


@dataclass(frozen=True)
class Reason:
    """Why a status is what it is: a code of DESIGN.md's table, a sentence, the next action."""

    code: str
    text: str
    next: str = ""


@dataclass(frozen=True)
class Comparison:
    """One non-default implementation against the default of its op, case and phase: an entry of ``result.json``."""

    op: str
    case: str
    phase: str
    implementation: str
    role: Role
    judged: bool
    racy: bool = False  # the op's default is declared racy: equal kernels in both arms are then NO_EFFECT
    default: ArmFigures | None = None
    deterministic: ArmFigures | None = None
    metric: Metric = "busy"
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_hodges_lehmann: float | None = None
    mde: float | None = None  # minimum detectable effect, as a fraction (0.01 = 1 %)
    blocks: int = 0
    delta_ns: int | None = None
    contributions: tuple[Contribution, ...] = ()
    memory: Memory = field(default_factory=Memory)
    work: Work = field(default_factory=Work)
    bits: Bits = field(default_factory=Bits)
    accuracy: Accuracy = field(default_factory=Accuracy)
    budget: BudgetRef | None = None
    signals: tuple[Reason, ...] = ()  # what compare noticed (MULTIMODAL, DRIFT, ...); judge turns them into reasons
    status: Status = "invalid"
    reasons: tuple[Reason, ...] = ()

    @property
    def range(self) -> str:
        return f"{self.op}:{self.case}:{self.phase}"

    @property
    def name(self) -> str:
        """``op:case:phase:implementation``; a foreign range, which has neither case nor phase, is ``op:implementation``."""
        return f"{self.range if self.case or self.phase else self.op}:{self.implementation}"


@dataclass(frozen=True)
class Exempt:
    """An op that nobody can make deterministic, kept visible."""

    op: str
    reason: str


@dataclass(frozen=True)
class MergedRun:
    """One of the runs that a merged run was made of."""

    id: str
    started: str
    shard: str
    seconds: float
    complete: bool


@dataclass(frozen=True)
class RunInfo:
    id: str
    started: str  # ISO 8601, UTC
    command: str
    mode: str
    profiler: str
    complete: bool
    device: str = ""
    seconds: float = 0.0
    looks: tuple[int, ...] = ()  # the numbers of blocks at which it was to be judged; () where it had no such plan
    shard: str = ""  # "2/5": the second of five parts of a suite; "" the whole
    planned: tuple[str, ...] = ()  # every op:case:phase of all shards, where it is one of several or made of them
    merged: tuple[MergedRun, ...] = ()  # what `perfgate merge` made it of


@dataclass(frozen=True)
class RunVerdict:
    status: Status
    exit_code: int
    counts: dict[str, int]  # pass, fail, inconclusive, invalid, error, skipped over judged comparisons
    text: str = ""
    reasons: tuple[Reason, ...] = ()  # of the run as a whole: NOTHING_MEASURED, INCOMPLETE, PROFILER_FAILED, ...


@dataclass(frozen=True)
class RankFigures:
    """One rank of one arm: ``step_ns`` is the median of its own steps over all unprofiled runs."""

    rank: int
    step_ns: int


@dataclass(frozen=True)
class ProgramArm:
    """What the unprofiled runs of one arm of a program say beside the step's time; ``None`` where not measured."""

    arm: str
    mode: Mode
    runs: int
    ranks: tuple[RankFigures, ...] = ()
    tokens_per_second: float | None = None  # of all ranks, over the max-rank step time
    allocated_bytes: int | None = None  # peaks over the whole process, max over ranks and runs
    reserved_bytes: int | None = None
    metric_values: int | None = None  # compared bit by bit in each run after the first


@dataclass(frozen=True)
class ProgramReport:
    """A run of a program that is not one of our ops: which of its ranges is the step, and how its time was taken."""

    command: str
    step_range: str  # domain:name of the range that is called "step" in the comparisons
    clock: str  # cuda: between CUDA events; host: start to start on the host; nvtx: the same under nsys --trace=nvtx
    steps: int  # that a run took
    window: tuple[int, int]  # of them judged, half-open, from 0
    ranks: int
    arms: tuple[ProgramArm, ...]


@dataclass(frozen=True)
class GateResult:
    """The whole of ``result.json``."""

    run: RunInfo
    environment: dict[str, Any]
    comparisons: tuple[Comparison, ...]
    verdict: RunVerdict
    exempt: tuple[Exempt, ...] = ()
    findings: tuple[Reason, ...] = ()  # budget files, unattributed GPU time, machine warnings
    program: ProgramReport | None = None  # None: the run was of ops
    schema_version: int = SCHEMA_VERSION
