"""What belongs to a range, by which rule, and what is left over."""

from __future__ import annotations

import pytest

from perfgate import traces
from perfgate.errors import UsageError
from perfgate.measure import measure
from tests.unit.traces.exports import PROCESS, THREAD, Export

OTHER = THREAD + 1
SECOND_PROCESS = THREAD + (1 << 24)


def measured(export, tmp_path, **options):
    return measure(traces.read(export.write(tmp_path / "t.sqlite")), **options)


def rows(export, tmp_path, **options):
    """(busy, span, sum, idle, ops, rule) by range name, of names that occur once."""
    instances = measured(export, tmp_path, **options).instances
    columns = ["busy_ns", "span_ns", "sum_ns", "idle_ns", "ops", "rule"]
    return {name: tuple(row) for name, row in zip(instances["name"], instances[columns].itertuples(index=False), strict=True)}


def test_overlapping_streams_are_a_union(tmp_path):
    export = Export().range("r", 0, 100).work(10, (50, 60)).work(20, (55, 70), streamId=8).work(30, (80, 90))

    assert rows(export, tmp_path)["r"] == (30, 40, 35, 10, 3, "process")


def test_one_operation_inside_another_adds_nothing(tmp_path):
    export = Export().range("r", 0, 100).work(10, (50, 90)).work(20, (60, 70), streamId=8)

    assert rows(export, tmp_path)["r"] == (40, 40, 50, 0, 2, "process")


def test_nested_and_recursive_ranges_each_get_their_own(tmp_path):
    export = Export().range("f", 0, 100).range("f", 10, 50).range("g", 20, 30)
    export.work(5, (110, 120)).work(25, (120, 140)).work(60, (140, 170))
    instances = measured(export, tmp_path).instances

    assert [("f", 60), ("f", 20), ("g", 20)] == list(zip(instances["name"], instances["busy_ns"], strict=True))


def test_the_launch_decides_not_the_time_on_the_gpu(tmp_path):
    export = Export().range("before", 0, 10).range("after", 20, 30).work(5, (22, 28))

    assert rows(export, tmp_path)["before"][:1] == (6,)
    assert rows(export, tmp_path)["after"][4] == 0


def test_a_launch_that_outlives_the_range_is_not_inside(tmp_path):
    export = Export().range("r", 0, 10).launch(5, 11, 1).kernel(20, 30, 1).launch(6, 8, 2, thread=OTHER).kernel(30, 33, 2)

    assert rows(export, tmp_path)["r"][0] == 3


def test_a_launch_exactly_as_long_as_the_range_is_inside(tmp_path):
    assert rows(Export().range("r", 5, 6).work(5, (20, 30)), tmp_path)["r"][0] == 10


def test_several_devices_busy_is_the_largest(tmp_path):
    export = Export().range("r", 0, 100).work(10, (50, 60)).work(20, (50, 80), deviceId=1).work(30, (90, 95))

    assert rows(export, tmp_path)["r"] == (30, 45, 45, 15, 3, "process")


def test_work_of_another_thread_counts_where_no_other_range_disputes_it(tmp_path):
    export = Export().range("r", 0, 100).work(10, (50, 60)).work(20, (60, 80), thread=OTHER)

    assert rows(export, tmp_path)["r"] == (30, 30, 30, 0, 2, "process")
    assert rows(export, tmp_path, attribution="same-thread")["r"] == (10, 10, 10, 0, 1, "same-thread")


def test_a_range_of_another_thread_disputes(tmp_path):
    export = Export().range("r", 0, 100).work(10, (50, 60)).work(20, (60, 80), thread=OTHER).range("b", 15, 30, thread=OTHER)

    assert rows(export, tmp_path)["r"] == (10, 10, 10, 0, 1, "same-thread")
    assert rows(export, tmp_path)["b"] == (20, 20, 20, 0, 1, "same-thread")
    assert rows(export, tmp_path, attribution="process")["r"][4:] == (2, "process")


def test_touching_ranges_do_not_overlap(tmp_path):
    export = Export().range("r", 0, 100).range("b", 100, 200, thread=OTHER).work(20, (60, 80), thread=OTHER)

    assert rows(export, tmp_path)["r"][4:] == (1, "process")


