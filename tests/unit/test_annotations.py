import json
import sys
import threading
import types
from itertools import pairwise

import pytest

import perfgate
from perfgate import annotations, step_recorder
from perfgate.errors import UsageError


@pytest.fixture
def heard(monkeypatch):
    """What a profiler would hear: ("push", name) and ("pop", "") with the thread's name, in order."""
    found = []

    monkeypatch.setattr(annotations, "_mark", lambda name: _Mark(name, found))
    return found


class _Mark:
    def __init__(self, name, found):
        self.name, self.found = name, found

    def __enter__(self):
        self.found.append(("push", self.name))

    def __exit__(self, *_):
        self.found.append(("pop", ""))


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Where steps are recorded."""
    for names in step_recorder.LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERFGATE_STEPS_DIR", str(tmp_path / "steps"))
    monkeypatch.delenv("PERFGATE_STEP_RANGE", raising=False)
    monkeypatch.setattr(step_recorder, "_found", [])
    monkeypatch.setattr(step_recorder, "_at_process_end", lambda active: None)
    return tmp_path / "steps"


class Clock:
    """A GPU that is ``behind`` ms behind the host; its events are reached ``after`` looks."""

    def __init__(self):
        self.now = 0.0
        self.waits = 0

    def Event(self, enable_timing):
        clock = self

        class Event:
            def record(self):
                self.at = clock.now

            def query(self):
                return False

            def synchronize(self):
                clock.waits += 1

            def elapsed_time(self, other):
                return other.at - self.at

        return Event()

    def is_initialized(self):
        return True

    def is_current_stream_capturing(self):
        return False

    def max_memory_allocated(self):
        return 1000

    def max_memory_reserved(self):
        return 2000


@pytest.fixture
def gpu(monkeypatch):
    clock = Clock()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=clock))
    return clock


def written(folder, name="rank-0.jsonl"):
    """(first line, steps, last line) of a rank's file."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return lines[0], lines[1:-1], lines[-1]


def test_a_range_opens_and_closes(heard):
    with perfgate.range("outer"), perfgate.range("inner"):
        pass

    assert [("push", "outer"), ("push", "inner"), ("pop", ""), ("pop", "")] == heard


def test_an_exception_closes_every_range_and_passes_through(heard):
    with pytest.raises(ZeroDivisionError), perfgate.range("outer"), perfgate.range("inner"):
        _ = 1 / 0

    assert ["push", "push", "pop", "pop"] == [what for what, _ in heard]


def test_a_decorated_function_keeps_its_name_value_and_arguments(heard):
    @perfgate.range("forward")
    def forward(depth, *, scale=1):
        return scale if depth == 0 else forward(depth - 1, scale=scale)

    assert 3 == forward(2, scale=3)
    assert "forward" == forward.__name__
    assert ["push"] * 3 + ["pop"] * 3 == [what for what, _ in heard]


def test_a_decorated_generator_is_open_while_it_runs(heard):
    @perfgate.range("batches")
    def batches():
        yield 1
        yield 2

    made = batches()
    assert [] == heard
    assert 1 == next(made)
    assert [("push", "batches")] == heard
    made.close()
    assert [("push", "batches"), ("pop", "")] == heard


def test_coroutines_are_refused_with_the_reason():
    async def task():
        pass

    with pytest.raises(UsageError, match="coroutine function task"):
        perfgate.range("task")(task)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_range_needs_a_name(name):
    with pytest.raises(UsageError, match="needs a name"):
        perfgate.steps([], name=name)


def test_one_object_may_be_used_again_and_within_itself(heard):
    one = perfgate.range("x")
    with one, one:
        pass
    with one:
        pass

    assert ["push", "push", "pop", "pop", "push", "pop"] == [what for what, _ in heard]


def test_steps_give_the_batches_and_open_a_range_around_each_body(heard):
    seen = []
    for batch in perfgate.steps("ab"):
        heard.append(("body", batch))
        seen.append(batch)

    assert ["a", "b"] == seen
    assert [("push", "step"), ("body", "a"), ("pop", ""), ("push", "step"), ("body", "b"), ("pop", "")] == heard


def test_steps_are_as_long_and_as_often_iterable_as_their_loader(heard):
    batches = perfgate.steps([1, 2, 3])

    assert 3 == len(batches)
    assert [1, 2, 3] == list(batches) == list(batches)
    with pytest.raises(TypeError, match="generator has no length"):
        len(perfgate.steps(one for one in [1]))


def test_a_loop_that_is_left_early_closes_its_range(heard):
    for _ in perfgate.steps([1, 2, 3]):
        break

    assert [("push", "step"), ("pop", "")] == heard


def test_a_range_that_another_thread_closes_pops_nothing_there(heard):
    batches = iter(perfgate.steps([1, 2]))
    next(batches)
    other = threading.Thread(target=batches.close)
    other.start()
    other.join()

    assert [("push", "step")] == heard


def test_nothing_is_recorded_without_a_folder(heard, folder, monkeypatch):
    monkeypatch.delenv("PERFGATE_STEPS_DIR")
    for _ in perfgate.steps([1, 2]):
        pass

    assert not folder.exists()


