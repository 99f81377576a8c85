"""Programs of several ranks under a real nsys: what perfgate says is what the programs timed themselves.

One block each, so a verdict may stay undecided; asserted is whose time counts, what fails and what is left behind, and never
an absolute time.
"""

import json
import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from perfgate.config import Config
from perfgate.model import RunSpec, Variant
from perfgate.program.evidence import Runs
from perfgate.program.options import ProgramOptions
from perfgate.program.prepared import prepare
from perfgate.render.json import loads
from tests.functional.cli import DATA, ROOT, UNLESS_NOISY, perfgate

pytestmark = pytest.mark.nsys

PROGRAMS = DATA / "programs"
SLACK_NS = 50_000  # nsys reads another clock than the program, converted once per report


def run(out, *program, options=(), cwd=PROGRAMS):
    return perfgate(
        "run", "--mode", "both", "--device", "cpu", "--thresholds", PROGRAMS / "budgets.toml", "--blocks", "1",
        "--steps", "1:6", "--out", out, *options, "--", *program, cwd=cwd, OMP_NUM_THREADS="1",
    )  # fmt: skip


def ranks(out, *arguments, options=(), launcher=("python",)):
    return run(out, *launcher, "ranks.py", *arguments, options=options)


def result(out):
    return loads((out / "result.json").read_text())


def told(out, code):
    """The texts of the result's findings with a code."""
    return [one.text for one in result(out).findings if one.code == code]


def timed(out, capture):
    """What the ranks of one run timed themselves: rank -> steps of [begin, end, work before, begin, end, after]."""
    folder = out / "captures" / capture / "program"
    return {int(path.stem[6:]): json.loads(path.read_text()) for path in folder.glob("timed-*.json")}


def walls(steps):
    """Per step but the first and last, the shortest and longest that it can have taken from its start to the next one's."""
    return [
        (step[1] - step[0], later[0] - earlier[1])
        for (earlier, step), (_, later) in zip(pairwise(steps), pairwise(steps[1:]), strict=False)
    ]


def ended(pids):
    """Whether none of these processes runs any more."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A finished run of four ranks of which rank 2 works eight times as long; steps recorded by our helper."""
    out = tmp_path_factory.mktemp("slow") / "run"
    return ranks(out, "--ranks", "4", "--slow-rank", "2", options=("--match", "work")), out


def test_the_slow_rank_decides_each_step_as_the_program_timed_it(slow):
    done, out = slow
    step = next(one for one in result(out).comparisons if one.op == "step")
    samples = [one for arm in (step.default, step.deterministic) for one in arm.samples if one.step_wall_ns]

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert 4 == len(samples)
    for sample in samples:
        own = [walls(steps) for _, steps in sorted(timed(out, sample.capture).items())]
        assert 4 == len(own)
        for measured, every in zip(sample.step_wall_ns, zip(*own, strict=True), strict=False):
            assert max(least for least, _ in every) <= measured <= max(most for _, most in every)


def test_a_range_has_the_largest_time_over_the_ranks_in_each_step(slow):
    _, out = slow
    work = next(one for one in result(out).comparisons if one.op == "work")

    assert work.judged
    for sample in (*work.default.samples, *work.deterministic.samples):
        own = timed(out, sample.capture)
        for number, measured in enumerate(sample.host_ns, start=1):
            inside = max(steps[number][4] - steps[number][3] for steps in own.values())
            outside = max(steps[number][5] - steps[number][2] for steps in own.values())
            assert inside - SLACK_NS <= measured <= outside + SLACK_NS


def test_the_straggler_is_named_and_throughput_is_over_the_slowest_rank(slow):
    _, out = slow
    program = result(out).program
    step = next(one for one in result(out).comparisons if one.op == "step")
    samples = [one for one in step.default.samples if one.step_wall_ns]
    walls_ns = [wall for one in samples for wall in one.step_wall_ns]
    default = next(one for one in program.arms if one.arm == "default")

    assert (4, 6, (1, 6), "host") == (program.ranks, program.steps, program.window, program.clock)
    assert 2 == max(default.ranks, key=lambda one: one.step_ns).rank
    for one in default.ranks:
        own = [wall for sample in samples for wall in walls(timed(out, sample.capture)[one.rank])]
        assert median(least for least, _ in own) <= one.step_ns <= median(most for _, most in own)
    assert all("slowest is rank 2" in text for text in told(out, "RANKS"))
    assert 40 / max(walls_ns) * 1e9 <= default.tokens_per_second <= 40 / min(walls_ns) * 1e9
    assert any("rank 2 is the slowest in work" in text for text in told(out, "STRAGGLER"))


