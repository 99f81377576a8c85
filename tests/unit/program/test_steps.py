import json

import pytest

from perfgate.errors import UnusableError, UsageError, WorkloadError
from perfgate.program.steps import RankRecord, check_ranks, clock_of, pid_of, recorded, step_times, window_of


def write(
    folder, rank=0, steps=4, events="given", ended="ok", tokens=8, last=True, name=None, world=None, start=1000, each=100
):
    lines = [{"schema": 1, "rank": rank, "world": world, "pid": 100 + rank}]
    for step in range(steps):
        state = ended if step == steps - 1 else "ok"
        lines.append(
            {"step": step, "start_ns": start + each * step, "host_ns": 1, "wait_ns": 0, "tokens": tokens, "ended": state}
        )
    if last:
        times = [70 + step for step in range(steps)] if events == "given" else events
        lines.append({"end_ns": start + each * steps, "event_ns": times, "allocated_bytes": 10 + rank, "reserved_bytes": 20})
    file = folder / (name or f"rank-{rank}.jsonl")
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return file


def record(rank=0, walls=(10, 10, 10), events=(), steps=4):
    return RankRecord(rank, steps, walls, events)


def test_nothing_was_recorded(tmp_path):
    assert [] == recorded(tmp_path)


def test_ranks_in_order_with_their_times(tmp_path):
    for rank in (1, 0):
        write(tmp_path, rank, world=2)
    first, second = recorded(tmp_path)

    assert (0, 1) == (first.rank, second.rank)
    assert ((100, 100, 100), (70, 71, 72, 73), (8, 8, 8, 8)) == (first.walls, first.events, first.tokens)
    assert (101, 2, 11, 20) == (second.pid, second.world, second.allocated_bytes, second.reserved_bytes)


def test_a_last_step_that_was_left_is_none_but_ends_the_one_before(tmp_path):
    write(tmp_path, ended="left", events=[70, 71, 72, None])
    found = recorded(tmp_path)[0]

    assert (3, (100, 100, 100), (70, 71, 72)) == (found.steps, found.walls, found.events)


def test_tokens_of_some_steps_are_none(tmp_path):
    write(tmp_path, tokens=None)

    assert recorded(tmp_path)[0].tokens is None


def test_a_file_without_its_last_line_is_of_a_rank_that_died(tmp_path):
    write(tmp_path, rank=3, last=False)
    with pytest.raises(WorkloadError, match="rank-3 ended before"):
        recorded(tmp_path)


def test_a_line_cut_short_too(tmp_path):
    file = write(tmp_path)
    file.write_text(file.read_text()[:-30])
    with pytest.raises(WorkloadError, match="rank-0 ended before"):
        recorded(tmp_path)


def test_two_processes_of_one_rank_can_not_be_told_apart(tmp_path):
    write(tmp_path)
    write(tmp_path, name="rank-0-777.jsonl")
    with pytest.raises(UnusableError, match="recorded steps as rank 0"):
        recorded(tmp_path)


@pytest.mark.parametrize("text", ['{"schema": 9}\n{"end_ns": 1}', '{"schema": 1}\n{"end_ns": 1}', "[]"])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "rank-0.jsonl").write_text(text)
    with pytest.raises(UnusableError, match="rank-0"):
        recorded(tmp_path)


def test_missing_ranks_are_named():
    some = [RankRecord(rank, 4, (1, 1, 1), world=4) for rank in (0, 2)]
    with pytest.raises(UnusableError, match=r"2 of 4 ranks show steps \(not rank 1, 3\)"):
        check_ranks(some, 0, "steps")
    with pytest.raises(UnusableError, match="1 of 2 ranks show range 'step'"):
        check_ranks([record()], 2, "range 'step'")
    with pytest.raises(UnusableError, match="rank 0 4, rank 1 9"):
        check_ranks([record(), record(1, steps=9)], 0, "steps")
    check_ranks([record(), record(1)], 2, "steps")


@pytest.mark.parametrize(
    ("steps", "first", "last", "expected"),
    [
        (41, 11, 41, (11, 41)),
        (40, None, None, (10, 40)),
        (8, None, None, (2, 8)),
        (41, None, 41, (0, 41)),
        (41, 5, None, (5, 41)),
    ],
)
def test_window(steps, first, last, expected):
    assert expected == window_of(steps, first, last, "")


@pytest.mark.parametrize(("first", "last"), [(11, 42), (41, None)])
def test_window_beyond_the_steps_names_how_many_there_were(first, last):
    with pytest.raises(UsageError, match="the program ran 41 steps, numbered 0 to 40"):
        window_of(41, first, last, f"{first}:{last or ''}")


def test_per_step_the_slowest_rank_counts():
    ranks = [record(walls=(1, 10, 30, 10)), record(1, walls=(9, 20, 10, 40))]

    assert (20, 30, 40) == step_times(ranks, (1, 4), "host")


def test_the_gpus_clock_needs_every_rank_and_every_step_of_the_window_but_the_last():
    timed, last_open, hole = (None, 5, 6, 7), (None, 5, 6, None), (None, 5, None, 7)

    assert "cuda" == clock_of([record(events=timed), record(1, events=last_open)], (1, 4))
    assert "host" == clock_of([record(events=timed), record(1)], (1, 4))
    assert "host" == clock_of([record(events=hole)], (1, 4))
    assert "host" == clock_of([record(events=timed)], (0, 4))
    assert (5, 6) == step_times([record(events=timed), record(1, events=last_open)], (1, 4), "cuda")


def test_pid_in_a_global_pid():
    assert 4711 == pid_of((1 << 56) | (4711 << 24))
