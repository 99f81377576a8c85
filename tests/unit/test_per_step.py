import pandas as pd
import pytest

from perfgate.errors import UnusableError
from perfgate.measure.per_step import Found, find_step, lost_work, profile, rank_medians, samples, step_walls
from perfgate.traces import read
from perfgate.traces.schema import LAUNCHES, OPS, RANGES, Trace, check
from tests.functional.cli import DATA

STEP = Found("", "step")
P0, P1 = 1 << 24, 2 << 24


class Program:
    """A trace written step by step: times in ns, one stream per process."""

    def __init__(self):
        self.ranges, self.ops, self.launches, self.correlation = [], [], [], 0

    def range(self, name, start, end, process=P0, thread=None, domain="", closed=True):
        thread = process + 1 if thread is None else thread
        self.ranges.append((domain, name, "PushPop", process, thread, thread, start, end, closed))

    def kernel(self, name, launched, start, end, process=P0, thread=None, grid="1x1x1"):
        self.correlation += 1
        self.launches.append(("cudaLaunchKernel", process, thread or process + 1, self.correlation, launched, launched + 1))
        self.ops.append(("KERNEL", name, 0, 1, 7, process, self.correlation, start, end, grid, "32x1x1", 8, 0, -1))

    def trace(self, has_gpu=True):
        frames = [
            check(pd.DataFrame(rows, columns=list(columns)), columns, "test")
            for rows, columns in ((self.ops, OPS), (self.launches, LAUNCHES), (self.ranges, RANGES))
        ]
        return Trace("test", "nsys-sqlite", "", "", *frames, has_gpu=has_gpu)


def training(steps=5, process=P0, slow=0, start=0, program=None):
    """Steps of 1000 ns: two layers with a kernel of 100 + ``slow`` ns each, then an optimizer with one of 50."""
    program = program or Program()
    for step in range(steps):
        at = start + 1000 * step
        program.range("step", at, at + 800, process)
        for layer in (0, 1):
            program.range("layer", at + 10 + 200 * layer, at + 110 + 200 * layer, process)
            program.kernel("gemm", at + 20 + 200 * layer, at + 30 + 200 * layer, at + 130 + 200 * layer + slow, process)
        program.range("optimizer, seq = 3" if step % 2 else "optimizer, seq = 4", at + 850, at + 900, process)
        program.kernel("adam", at + 860, at + 870, at + 920, process)
    return program


def measured(program, window=(1, 5), step=STEP, has_gpu=True):
    found = profile([program.trace(has_gpu)], step, window)
    return found, {found.names[key]: one for key, one in samples(found, capture="c", block=2, position=1).items()}


def test_ranges_of_a_step_add_up():
    _, by_name = measured(training())

    assert {"step", "layer", "optimizer"} == set(by_name)
    assert ((200,) * 4, (2,) * 4, (200,) * 4) == (by_name["layer"].busy_ns, by_name["layer"].ops, by_name["layer"].host_ns)
    assert ((50,) * 3, (1,) * 3) == (by_name["optimizer"].busy_ns, by_name["optimizer"].ops)  # none after the last step's end
    assert ("c", 2, 1) == (by_name["step"].capture, by_name["step"].block, by_name["step"].position)
    assert (200,) * 4 == by_name["step"].busy_ns


def test_a_range_inside_its_like_counts_once():
    program = training()
    for step in range(5):
        program.range("layer", 1000 * step + 12, 1000 * step + 100)

    assert (200,) * 4 == measured(program)[1]["layer"].busy_ns


def test_what_starts_after_the_last_step_is_left_out():
    _, by_name = measured(training(), (3, 5))

    assert 2 == len(by_name["step"].busy_ns)
    assert 1 == len(by_name["optimizer"].busy_ns)


def with_autograd(program, crossing=0):
    """``program`` with a backward that waits for a thread of its own, whose range it encloses but for ``crossing`` ns."""
    for step in range(5):
        at = 1000 * step
        program.range("backward", at + 420, at + 600)
        program.range("layer.bwd", at + 430, at + 580 + crossing, thread=P0 + 2)
        program.kernel("dgrad", at + 450, at + 460, at + 560, thread=P0 + 2)
        program.kernel("side", at + 590, at + 595, at + 599, thread=P0 + 3)
    return program


def test_a_range_holds_what_the_thread_launches_that_it_waits_for():
    _, by_name = measured(with_autograd(training()))

    assert (100,) * 4 == by_name["layer.bwd"].busy_ns
    assert ((104,) * 4, (2,) * 4) == (by_name["backward"].busy_ns, by_name["backward"].ops)
    assert ((304,) * 4, (4,) * 4) == (by_name["step"].busy_ns, by_name["step"].ops)


def test_a_range_that_another_threads_range_outlasts_holds_its_own_threads_work_alone():
    _, by_name = measured(with_autograd(training(), crossing=50))

    assert (0,) * 4 == by_name["backward"].busy_ns
    assert (304,) * 4 == by_name["step"].busy_ns


