import numpy as np
import pytest

from perfgate import noise
from perfgate.errors import UnusableError, UsageError
from perfgate.model import GateResult, RunInfo, RunVerdict
from tests.unit import arms


def rng():
    return np.random.default_rng(1)


@pytest.mark.parametrize("source", noise.SYNTHETIC, ids=lambda one: one.name)
def test_every_model_draws_the_asked_shape_the_same_again(source):
    first, again = source.draw(rng(), 5, 3, 4), source.draw(rng(), 5, 3, 4)

    assert (5, 3, 4, 2, 2) == first.shape
    assert (first == again).all()


def test_standard_deviation_is_what_the_name_says():
    assert pytest.approx(0.004, rel=0.05) == noise.gaussian(0.004)(rng(), 2000, 1, 2).std()
    assert pytest.approx(0.004, rel=0.15) == noise.heavy_tails(0.004)(rng(), 20000, 1, 2).std()
    apart = noise.gaussian(0.001, 0.01)(rng(), 2000, 1, 2).std((0, 1, 2, 4))
    assert pytest.approx([0.001, 0.01], rel=0.05) == list(apart)


def test_positions_are_abba_then_baab():
    first, second = noise.positions(2)

    assert [[0, 3], [1, 2]] == first.tolist()
    assert [[1, 2], [0, 3]] == second.tolist()


def test_linear_drift_cancels_between_the_arms_and_grows_with_time():
    drawn = noise.drifting(0.0, 0.04)(rng(), 1, 1, 3)[0, 0]

    assert pytest.approx(drawn[:, 1].mean(1)) == drawn[:, 0].mean(1)
    assert pytest.approx(0.11) == drawn.max()


def run_with(blocks, ranges=3, scatter=0.002):
    compared = [
        arms.comparison(
            arms.noisy("old", 100, blocks=blocks, noise=scatter, seed=n),
            arms.noisy("new", 120, blocks=blocks, noise=2 * scatter, seed=100 + n),
            case=f"c{n}",
        )
        for n in range(ranges)
    ]
    info = RunInfo("r1", "2026-11-29T10:00:00+00:00", "perfgate run", "both", "nsys", True, "cuda:0")
    environment = {"gpu": {"name": "NVIDIA H200", "driver": "580"}, "torch": "2.11", "nsys": None}
    return GateResult(info, environment, tuple(compared), RunVerdict("pass", 0, {}))


def test_pool_holds_the_process_medians_of_complete_blocks(tmp_path):
    pool = noise.pool_of(run_with(4))
    pool.write(tmp_path / "pool.json")

    assert noise.Pool.read(tmp_path / "pool.json") == pool
    assert ("NVIDIA H200", "2026-11-29", {"torch": "2.11", "driver": "580"}) == (pool.card, pool.date, pool.versions)
    assert ["moe/combine:c0:fwd", "moe/combine:c1:fwd", "moe/combine:c2:fwd"] == list(pool.ranges)
    assert 4 == len(pool.ranges["moe/combine:c0:fwd"]["default"])
    assert pytest.approx(120_000, rel=0.02) == pool.ranges["moe/combine:c0:fwd"]["deterministic"][0][0]


def test_residuals_keep_the_variance_and_lose_the_effect():
    residuals = noise.pool_of(run_with(50, ranges=2)).residuals

    assert (2, 50, 2, 2) == residuals.shape
    assert pytest.approx(np.zeros((2, 2)), abs=1e-12) == residuals.mean((1, 3))
    assert pytest.approx([0.002, 0.004], rel=0.2) == residuals.std((0, 1, 3))


def test_recorded_noise_draws_whole_blocks_for_all_ranges_at_once():
    pool = noise.pool_of(run_with(4))
    drawn = pool.noise().draw(rng(), 20, 3, 6)
    blocks = {tuple(pool.residuals[:, block].ravel()) for block in range(4)}

    assert (20, 3, 6, 2, 2) == drawn.shape
    assert {tuple(drawn[run, :, block].ravel()) for run in range(20) for block in range(6)} == blocks


def test_short_runs_and_other_files_are_refused(tmp_path):
    with pytest.raises(UnusableError, match="fewer than three complete blocks"):
        noise.pool_of(run_with(2))
    for text in ("{}", "[", '{"source": 1}'):
        with pytest.raises(UsageError, match="holds no noise pool"):
            noise.Pool.read(arms.write(tmp_path, "x.json", text))
    with pytest.raises(UsageError, match="holds no noise pool"):
        noise.recorded([tmp_path / "missing.json"])