def test_a_rank_that_dies_ends_the_run_with_its_last_words(tmp_path):
    done = ranks(tmp_path / "run", "--ranks", "3", "--dying-rank", "1")

    assert 6 == done.returncode, done.stdout
    assert "arm default: the program failed with exit status 1" in told(tmp_path / "run", "WORKLOAD_FAILED")[0]
    assert "rank 1 died with -9" in told(tmp_path / "run", "WORKLOAD_FAILED")[0]
    assert not result(tmp_path / "run").run.complete


@pytest.mark.parametrize("profiled", ["1", "0"])
def test_a_rank_whose_death_the_launcher_hides_is_no_pass(tmp_path, profiled):
    done = ranks(tmp_path / "run", "--ranks", "3", "--dying-rank", "1", "--unnoticed", options=("--profiled-blocks", profiled))

    assert 6 == done.returncode, done.stdout
    assert "rank-1 ended before its record of steps did" in told(tmp_path / "run", "WORKLOAD_FAILED")[0]


def test_a_rank_without_ranges_is_missed_by_its_number(tmp_path):
    done = ranks(tmp_path / "run", "--ranks", "3", "--silent-rank", "1")
    text = told(tmp_path / "run", "NOTHING_MEASURED")[0]

    assert 5 == done.returncode, done.stdout
    assert "2 of 3 ranks show" in text
    assert "not rank 1" in text


def test_a_hanging_rank_is_ended_with_all_others(tmp_path):
    done = ranks(tmp_path / "run", "--ranks", "3", "--hanging-rank", "2", options=("--timeout", "5"))
    text = told(tmp_path / "run", "WORKLOAD_FAILED")[0]
    pids = json.loads(next((tmp_path / "run").glob("captures/*/program/pids.json")).read_text())

    assert 6 == done.returncode, done.stdout
    assert "did not end within 5 s" in text
    assert "raise --timeout" in text
    assert 4 == len(pids)
    assert ended(pids)


def test_a_program_that_fails_in_one_arm_only(tmp_path):
    done = ranks(tmp_path / "run", options=("--mode-args", "deterministic=--exit-status 3"))
    text = told(tmp_path / "run", "WORKLOAD_FAILED")[0]

    assert 6 == done.returncode, done.stdout
    assert "arm deterministic: the program failed with exit status 3" in text
    assert ["time-b00-0-default", "time-b00-1-deterministic"] == sorted(os.listdir(tmp_path / "run" / "captures"))


def test_ranks_that_mark_their_steps_themselves_are_timed_under_nsys(tmp_path):
    done = ranks(tmp_path / "run", "--no-helper", "--slow-rank", "1", options=("--profiled-blocks", "0"))
    step = next(one for one in result(tmp_path / "run").comparisons if one.op == "step")

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert ("nvtx", 2) == (result(tmp_path / "run").program.clock, result(tmp_path / "run").program.ranks)
    for sample in (*step.default.samples, *step.deterministic.samples):
        own = [walls(steps) for _, steps in sorted(timed(tmp_path / "run", sample.capture).items())]
        for measured, every in zip(sample.step_wall_ns, zip(*own, strict=True), strict=False):
            assert max(least for least, _ in every) - SLACK_NS <= measured <= max(most for _, most in every) + SLACK_NS


def test_a_script_that_never_saw_perfgate_is_gated_as_it_is(tmp_path):
    done = run(
        tmp_path / "run", "python", "gpt.py",
        options=("--step-range", "iteration", "--match", "^(forward|backward|optimizer)$"),
    )  # fmt: skip
    found = result(tmp_path / "run")
    judged = {one.op: one for one in found.comparisons if one.judged}
    attention = next(one for one in found.comparisons if one.op == "attention").default

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert {"step", "forward", "backward", "optimizer"} == set(judged)
    assert (1, 8, "iteration", "nvtx") == shape_of(found)
    for sample in judged["forward"].default.samples:
        part = next(one for one in attention.samples if one.capture == sample.capture)
        assert 5 == len(sample.host_ns)
        assert all(inside < whole for inside, whole in zip(part.host_ns, sample.host_ns, strict=True))
    assert "perfgate" not in (PROGRAMS / "gpt.py").read_text()


def test_the_same_script_on_two_torchrun_ranks(tmp_path):
    done = run(
        tmp_path / "run", "torchrun", "--nproc-per-node=2", "gpt.py",
        options=("--step-range", "iteration", "--profiled-blocks", "0"),
    )  # fmt: skip
    found = result(tmp_path / "run")
    step = next(one for one in found.comparisons if one.op == "step")

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert (2, 8, "iteration", "nvtx") == shape_of(found)
    assert [5] * 4 == [len(one.step_wall_ns) for one in (*step.default.samples, *step.deterministic.samples)]


def shape_of(found):
    program = found.program
    return program.ranks, program.steps, program.step_range, program.clock


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """The runs of a job's two nodes, two ranks each, of which rank 3 is slow, in a folder that they share."""
    shared = tmp_path_factory.mktemp("shared")
    finished = [
        ranks(
            shared / f"node{node}", "--nodes", "2", "--node-rank", str(node), "--slow-rank", "3",
            options=("--match", "work", "--shard", f"{node + 1}/2"),
        )
        for node in (0, 1)
    ]  # fmt: skip
    return shared, finished


