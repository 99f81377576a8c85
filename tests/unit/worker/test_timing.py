"""What a timing child does in which order, and that nothing but the call itself lies in a measured range."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import perfgate.worker.timing
from perfgate.model import RunSpec, Variant
from perfgate.registry import Op, Registry
from perfgate.worker import confirm, timing
from perfgate.worker.job import Job

HAPPENED: list[str] = []


def told(name, fails_at=0):
    """An implementation that says when it was called."""

    def run(x):
        HAPPENED.append(f"call {name}")
        if fails_at and HAPPENED.count(f"call {name}") >= fails_at:
            raise ValueError("out of tiles")
        return x["a"] * 2

    return run


def jobs(**fails_at):
    op = Op("family/op")
    op.cases(smoke={})
    op.inputs(lambda case, device, generator: {"a": torch.ones(4)})
    op.default("one")(told("one", **fails_at))
    op.champion("two")(told("two"))
    variants = tuple(Variant("family/op", "smoke", "fwd", *who) for who in (("one", "default"), ("two", "champion")))
    spec = RunSpec("id", "time", "default", variants, "cpu", iterations=4, warmup=2)
    return spec, [Job.of(Registry([op]), variant, spec) for variant in variants]


class Told:
    def push(self, domain, name):
        HAPPENED.append(f"push {domain} {name}")

    def pop(self, domain):
        HAPPENED.append(f"pop {domain}")


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    HAPPENED.clear()

    @contextmanager
    def recording(spec, folder):
        HAPPENED.append("capture begins")
        yield
        HAPPENED.append("capture ends")

    monkeypatch.setattr(timing, "_recording", recording)
    monkeypatch.setattr(timing, "ranges_for", lambda profiler: Told())
    for module in (timing, confirm):
        monkeypatch.setattr(module, "l2_flush", lambda device: lambda: HAPPENED.append("flush"))


def inside(domain):
    """What happened in each range of ``domain``, one list per instance."""
    found = []
    for place, what in enumerate(HAPPENED):
        if what.startswith(f"push {domain} "):
            found.append(HAPPENED[place + 1 : HAPPENED.index(f"pop {domain}", place)])
    return found


def test_every_job_is_warm_before_the_profiler_looks(tmp_path):
    timing.run(*jobs(), tmp_path)

    assert ["call one", "call one", "call two", "call two"] == HAPPENED[: HAPPENED.index("capture begins")]


def test_a_measured_range_holds_one_call_and_nothing_else(tmp_path):
    outcomes = timing.run(*jobs(), tmp_path)

    assert [["call one"]] * 4 + [["call two"]] * 4 == inside("perfgate")
    assert [("ok", 4), ("ok", 4)] == [(one.status, one.instances) for one in outcomes]


def test_flush_and_set_up_lie_in_ranges_that_are_known_and_left_out(tmp_path):
    timing.run(*jobs(), tmp_path)
    captured = HAPPENED[HAPPENED.index("capture begins") :]

    assert 8 == captured.count("flush") == sum(part == ["flush"] for part in inside("perfgate.aux"))
    assert [["call one"] * 3, ["call two"] * 3] == [part for part in inside("perfgate.aux") if len(part) == 3]


def test_a_job_that_fails_while_it_is_measured_leaves_its_range_closed_and_the_others_measured(tmp_path):
    outcomes = timing.run(*jobs(fails_at=7), tmp_path)

    assert [("failed", "ValueError: out of tiles"), ("ok", "")] == [(one.status, one.text) for one in outcomes]
    assert [["call two"]] * 4 == inside("perfgate")[-4:]
    assert sum(what.startswith("push") for what in HAPPENED) == sum(what.startswith("pop") for what in HAPPENED)


def test_a_job_that_fails_while_it_warms_up_is_not_measured(tmp_path):
    timing.run(*jobs(fails_at=1), tmp_path)

    assert [["call two"]] * 4 == inside("perfgate")


def test_garbage_is_collected_before_and_never_while_instances_run(tmp_path, monkeypatch):
    monkeypatch.setattr(perfgate.worker.timing.gc, "enable", lambda: HAPPENED.append("gc on"))
    monkeypatch.setattr(perfgate.worker.timing.gc, "disable", lambda: HAPPENED.append("gc off"))

    timing.run(*jobs(), tmp_path)
    switches = [what for what in HAPPENED if what.startswith(("gc", "push perfgate "))]

    assert "gc off" == switches[0]
    assert "gc on" == switches[-1]


def test_the_confirmation_times_each_call_behind_a_flush(tmp_path):
    spec, two = jobs()
    outcomes = confirm.run(replace(spec, purpose="confirm"), two, tmp_path)

    assert [4, 4] == [len(one.details["step_wall_ns"]) for one in outcomes]
    assert all(time > 0 for one in outcomes for time in one.details["step_wall_ns"])
    assert ["flush", "call two"] * 4 == HAPPENED[-8:]
