"""Nodes of one program become one run: all ranks are there or it can't pass, and what one node dropped counts on none."""

import json
import shutil

import pytest

from perfgate import gate
from perfgate.config import Config
from perfgate.errors import UnusableError, UsageError
from perfgate.history import history
from perfgate.merge import merge
from perfgate.parts import of_any_node
from perfgate.profilers.spec_file import dump_capture
from perfgate.program.arms import arms_of
from perfgate.program.options import ProgramOptions
from perfgate.program.prepared import Prepared
from perfgate.program.session import ProgramSession
from perfgate.render import FORMATS
from perfgate.sequential import Looks
from perfgate.store import RunDirectory, load_result
from tests.unit.program.programs import BUDGETS, Gate, Launched, Silent, arms, budgets

ENVIRONMENT = {"device": "cuda", "gpu": {"name": "NVIDIA H200"}, "git": {"commit": "a" * 40}}


class Node(Launched):
    """The launcher of one node with two ranks; the world is ``world``."""

    def __init__(self, number, behaviours, world):
        super().__init__(behaviours)
        self.first, self.world = 2 * (number - 1), world

    def capture(self, spec, arm, folder, watched):
        made = super().capture(spec, arm, folder, watched)
        dump_capture(made, folder / "capture.json")
        return made

    def _record(self, file, rank, known, step):
        """The same pids on every node: containers have them."""
        super()._record(file, rank, known, step)
        head, *rest = file.read_text().splitlines()
        file.unlink()
        head = json.dumps(json.loads(head) | {"rank": self.first + rank, "world": self.world})
        (file.parent / f"rank-{self.first + rank}.jsonl").write_text("\n".join([head, *rest]) + "\n")


@pytest.fixture
def run_node(tmp_path):
    """Runs one node's half of the job, three blocks that only time the step; returns its run directory."""

    def ran(number, *, total=2, world=4, environment=None, drop=None, blocks=3, options=(), **behaviours):
        folder = tmp_path / "shared" / f"node{number}"
        (folder / "captures").mkdir(parents=True)
        command = ("torchrun", "--nnodes=2", "--node-rank", str(number - 1), "train.py", *options)
        given = ProgramOptions(command=command, profiled_blocks=0)
        prepared = Prepared(
            config=Config(blocks=blocks, max_blocks=blocks, shard=f"{number}/{total}"),
            options=given,
            arms=arms_of(given),
            device="cuda:0",
            budgets=budgets(tmp_path),
            launcher=Node(number, arms(**behaviours), world),
            looks=Looks.plan(blocks, blocks),
            profiled_blocks=0,
            expected_ranks=world,
            environment=environment or ENVIRONMENT,
            findings=(),
        )
        session = ProgramSession(prepared, RunDirectory(folder), "perfgate run", Silent())
        with session.concluded():
            session.measure()
            if drop is not None:
                session._runs.drop_block(drop, "confirm")
        return folder

    return ran


@pytest.fixture
def join(tmp_path):
    def joined(**options):
        thresholds = str(tmp_path / "budgets.toml")
        options = {"out": str(tmp_path / "merged"), "thresholds": thresholds, **options}
        return merge([tmp_path / "shared"], command="perfgate merge shared", **options).result

    return joined


def step_of(result):
    return next(one for one in result.comparisons if one.op == "step")


def test_the_slowest_rank_of_all_nodes_decides(run_node, join, tmp_path):
    run_node(1)
    run_node(2, default={"step": 3_000_000}, deterministic={"step": 3_100_000})
    found = join()

    assert (0, True, 4) == (found.verdict.exit_code, found.run.complete, found.program.ranks)
    assert 1.033 == pytest.approx(step_of(found).ratio, abs=0.003)  # 1 on node 1
    assert [0, 1, 2, 3] == [one.rank for one in found.program.arms[0].ranks]
    assert ["1/2", "2/2"] == [one.shard for one in found.run.merged]
    assert ("merged", "") == (found.run.id, found.run.shard)
    assert found == load_result(tmp_path / "merged")


def test_tokens_are_those_of_all_ranks(run_node, join):
    alone = load_result(run_node(1)).program.arms[0].tokens_per_second
    run_node(2)

    assert 2 * alone == pytest.approx(join().program.arms[0].tokens_per_second, rel=0.01)


def test_a_node_alone_asks_for_its_own_ranks_and_says_that_it_is_a_part(run_node):
    found = load_result(run_node(2))

    assert (0, "2/2", 2) == (found.verdict.exit_code, found.run.shard, found.program.ranks)
    assert "Node 2/2: 2 ranks of the job" in FORMATS["html"](found)


def test_a_missing_node_can_never_pass(run_node, join, tmp_path):
    run_node(1)
    found = join(on_inconclusive="pass")

    assert (5, False) == (found.verdict.exit_code, found.run.complete)
    assert "node 2/2 is missing" in found.verdict.text
    assert 5 == gate.check(tmp_path / "merged", thresholds=str(tmp_path / "budgets.toml")).verdict.exit_code