def test_steps_are_recorded_with_rank_and_tokens(heard, folder, monkeypatch):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("SLURM_PROCID", "0")):
        monkeypatch.setenv(name, value)
    for _ in perfgate.steps([[1, 2], [3]], tokens=len):
        pass
    first, steps, last = written(folder, "rank-3.jsonl")

    assert (1, 3, 4, 1, "RANK") == tuple(first[key] for key in ("schema", "rank", "world", "local_rank", "source"))
    assert [(0, 2, "ok"), (1, 1, "ok")] == [(one["step"], one["tokens"], one["ended"]) for one in steps]
    assert all(one["host_ns"] > 0 and one["wait_ns"] > 0 for one in steps)
    assert steps[0]["start_ns"] + steps[0]["host_ns"] <= steps[1]["start_ns"]
    assert steps[1]["start_ns"] + steps[1]["host_ns"] == last["end_ns"]
    assert (None, None, None) == (last["event_ns"], last["allocated_bytes"], last["reserved_bytes"])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (5, 8, "SLURM_PROCID")),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4, "OMPI_COMM_WORLD_RANK")),
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "2"}, (2, 1, "OMPI_COMM_WORLD_RANK")),
        ({"RANK": "x", "PMI_RANK": "1"}, (1, 1, "PMI_RANK")),
        ({}, (0, 1, "")),
    ],
)
def test_the_launcher_names_the_rank(folder, monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = step_recorder.this_rank()

    assert expected == (found.rank, found.world, found.source)


def test_an_initialised_process_group_knows_better(folder, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    group = types.SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 6, get_world_size=lambda: 8)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)

    assert (6, 8, None, "torch.distributed") == tuple(step_recorder.this_rank())


def test_the_range_named_like_the_step_is_a_step_and_no_other(heard, folder, monkeypatch):
    monkeypatch.setenv("PERFGATE_STEP_RANGE", "iteration")
    for _ in perfgate.steps([1]):
        with perfgate.range("iteration", tokens=7), perfgate.range("iteration"):
            pass
    _, steps, _ = written(folder)

    assert [7] == [one["tokens"] for one in steps]


def test_only_the_first_thread_that_opens_a_step_counts(heard, folder):
    def loop():
        for _ in perfgate.steps([1, 2, 3]):
            pass

    with perfgate.range("step", tokens=1):
        other = threading.Thread(target=loop)
        other.start()
        other.join()
    other = threading.Thread(target=loop)
    other.start()
    other.join()
    for _ in perfgate.steps([1]):
        pass

    assert 2 == len(written(folder)[1])


def test_a_step_that_is_left_is_no_whole_step(heard, folder, gpu):
    for batch in perfgate.steps([1, 2, 3]):
        gpu.now += 5
        if batch == 2:
            break
    _, steps, last = written(folder)

    assert ["ok", "left"] == [one["ended"] for one in steps]
    assert [5_000_000] == last["event_ns"]


def test_a_step_that_raises_says_so(heard, folder):
    with pytest.raises(ZeroDivisionError), perfgate.range("step"):
        _ = 1 / 0
    step_recorder.recorder().settle()
    _, steps, _ = written(folder)

    assert ["raised"] == [one["ended"] for one in steps]


def test_gpu_time_is_from_start_to_start_and_to_the_end_of_the_loop(heard, folder, gpu):
    for batch in perfgate.steps(slow_loader(gpu)):
        gpu.now += batch
    gpu.now += 1000  # evaluation between the epochs is no step's time
    for batch in perfgate.steps([7.0]):
        gpu.now += batch
    _, steps, last = written(folder)

    assert 3 == len(steps)
    assert [3_500_000, 2_000_000, 7_000_000] == last["event_ns"]
    assert (1000, 2000) == (last["allocated_bytes"], last["reserved_bytes"])


def slow_loader(gpu):
    yield 3.0
    gpu.now += 0.5
    yield 2.0


def test_after_a_left_loop_the_step_ends_where_it_was_left(heard, folder, gpu):
    for _ in perfgate.steps([1, 2]):
        gpu.now += 1
        break
    gpu.now += 1000
    for _ in perfgate.steps([1]):
        gpu.now += 2
    _, steps, last = written(folder)

    assert ["left", "ok"] == [one["ended"] for one in steps]
    assert [1_000_000, 2_000_000] == last["event_ns"]


def test_the_gpu_is_waited_for_only_when_the_loop_is_over(heard, folder, gpu):
    waits = [gpu.waits for _ in perfgate.steps(range(50))]

    assert [0] * 50 == waits
    assert 50 == gpu.waits


def test_a_step_that_began_before_cuda_did_has_no_gpu_time(heard, folder, monkeypatch):
    for batch in perfgate.steps([1, 2]):
        if batch == 1:
            monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=Clock()))
    _, _, last = written(folder)

    assert [None, 0] == last["event_ns"]


def test_a_graph_capture_is_not_disturbed(heard, folder, gpu, monkeypatch):
    monkeypatch.setattr(gpu, "is_current_stream_capturing", lambda: True)
    for _ in perfgate.steps([1, 2]):
        pass
    _, _, last = written(folder)

    assert last["event_ns"] is None


def test_a_second_epoch_keeps_one_last_line(heard, folder):
    for _ in range(3):
        for _ in perfgate.steps([1, 2]):
            pass
    _, steps, last = written(folder)

    assert list(range(6)) == [one["step"] for one in steps]
    assert steps[-1]["start_ns"] + steps[-1]["host_ns"] == last["end_ns"]
    assert all(before["start_ns"] < after["start_ns"] for before, after in pairwise(steps))


def test_a_second_process_of_the_rank_writes_a_file_of_its_own(heard, folder):
    folder.mkdir()
    (folder / "rank-0.jsonl").write_text("another's\n")
    for _ in perfgate.steps([1]):
        pass

    assert "another's\n" == (folder / "rank-0.jsonl").read_text()
    assert 1 == len(list(folder.glob("rank-0-*.jsonl")))


def test_a_folder_that_cannot_be_written_warns_once_and_the_program_goes_on(heard, folder):
    folder.write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning, match="steps of this process are not recorded") as told:
        seen = [batch for _ in range(2) for batch in perfgate.steps([1, 2])]

    assert [1, 2, 1, 2] == seen
    assert 1 == len(told)
