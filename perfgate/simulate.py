"""The decision rule on noise of known truth: how often it fails or passes falsely, what it finds, how many blocks it takes.

The very rule of ``judge`` runs here: :mod:`perfgate.estimate` and :mod:`perfgate.sequential`. Beside it, on the same noise, the
naive rules that peers use. Three truths: exactly at the budget, where both errors are most likely; 1 % below; 2 % above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from perfgate.estimate import Estimate, FloatArray, unpaired
from perfgate.noise import SYNTHETIC, Noise
from perfgate.sequential import FAIL, PASS, UNDECIDED, IntArray, Looks, decide

BUDGET = 0.15
EXCESS = 0.02  # what must be found
BELOW = 0.01
SHOWN_NAIVE = ("H200, 0.4 % between processes", "linear drift of 0.5 % per block, 0.2 %")
NAIVE_RUNS = 400  # enough to see errors of tens of per cent; they are the first of perfgate's own
CHUNK = 200  # runs at a time: 48 x 48 pairs x 20 ranges x 8 bytes each


@dataclass(frozen=True)
class Rate:
    """A proportion with its two-sided 95 % Clopper-Pearson bounds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: float, trials: int) -> Rate:
        """``hits`` may be a fraction (a mean over ranges): the bounds then treat the runs as the only trials."""
        low = 0.0 if hits <= 0 else float(special.betaincinv(hits, trials - hits + 1, 0.025))
        high = 1.0 if hits >= trials else float(special.betaincinv(hits + 1, trials - hits, 0.975))
        return cls(hits / trials, low, high)


@dataclass(frozen=True)
class Outcome:
    """What one rule came to on one noise. ``None``: not promised there."""

    rule: str
    scenario: str
    false_fail: Rate  # any of the run's ranges fails, all of them exactly at the budget
    false_fail_below: Rate  # the same with all of them 1 % below it
    false_pass: Rate  # a range passes, (just above) the budget
    power: Rate | None  # a range 2 % over the budget fails
    blocks: float | None  # a range's mean number of blocks until its decision, at 2 % over

    def as_json(self) -> dict[str, object]:
        """Plain numbers; what does not apply is left out."""
        content: dict[str, object] = {"scenario": self.scenario, "rule": self.rule}
        for name in ("false_fail", "false_fail_below", "false_pass", "power"):
            rate: Rate | None = getattr(self, name)
            if rate is not None:
                content |= {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
        return content if self.blocks is None else content | {"blocks": self.blocks}


@dataclass(frozen=True)
class Simulation:
    runs: int
    seed: int
    looks: Looks
    perfgate: tuple[Outcome, ...]
    naive: tuple[Outcome, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "runs": self.runs,
            "seed": self.seed,
            "budget": BUDGET,
            "looks": list(self.looks.at),
            "perfgate": [one.as_json() for one in self.perfgate],
            "naive": [one.as_json() for one in self.naive],
        }


# (noise, true log ratio, generator) -> outcomes and numbers of blocks, each (runs, ranges)
Rule = Callable[[FloatArray, float, np.random.Generator], tuple[IntArray, IntArray]]


def simulate(recorded: Sequence[Noise] = (), *, runs: int = 1000, seed: int = 0, looks: Looks | None = None) -> Simulation:
    """The whole table: perfgate's rule on every noise, the naive ones on an H200's and on what was recorded."""
    looks = looks or Looks()
    rule = perfgate_rule(looks)
    own = [try_rule("perfgate", rule, noise, looks, runs, seed) for noise in (*SYNTHETIC, *recorded)]
    plain = [one for one in SYNTHETIC if one.name in SHOWN_NAIVE]
    naive = [
        try_rule(name, naive_rule, noise, looks, min(runs, NAIVE_RUNS), seed)
        for noise in (*plain, *recorded)
        for name, naive_rule in NAIVE.items()
    ]
    return Simulation(runs, seed, looks, tuple(own), tuple(naive))


def try_rule(name: str, rule: Rule, noise: Noise, looks: Looks, runs: int, seed: int) -> Outcome:
    """One rule on one noise, at the three truths, on the same draws for every rule."""
    at = _run(rule, noise, 1 + BUDGET, looks, runs, seed)[0]
    below = _run(rule, noise, (1 + BUDGET) * (1 - BELOW), looks, runs, seed + 1)[0]
    over, blocks = _run(rule, noise, (1 + BUDGET) * (1 + EXCESS), looks, runs, seed + 2)
    return Outcome(
        rule=name,
        scenario=noise.name,
        false_fail=Rate.of(int((at == FAIL).any(1).sum()), runs),
        false_fail_below=Rate.of(int((below == FAIL).any(1).sum()), runs),
        false_pass=Rate.of(float((at == PASS).mean() * runs), runs),
        power=Rate.of(float((over == FAIL).mean() * runs), runs) if noise.promised or name != "perfgate" else None,
        blocks=float(blocks.mean()),
    )


def _run(rule: Rule, noise: Noise, ratio: float, looks: Looks, runs: int, seed: int) -> tuple[IntArray, IntArray]:
    """Outcomes and blocks, each (runs, ranges), at one true ratio."""
    rng = np.random.default_rng([seed, crc32(noise.name.encode())])
    parts = []
    for start in range(0, runs, CHUNK):
        drawn = noise.draw(rng, min(CHUNK, runs - start), noise.ranges, looks.at[-1])
        parts.append(rule(drawn, math.log(ratio), rng))
    return np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts])