def test_ranks_that_no_node_shows_are_named_and_nothing_is_written(run_node, join, tmp_path):
    run_node(1, world=6)
    run_node(2, world=6)

    with pytest.raises(UnusableError, match=r"4 of 6 ranks show steps \(not rank 4, 5\)"):
        join()
    assert not (tmp_path / "merged").exists()


def test_the_same_ranks_on_two_nodes_are_refused(run_node, join, tmp_path):
    first = run_node(1)
    second = run_node(2)
    for theirs in first.glob("captures/*/program/steps/*.jsonl"):
        ours = second / theirs.relative_to(first).parent
        for file in ours.glob("rank-[23].jsonl"):
            file.unlink()
        shutil.copy(theirs, ours)

    with pytest.raises(UnusableError, match=r"two processes .* recorded steps as rank"):
        join()


def test_nodes_with_unequally_many_steps(run_node, join):
    run_node(1)
    run_node(2, default={"steps": 13}, deterministic={"steps": 13})

    with pytest.raises(UnusableError, match="unequally many steps"):
        join()


def test_a_block_that_one_node_dropped_counts_on_none(run_node, join):
    run_node(1)
    run_node(2, drop=1)
    found = join()

    assert {0, 2} == {one.block for one in step_of(found).default.samples}
    assert 2 == step_of(found).blocks


def test_a_node_that_failed_makes_the_whole_fail(run_node, join):
    run_node(1)
    failed = run_node(2)
    result = json.loads((failed / "result.json").read_text())
    result["run"]["complete"] = False
    result["findings"].append({"code": "WORKLOAD_FAILED", "text": "arm default: out of memory", "next": ""})
    (failed / "result.json").write_text(json.dumps(result))
    found = join()

    assert (6, False) == (found.verdict.exit_code, found.run.complete)
    assert "node 2/2: arm default: out of memory" in found.verdict.text


def test_metrics_that_differ_on_any_node_differ(run_node, join):
    run_node(1)
    run_node(2, deterministic={"loss": 1.0, "loss_differs_in": (2,)}, default={"loss": 1.0})
    bits = step_of(join()).bits

    assert (5, 1, 6, 0) == (bits.replays, bits.differing, bits.processes, bits.default_differing)


def test_equal_metrics_of_one_node_are_told(run_node, join):
    run_node(1, deterministic={"loss": 1.0}, default={"loss": 1.0})
    run_node(2)
    found = join()

    assert (5, 0) == (step_of(found).bits.replays, step_of(found).bits.differing)
    assert any(one.code == "METRICS_EQUAL" for one in found.findings)


def test_another_command_is_refused_but_not_another_node_rank(run_node, join):
    run_node(1)
    run_node(2, options=("--lr", "1"))

    with pytest.raises(UsageError, match="differ in option command"):
        join()


@pytest.mark.parametrize(
    "command",
    [
        ("torchrun", "--node-rank", "1", "train.py"),
        ("torchrun", "--node_rank=3", "train.py"),
        ("torchrun", "--local-addr=10.0.0.7", "train.py"),
        ("torchrun", "train.py"),
    ],
)
def test_what_names_the_node_is_no_difference(command):
    assert ["torchrun", "train.py"] == of_any_node(command)


def test_unlike_nodes_are_refused(run_node, join):
    run_node(1)
    run_node(2, environment=ENVIRONMENT | {"torch": "2.12.0"})

    with pytest.raises(UnusableError, match="unlike machines: torch"):
        join()


def test_other_budgets_are_refused_and_nothing_stays(run_node, join, tmp_path):
    run_node(1)
    run_node(2)
    (tmp_path / "looser.toml").write_text(BUDGETS.replace('"10%"', '"20%"'))

    with pytest.raises(UsageError, match=r"step::: its budget's overhead was 0\.1"):
        join(thresholds=str(tmp_path / "looser.toml"))
    assert not (tmp_path / "merged").exists()


def test_ranks_of_nodes_that_share_pids_are_numbered_by_their_traces(tmp_path, monkeypatch):
    class SamePids(Launched):
        def _record(self, file, rank, known, step):
            super()._record(file, rank, known, step)
            file.write_text(file.read_text().replace(f'"pid": {rank + 1}', '"pid": 7'))

    run = Gate(tmp_path, monkeypatch, SamePids(arms()))
    run.run()

    assert {(0, 1)} == {one.ranks for arm in run.session._runs.arms.values() for one in arm.profiled}


def test_history_and_check_read_the_merged_run(run_node, join, tmp_path):
    run_node(1)
    run_node(2)
    found = join()
    seen = history([load_result(one.parent) for one in sorted(tmp_path.rglob("result.json"))])
    checked = gate.check(tmp_path / "merged", thresholds=str(tmp_path / "budgets.toml"))

    assert (1, 1) == (seen.runs, len(seen.series))
    assert seen.series[0].range.startswith("step")
    assert found.verdict == checked.verdict