def test_one_dispute_decides_for_every_instance_of_the_name(tmp_path):
    export = (
        Export().range("r", 0, 100).range("r", 200, 300).range("b", 250, 260, thread=OTHER).work(20, (60, 80), thread=OTHER)
    )

    assert ["same-thread"] * 3 == list(measured(export, tmp_path).instances["rule"])


def test_a_range_that_never_ended_disputes_all_that_follows(tmp_path):
    export = Export().range("r", 50, 100).range("open", 10, None, thread=OTHER)

    assert rows(export, tmp_path)["r"][5] == "same-thread"


@pytest.mark.parametrize("domain", ["CCCL", "NCCL", "cuBLAS"])
def test_a_library_does_not_dispute(tmp_path, domain):
    export = Export().domain(domain, 1).range("r", 0, 100).work(20, (60, 80), thread=OTHER)
    export.range("lib", 15, 30, thread=OTHER, domainId=1)

    assert rows(export, tmp_path)["r"][4:] == (1, "process")
    assert rows(export, tmp_path)["lib"][5] == "same-thread"


def test_our_own_domain_takes_its_whole_process(tmp_path):
    export = Export().domain("perfgate", 1).domain("perfgate.user", 2).range("own", 0, 100, domainId=1)
    export.range("user", 10, 30, thread=OTHER, domainId=2).work(20, (60, 80), thread=OTHER)

    assert rows(export, tmp_path)["own"][4:] == (1, "process")
    assert rows(export, tmp_path)["user"][4:] == (1, "process")  # ranges of perfgate are around it, not beside it


def test_perfgate_aux_is_known_and_left_out(tmp_path):
    export = Export().domain("perfgate", 1).domain("perfgate.aux", 2).range("own", 0, 10, domainId=1)
    export.range("flush", 20, 30, domainId=2).work(5, (40, 50)).work(25, (50, 90))
    measurement = measured(export, tmp_path)

    assert ["own"] == list(measurement.instances["name"])
    assert measurement.unattributed == ()
    assert [("range of domain perfgate.aux: known, its GPU work is counted nowhere else", 1)] == list(measurement.excluded)


def test_a_start_end_range_over_two_threads(tmp_path):
    export = Export().range("r", 0, 100, eventType=60, endGlobalTid=OTHER).range("b", 40, 50, thread=OTHER + 1)
    export.work(10, (110, 120)).work(20, (115, 130), thread=OTHER).work(45, (200, 300), thread=OTHER + 1)
    export.work(99, (400, 500), thread=OTHER)

    assert rows(export, tmp_path)["r"] == (120, 390, 125, 270, 3, "cross-thread")
    assert rows(export, tmp_path, attribution="same-thread")["r"] == (120, 390, 125, 270, 3, "cross-thread")


def test_an_undisputed_start_end_range_takes_its_process(tmp_path):
    export = Export().range("r", 0, 100, eventType=60, endGlobalTid=OTHER).work(45, (200, 300), thread=OTHER + 1)

    assert rows(export, tmp_path)["r"][4:] == (1, "process")


def test_processes_do_not_mix_though_their_ids_collide(tmp_path):
    export = Export().range("a", 0, 100).range("b", 0, 100, thread=SECOND_PROCESS)
    for thread, end in ((THREAD, 60), (SECOND_PROCESS, 90)):
        export.launch(10, 11, 7, thread=thread).kernel(50, end, 7, process=thread & ~0xFFFFFF)

    assert (rows(export, tmp_path)["a"][0], rows(export, tmp_path)["b"][0]) == (10, 40)


def test_an_id_used_twice_in_a_process_means_the_last_call_before(tmp_path):
    export = Export().range("a", 0, 10).range("b", 100, 110)
    for at, gpu in ((5, (20, 30)), (105, (120, 140))):
        export.launch(at, at + 1, 7).kernel(*gpu, 7)
    measurement = measured(export, tmp_path)

    assert [10, 20] == list(measurement.instances["busy_ns"])
    assert [1] == [count for reason, count in measurement.excluded if "more than once" in reason]


