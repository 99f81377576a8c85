"""What processes differ by: noise models, and noise recorded in stored runs, to try the decision rule on.

A *draw* has the shape (runs, ranges, blocks, 2 arms, 2 processes) and holds logarithms of process medians around 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from perfgate.compare import complete_blocks, values_of
from perfgate.errors import UnusableError, UsageError
from perfgate.estimate import FloatArray
from perfgate.model import Comparison, GateResult, Metric

Draw = Callable[[np.random.Generator, int, int, int], FloatArray]
# position of (arm, process) inside a block: A B B A, then B A A B
_EVEN, _ODD = np.array([[0, 3], [1, 2]]), np.array([[1, 2], [0, 3]])


@dataclass(frozen=True)
class Noise:
    """A named source of draws. ``promised``: 2 % over budget must be found with 95 % probability at this noise."""

    name: str
    draw: Draw
    promised: bool = True
    ranges: int = 20


def gaussian(sigma: float, other: float | None = None) -> Draw:
    """Independent processes with relative standard deviation ``sigma``, in the second arm ``other``."""
    scale = np.array([sigma, sigma if other is None else other])[:, None]
    return lambda rng, *shape: rng.standard_normal((*shape, 2, 2)) * scale


def heavy_tails(sigma: float) -> Draw:
    """Student's t with 3 degrees of freedom, scaled to the standard deviation ``sigma``."""
    return lambda rng, *shape: rng.standard_t(3, (*shape, 2, 2)) * (sigma / np.sqrt(3))


def drifting(sigma: float, per_block: float) -> Draw:
    """:func:`gaussian` on top of a drift that is linear in time, ``per_block`` from one block to the next."""

    def draw(rng: np.random.Generator, runs: int, ranges: int, blocks: int) -> FloatArray:
        steps = (4 * np.arange(blocks)[:, None, None] + positions(blocks)) * (per_block / 4)
        return rng.standard_normal((runs, ranges, blocks, 2, 2)) * sigma + steps

    return draw


def wandering(sigma: float) -> Draw:
    """A random walk of steps ``sigma`` from process to process, the same for all ranges of a process, and noise ``sigma``."""

    def draw(rng: np.random.Generator, runs: int, ranges: int, blocks: int) -> FloatArray:
        walk = np.cumsum(rng.standard_normal((runs, 1, 4 * blocks)) * sigma, -1)
        shared = walk[..., 4 * np.arange(blocks)[:, None, None] + positions(blocks)]
        return rng.standard_normal((runs, ranges, blocks, 2, 2)) * sigma + shared

    return draw


def two_modes(sigma: float, share: float, apart: float) -> Draw:
    """A ``share`` of the processes of both arms runs ``apart`` slower."""

    def draw(rng: np.random.Generator, *shape: int) -> FloatArray:
        slow = rng.random((*shape, 2, 2)) < share
        return rng.standard_normal((*shape, 2, 2)) * sigma + slow * apart

    return draw


def positions(blocks: int) -> FloatArray:
    """The place in time (0..3) of each process of ``blocks`` blocks: (blocks, 2, 2)."""
    return np.array([_EVEN if block % 2 == 0 else _ODD for block in range(blocks)])


SYNTHETIC = (
    Noise("H200, 0.1 % between processes", gaussian(0.001)),
    Noise("H200, 0.4 % between processes", gaussian(0.004)),
    Noise("one arm ten times as noisy (0.4 %)", gaussian(0.0004, 0.004)),
    Noise("heavy tails, 0.4 %", heavy_tails(0.004)),
    Noise("linear drift of 0.5 % per block, 0.2 %", drifting(0.002, 0.005)),
    Noise("clocks that wander, 0.2 %", wandering(0.002)),
    Noise("a quarter of the processes 2 % slower", two_modes(0.001, 0.25, 0.02), promised=False),
    Noise("CPU, 3 % between processes", gaussian(0.03), promised=False),
)