def perfgate_rule(looks: Looks) -> Rule:
    """Looks with alpha spending, Holm over the ranges, three outcomes."""

    def rule(noise: FloatArray, ratio: float, _: np.random.Generator) -> tuple[IntArray, IntArray]:
        logs = noise + np.array([0.0, ratio])[:, None]
        outcomes = np.full(logs.shape[:2], UNDECIDED)
        blocks = np.full(logs.shape[:2], looks.at[-1])
        before = 0
        for look in looks.at:
            if (outcomes != UNDECIDED).all():
                break
            evidence = _evidence(logs, look, outcomes)
            for run in range(logs.shape[0]):
                undecided = np.flatnonzero(outcomes[run] == UNDECIDED)
                if undecided.size:
                    outcomes[run, undecided] = _look(evidence, run, undecided, outcomes[run], looks.level(look, before))
                    blocks[run, undecided[outcomes[run, undecided] != UNDECIDED]] = look
            before = look
        return outcomes, blocks

    return rule


def _look(evidence: Estimate, run: int, undecided: IntArray, outcomes: IntArray, alpha: float) -> IntArray:
    part = Estimate(*(getattr(evidence, name)[run, undecided] for name in Estimate.__dataclass_fields__))
    budget = np.full(undecided.size, math.log1p(BUDGET))
    failed = int((outcomes == FAIL).sum())
    return decide(part, budget, budget, alpha=alpha, family=outcomes.size, failed=failed)[0]


def _evidence(logs: FloatArray, blocks: int, outcomes: IntArray) -> Estimate:
    """Estimates (runs, ranges) from the first ``blocks`` blocks; ranges that are decided are left out (nan)."""
    open_ranges = outcomes == UNDECIDED
    chosen = logs[open_ranges][:, :blocks]
    found = unpaired(chosen[:, :, 0].reshape(len(chosen), -1), chosen[:, :, 1].reshape(len(chosen), -1))

    def spread(values: FloatArray) -> FloatArray:
        whole = np.full(outcomes.shape, np.nan)
        whole[open_ranges] = values
        return whole

    return Estimate(*(spread(getattr(found, name)) for name in Estimate.__dataclass_fields__))


def _one_process(noise: FloatArray, ratio: float, _: np.random.Generator) -> tuple[IntArray, IntArray]:
    """One process per arm, one after the other; over budget or not."""
    found = ratio + noise[:, :, 0, 1, 0] - noise[:, :, 0, 0, 0]
    return _over_or_not(found > math.log1p(BUDGET), blocks=1)


def _welch_on_iterations(noise: FloatArray, ratio: float, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Thirty iterations (0.5 % apart) of one process per arm, Welch's t; "not significant" passes."""
    arms = noise[:, :, 0, :, 0, None] + 0.005 * rng.standard_normal((*noise.shape[:2], 2, 30))
    return _over_or_not(_welch(arms[:, :, 0], arms[:, :, 1] + ratio, FAIL), blocks=1)


def _all_a_then_all_b(noise: FloatArray, ratio: float, _: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Twelve processes of A, then twelve of B, Welch's t per range; "not significant" passes."""
    first, second = (part.reshape(*noise.shape[:2], -1) for part in (noise[:, :, :3], noise[:, :, 3:6]))
    return _over_or_not(_welch(first, second + ratio, FAIL), blocks=6)


def _until_significant(noise: FloatArray, ratio: float, _: np.random.Generator) -> tuple[IntArray, IntArray]:
    """ABBA, but 5 % at every look and for every range, until something is significant; undecided passes."""
    outcomes, blocks = np.full(noise.shape[:2], UNDECIDED), np.full(noise.shape[:2], noise.shape[2])
    for look in Looks().at:
        first, second = (noise[:, :, :look, arm].reshape(*noise.shape[:2], -1) for arm in (0, 1))
        for outcome in (FAIL, PASS):
            new = _welch(first, second + ratio, outcome) & (outcomes == UNDECIDED)
            outcomes[new], blocks[new] = outcome, look
    return np.where(outcomes == UNDECIDED, PASS, outcomes), blocks


def _welch(first: FloatArray, second: FloatArray, outcome: int) -> npt.NDArray[np.bool_]:
    """Where Welch's t finds the ratio above (FAIL) or below (PASS) the budget at 5 %."""
    test = stats.ttest_ind(second - math.log1p(BUDGET), first, axis=-1, equal_var=False)
    t = np.asarray(test.statistic) * outcome
    return np.asarray(special.stdtr(test.df, -t) <= 0.05)


def _over_or_not(over: npt.NDArray[np.bool_], blocks: int) -> tuple[IntArray, IntArray]:
    return np.where(over, FAIL, PASS), np.full(over.shape, blocks)


NAIVE: dict[str, Rule] = {
    "one process per arm, ratio against budget": _one_process,
    "one process per arm, Welch on iterations": _welch_on_iterations,
    "all A, then all B, Welch on processes": _all_a_then_all_b,
    "ABBA, 5 % at every look and range": _until_significant,
}