def test_gpu_work_in_no_range_is_reported(tmp_path):
    export = Export().range("r", 0, 10).work(5, (20, 30)).work(50, (60, 90)).kernel(90, 100, 999).kernel(100, 150, 0)
    measurement = measured(export, tmp_path)

    found = [(left.reason, left.ops, left.gpu_ns, left.share) for left in measurement.unattributed]
    assert [("launched outside every range", 1, 30, 0.3), ("its launch is not in the capture", 2, 60, 0.6)] == found
    assert measurement.gpu_ns == 100


def test_launched_work_that_was_not_recorded_is_unknown_not_zero(tmp_path):
    export = Export().range("none", 0, 10).launch(5, 6, 1).range("some", 20, 30).work(22, (40, 50)).launch(25, 26, 99)
    export.range("nothing launched", 50, 60)
    measurement = measured(export, tmp_path)

    assert [-1, 10, 0] == list(measurement.instances["busy_ns"])
    assert [1, 1, 0] == list(measurement.missing)
    assert [2] == [count for reason, count in measurement.excluded if "not in the capture" in reason]


def test_gpu_work_without_a_single_api_call_is_unknown_not_zero(tmp_path):
    export = Export().range("blind", 0, 10).kernel(20, 30, 1).range("seeing", 0, 10, thread=SECOND_PROCESS)
    export.range("idle", 20, 30, thread=SECOND_PROCESS).work(5, (20, 30), thread=SECOND_PROCESS)
    measurement = measured(export, tmp_path)

    assert [-1, 10, 0] == list(measurement.instances["busy_ns"])
    assert any("no CUDA API call of its own" in note for note in measurement.notes)


def test_launches_recorded_into_a_graph_are_not_missing(tmp_path):
    export = Export().range("capture", 0, 100).launch(10, 11, 1, name="cudaStreamBeginCapture_v10000").launch(20, 21, 2)
    export.launch(30, 31, 3, name="cudaStreamEndCapture_v10000").work(50, (60, 70))
    measurement = measured(export, tmp_path)

    assert ([10], [0]) == (list(measurement.instances["busy_ns"]), list(measurement.missing))


def test_match_keeps_ranges_and_hides_no_work(tmp_path):
    export = Export().domain("d", 1).range("a", 0, 10, domainId=1).range("b", 20, 30).work(5, (40, 50)).work(25, (50, 60))
    measurement = measured(export, tmp_path, match="^d:a$")

    assert ["a"] == list(measurement.instances["name"])
    assert [0] == list(measurement.instances["instance"])
    assert measurement.unattributed == ()


def test_match_must_be_a_pattern(tmp_path):
    with pytest.raises(UsageError, match="not a regular expression"):
        measured(Export().range("a", 0, 10), tmp_path, match="a(")


def test_detail_explains_busy_exactly(tmp_path):
    export = (
        Export().range("r", 0, 100).work(30, (50, 60), name="late").work(10, (55, 80), name="first").range("empty", 200, 300)
    )
    measurement = measured(export, tmp_path, detail=True)

    assert [("first", 20), ("late", 10)] == list(zip(measurement.ops["name"], measurement.ops["exclusive_ns"], strict=True))
    assert [30, 0] == list(measurement.instances["busy_ns"])
    assert [0, 0] == list(measurement.ops["instance"])


def test_detail_of_nothing(tmp_path):
    measurement = measured(Export().range("r", 0, 100), tmp_path, detail=True)

    assert len(measurement.ops) == 0
    assert measured(Export().range("r", 0, 100), tmp_path).ops is None


def test_no_ranges_at_all(tmp_path):
    measurement = measured(Export().work(5, (20, 30)), tmp_path, detail=True)

    assert len(measurement.instances) == 0
    assert [1.0] == [left.share for left in measurement.unattributed]


def test_instances_are_ordered_by_process_and_start(tmp_path):
    export = (
        Export().range("z", 50, 60).range("late", 70, 80).range("outer", 50, 90).range("other", 0, 1, thread=SECOND_PROCESS)
    )
    instances = measured(export, tmp_path).instances

    assert ["outer", "z", "late", "other"] == list(instances["name"])
    assert [PROCESS] * 3 + [PROCESS + (1 << 24)] == list(instances["process"])
    assert [40, 10, 10, 1] == list(instances["host_ns"])