def test_per_step_the_slowest_rank_counts():
    program = training(slow=7)
    training(process=P1, start=300, program=program)
    program.range("only here", 2100, 2200, P1)
    found, by_name = measured(program)

    assert (214,) * 4 == by_name["layer"].busy_ns
    assert 1 == len(by_name["only here"].host_ns)
    assert {0: 214, 1: 200} == rank_medians(found, "busy_ns")[("", "layer")]
    assert [(P0, 5), (P1, 5)] == [(rank.process, rank.count) for rank in found.ranks]


def test_steps_stay_in_order_where_ranks_drift_apart():
    program = Program()
    for rank, each in ((0, 1000), (1, 5000)):
        for step in range(5):
            process, at = P0 * (rank + 1), each * step
            program.range("step", at, at + each, process)
            program.range("work", at + 10, at + 10 + (90 if rank else 500 * (step == 3) + step), process)
    _, by_name = measured(program, has_gpu=False)

    assert (90, 90, 503, 90) == by_name["work"].host_ns


def test_ranks_may_lie_in_traces_of_their_own():
    traces = [training(slow=slow).trace() for slow in (0, 9)]
    found = profile(traces, STEP, (1, 5))

    assert (218,) * 4 == samples(found, capture="c", block=0, position=0)[("", "layer")].busy_ns
    assert [(P0, 5, (1000,) * 4)] * 2 == step_walls(traces, STEP)


def test_without_a_gpu_only_host_times_are_known():
    program = training()
    program.ops.clear()
    program.launches.clear()
    _, by_name = measured(program, has_gpu=False)

    assert ((), (200,) * 4) == (by_name["layer"].busy_ns, by_name["layer"].host_ns)


def test_launches_whose_work_is_lost_are_counted():
    program = training()
    del program.ops[4]  # of step 1, layer 1
    found, _ = measured(program)

    assert {("", "step"): 1, ("", "layer"): 1} == lost_work(found)


def test_digests_tell_programs_apart_but_not_steps_that_follow_their_data():
    def digest(change):
        program = training()
        change(program)
        return measured(program)[1]["layer"].kernels

    def grids(first):
        def change(program):
            for number, one in enumerate(program.ops):
                program.ops[number] = (*one[:9], f"{first + number}x1x1", *one[10:])

        return change

    def another(program):
        program.ops[4] = ("KERNEL", "gemm2", *program.ops[4][2:])

    same = digest(lambda program: None)
    assert same == digest(lambda program: None)
    assert same != digest(another)
    assert same != digest(grids(1))
    assert digest(grids(1)) == digest(grids(9))  # steps differ in their shapes: only which kernels ran is compared


def test_our_own_domain_is_not_named_and_no_other_range_is_called_step():
    program = Program()
    for step in range(5):
        at = 1000 * step
        program.range("iteration", at, at + 900, domain="perfgate.user")
        program.range("step", at + 10, at + 20)
        program.range("forward", at + 30, at + 40, domain="perfgate.user")
        program.range("backward", at + 50, at + 60, domain="perfgate.user")
        program.range("backward", at + 70, at + 80)
        program.range("x", at + 90, at + 95, domain="mine")
    found, _ = measured(program, step=Found("perfgate.user", "iteration"), has_gpu=False)

    assert {"step", ":step", "forward", "perfgate.user:backward", "backward", "mine:x"} == set(found.names.values())
    assert "step" == found.names["perfgate.user", "iteration"]


def test_find_step():
    program = training()
    program.range("step", 0, 1, domain="NCCL")
    program.range("other", 0, 1, domain="mine")
    program.range("never", 0, 0, closed=False)
    traces = [program.trace()]

    assert STEP == find_step(traces, "step")
    assert Found("mine", "other") == find_step(traces, "mine:other") == find_step(traces, "other")
    assert Found("", "optimizer") == find_step(traces, "optimizer")
    with pytest.raises(UnusableError, match=r"no range is called 'never'; there are layer \(10\)"):
        find_step(traces, "never")
    with pytest.raises(UnusableError, match="opened no NVTX range"):
        find_step([Program().trace()], "step")


def test_two_steps_of_one_name_must_be_told_apart():
    program = training()
    program.range("step", 0, 1, domain="perfgate.user")
    with pytest.raises(UnusableError, match="several ranges are called 'step'") as error:
        find_step([program.trace()], "step")

    assert error.value.text.endswith(": step, perfgate.user:step")
    assert "--step-range" in error.value.mend
    assert Found("perfgate.user", "step") == find_step([program.trace()], "perfgate.user:step")


def test_a_real_capture_of_two_processes():
    trace = read(DATA / "nsys" / "own-h200-2025.3.1-twoproc.sqlite")
    step = find_step([trace], "step")
    found = profile([trace], step, (0, 4))
    one = samples(found, capture="c", block=0, position=0)["perfgate", "step"]

    assert (4, 2) == (len(one.busy_ns), len(found.ranks))
    assert all(most >= max(each) for most, each in zip(one.busy_ns, zip(*_busy(found), strict=True), strict=True))


def _busy(found):
    return [rank.steps.instances["busy_ns"] for rank in found.ranks]