def merge(out, *runs):
    return perfgate("merge", *runs, "--out", out, "--thresholds", PROGRAMS / "budgets.toml")


def test_the_nodes_of_a_job_are_merged_into_the_slowest_rank_of_all(nodes, tmp_path):
    shared, finished = nodes
    assert all(done.returncode in UNLESS_NOISY for done in finished), finished
    done = merge(tmp_path / "merged", shared)
    found = result(tmp_path / "merged")
    step, work = (next(one for one in found.comparisons if one.op == name) for name in ("step", "work"))
    samples = [one for arm in (step.default, step.deterministic) for one in arm.samples if one.step_wall_ns]

    assert done.returncode in UNLESS_NOISY, done.stdout + done.stderr
    assert (True, ["1/2", "2/2"]) == (found.run.complete, [one.shard for one in found.run.merged])
    assert (4, [0, 1, 2, 3]) == (found.program.ranks, [one.rank for one in found.program.arms[0].ranks])
    assert 4 == len(samples)
    for sample in samples:
        own = [walls(steps) for node in (0, 1) for steps in timed(shared / f"node{node}", sample.capture).values()]
        assert 4 == len(own)
        for measured, every in zip(sample.step_wall_ns, zip(*own, strict=True), strict=False):
            assert max(least for least, _ in every) <= measured <= max(most for _, most in every)
    for sample in work.default.samples:
        own = [steps for node in (0, 1) for steps in timed(shared / f"node{node}", sample.capture).values()]
        for number, measured in enumerate(sample.host_ns, start=1):
            assert max(steps[number][4] - steps[number][3] for steps in own) - SLACK_NS <= measured
    assert "slowest is rank 3" in told(tmp_path / "merged", "RANKS")[0]
    checked = perfgate("check", tmp_path / "merged", "--thresholds", PROGRAMS / "budgets.toml")
    assert done.returncode == checked.returncode


def test_a_job_without_one_of_its_nodes_can_never_pass(nodes, tmp_path):
    shared, _ = nodes
    done = merge(tmp_path / "half", shared / "node0")

    assert 5 == done.returncode, done.stdout
    assert "node 2/2 is missing" in told(tmp_path / "half", "INCOMPLETE")[0]
    assert not result(tmp_path / "half").run.complete


TORCHRUN = ("torchrun", "--nproc-per-node")
IN_EACH_RANK = ("--no-python", "python", "-m", "perfgate.program.rank", "--", "python")


@pytest.mark.parametrize(
    "command",
    [(*TORCHRUN, "2", "gloo.py", "1", "5"), (*TORCHRUN, "4", *IN_EACH_RANK, "gloo.py", "2", "5")],
    ids=["two ranks under one nsys", "four ranks with an nsys each"],
)
def test_the_slow_rank_of_a_gloo_job_decides_each_step(tmp_path, monkeypatch, command):
    """One run of one arm: importing torch in every rank is what these tests cost."""
    monkeypatch.chdir(PROGRAMS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = ProgramOptions(command=command, steps="1:5", per_rank="perfgate.program.rank" in command)
    prepared = prepare(Config(device="cpu", blocks=1, thresholds="budgets.toml", timeout=200), options)
    spec = RunSpec("time-b00-0-default", "time", "default", (Variant("step", "", "", "default", "default"),), "cpu")
    (tmp_path / "captures" / spec.id).mkdir(parents=True)
    capture = prepared.launcher.capture(spec, prepared.arms[0], tmp_path / "captures" / spec.id, "gpu")
    assert capture.complete, capture.error
    runs = Runs.of(options, tmp_path, prepared.arms, prepared.expected_ranks)
    runs.add_profiled(capture)
    runs.add_timed(replace(capture, spec=replace(spec, purpose="confirm")))
    own = timed(tmp_path, spec.id)
    slow = int(command[-2])

    assert int(command[2]) == prepared.expected_ranks == runs.shape.ranks == len(own)
    work = runs.arms["default"].profiled[0].samples["", "work"]
    for number, measured in enumerate(work.host_ns, start=1):
        inside, outside = (max(steps[number][hi] - steps[number][lo] for steps in own.values()) for lo, hi in ((3, 4), (2, 5)))
        assert inside - SLACK_NS <= measured <= outside + SLACK_NS
    assert slow == max(own, key=lambda rank: median(step[4] - step[3] for step in own[rank]))
    measured = next(runs.step_samples("default")).step_wall_ns
    for wall, every in zip(measured, zip(*(walls(steps) for _, steps in sorted(own.items())), strict=True), strict=False):
        assert max(least for least, _ in every) - SLACK_NS <= wall <= max(most for _, most in every) + SLACK_NS