@dataclass(frozen=True)
class Pool:
    """Process medians of a real run: per range and arm, per block, the two processes' medians in ns."""

    source: str
    card: str
    date: str
    command: str
    versions: dict[str, str]
    metric: Metric
    ranges: dict[str, dict[str, list[list[float]]]]

    def write(self, path: Path) -> None:
        """Stores the pool as compact JSON, one range a line."""
        content = asdict(self)
        ranges = content.pop("ranges")
        lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(arms)}" for name, arms in ranges.items())
        path.write_text(json.dumps(content, indent=1)[:-2] + f',\n "ranges": {{\n  {lines}\n }}\n}}\n')

    @classmethod
    def read(cls, path: Path) -> Pool:
        """Raises :class:`UsageError` where ``path`` holds no pool."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} holds no noise pool: {error}", "tests/gpu/noise_pool.py writes one") from error

    @property
    def residuals(self) -> FloatArray:
        """(ranges, blocks, 2, 2): log medians less the mean of their range and arm, scaled to the unbiased variance."""
        logs = np.log([[arms[arm] for arm in ("default", "deterministic")] for arms in self.ranges.values()])
        count = logs.shape[2] * logs.shape[3]
        centred = (logs - logs.mean((2, 3), keepdims=True)) * np.sqrt(count / (count - 1))
        return np.asarray(centred.transpose(0, 2, 1, 3))

    def noise(self) -> Noise:
        """The pool as a source of draws: whole blocks drawn with replacement, for all ranges at once."""
        residuals = self.residuals
        ranges, blocks = residuals.shape[:2]

        def draw(rng: np.random.Generator, runs: int, ranges: int, wanted: int) -> FloatArray:
            chosen = rng.integers(blocks, size=(runs, wanted))
            return np.asarray(residuals[:ranges, chosen].transpose(1, 0, 2, 3, 4))

        return Noise(f"recorded: {self.card}, {blocks} blocks of {ranges} ranges ({self.source})", draw, ranges=ranges)


def pool_of(result: GateResult) -> Pool:
    """The process medians of a run's judged comparisons, those with the same number of complete blocks.

    Raises :class:`UnusableError` where fewer than three blocks are there.
    """
    found = {}
    judged = [one for one in result.comparisons if one.judged]
    for one in judged:
        medians = _medians(one)
        if medians:
            found[one.range] = medians
    most = max((len(arms["default"]) for arms in found.values()), default=0)
    if most < 3:
        raise UnusableError(f"run {result.run.id} holds fewer than three complete blocks", "record it with --blocks 12")
    environment = result.environment
    gpu = environment.get("gpu") or {}
    versions = {name: str(environment[name]) for name in ("torch", "triton", "nsys", "cuda") if environment.get(name)}
    if gpu.get("driver"):
        versions["driver"] = str(gpu["driver"])
    return Pool(
        source=result.run.id,
        card=str(gpu.get("name") or result.run.device),
        date=result.run.started[:10],
        command=result.run.command,
        versions=versions,
        metric=judged[0].metric,
        ranges={name: arms for name, arms in found.items() if len(arms["default"]) == most},
    )


def _medians(one: Comparison) -> dict[str, list[list[float]]] | None:
    if one.default is None or one.deterministic is None:
        return None
    pair = complete_blocks(one.default, one.deterministic, one.metric)
    found: dict[str, list[list[float]]] = {}
    for name, figures in zip(("default", "deterministic"), pair, strict=True):
        by_block: dict[int, list[float]] = {}
        for sample in values_of(figures, one.metric):
            by_block.setdefault(sample.block, []).append(float(np.median(getattr(sample, f"{one.metric}_ns"))))
        found[name] = list(by_block.values())
    whole = all(len(block) == 2 and min(block) > 0 for blocks in found.values() for block in blocks)
    return found if whole and found["default"] else None


def recorded(paths: Sequence[Path]) -> list[Noise]:
    """Noise of stored runs (directories or result.json) and of pools (other JSON files).

    Raises :class:`UsageError` for what is neither.
    """
    from perfgate.store import load_result

    found = []
    for path in paths:
        run = path.is_dir() or path.name == "result.json"
        found.append((pool_of(load_result(path)) if run else Pool.read(path)).noise())
    return found
