"""A run in progress: which children it starts, when it stops, and what it tells of the card. Children are played."""

import json
from datetime import UTC, datetime

import pytest

import perfgate.session
from perfgate.cli._dry_run import describe
from perfgate.compare import sample
from perfgate.config import Config
from perfgate.model import Capture, ProcessSample, Reason
from perfgate.plan import make_plan
from perfgate.profilers.replay import ReplayProfiler
from perfgate.registry import Registry
from perfgate.sequential import Looks
from perfgate.session import Prepared, Session
from perfgate.store import RunDirectory
from tests.unit import arms
from tests.unit.test_registry import sound_op

TIMES = {"torch.a": 100_000, "triton.b": 110_000}
HOT = Reason("THROTTLED", "the card was slowed down: heat", "let it cool down")


class Silent:
    def __getattr__(self, name):
        return lambda *_: None


class NoProfiler:
    name = "nsys"


class Played(Session):
    """Every child measures what :data:`TIMES` says, a little less in each block, so that nothing is ever noiseless."""

    def __init__(self, folder, budgets, *, first=3, most=3, **options):
        registry = Registry([sound_op()])
        config = Config(op=("family/op",), case=("smoke",), blocks=first, max_blocks=most, **options)
        plan = make_plan(registry, config, "cuda:0", "nsys")
        prepared = Prepared(plan, registry, budgets, NoProfiler(), (), Looks.plan(first, most), {"device": "cuda"})
        super().__init__(prepared, RunDirectory.create(str(folder / "run"), datetime.now(UTC)), "perfgate run", Silent())
        equal = {"digest": "d", "differing": 0, "replays": 3, "first_difference": ""}
        for own in self._collection.of.values():
            own.bits.append(equal)
        self.ran = []
        self.fails = lambda spec: False

    def _run(self, spec):
        self.ran.append(spec)
        for variant in spec.variants:
            time = TIMES[variant.implementation] - 13 * len(self.ran) % 7
            own = self._collection.of[variant.name]
            if spec.purpose == "confirm":
                own.confirmations.append(ProcessSample(spec.id, spec.block, spec.position, (), (), (), (), "", (time,) * 9))
            else:
                measured = arms.measured([[(variant.implementation, "1x1x1", 0, time)]] * 9, name=variant.name)
                one = sample(measured, variant.name, capture=spec.id, block=spec.block, position=spec.position)
                own.parts.append((measured, one))
        return Capture(spec, f"captures/{spec.id}", complete=not self.fails(spec))


@pytest.fixture
def card(monkeypatch):
    """What the guard says of each segment, in order; after the last one the card stands still."""
    said = []
    monkeypatch.setattr(perfgate.session, "segment", lambda device: device)
    monkeypatch.setattr(perfgate.session, "segment_guard", lambda before, after: said.pop(0) if said else ())
    return said


def codes(session):
    return [one.code for one in session.result().findings]


def blocks_of(session):
    return sorted({spec.block for spec in session.ran if spec.purpose == "time"})


def test_three_quiet_blocks_decide(tmp_path, card):
    session = Played(tmp_path, arms.budgets())
    session.measure_blocks()

    assert [0, 1, 2] == blocks_of(session)
    assert [] == codes(session)


def test_a_block_that_only_one_arm_met_is_made_up_for_and_told(tmp_path, card):
    card += [(), (HOT,), (), ()]
    session = Played(tmp_path, arms.budgets())
    with session.concluded():
        session.measure_blocks()
    (judged,) = session.result().comparisons

    assert 3 == judged.blocks
    assert [0, 1, 2, 3] == blocks_of(session)
    assert ["BLOCK_DROPPED"] == codes(session)
    assert 0 == session.result().verdict.exit_code


def test_a_card_that_never_stands_still_ends_the_run(tmp_path, card):
    card += [(), (), (), (), *[(), (HOT,), (), ()] * 20]
    session = Played(tmp_path, arms.budgets())
    session.measure_blocks()

    assert list(range(6)) == blocks_of(session)
    assert 5 == session.result().verdict.exit_code


def test_every_block_dropped_is_not_a_pass(tmp_path, card):
    card += [(), (HOT,), (), ()] * 20
    session = Played(tmp_path, arms.budgets())
    session.measure_blocks()
    result = session.result()

    assert (5, "invalid") == (result.verdict.exit_code, result.comparisons[0].status)


def test_what_both_arms_met_is_told_once(tmp_path, card):
    card += [(HOT,)] * 12
    session = Played(tmp_path, arms.budgets())
    session.measure_blocks()

    assert ["THROTTLED"] == codes(session)


def test_a_failed_child_ends_the_blocks(tmp_path, card):
    session = Played(tmp_path, arms.budgets())
    session.fails = lambda spec: spec.position == 1
    session.measure_blocks()

    assert 2 == len(session.ran)


def test_time_that_is_used_up_is_told_and_the_block_in_progress_ends(tmp_path, card):
    session = Played(tmp_path, arms.budgets(), time_budget=1e-9)
    session.measure_blocks()

    assert [0] == blocks_of(session)
    assert 4 == len(session.ran)
    assert ["TIME_BUDGET_USED"] == codes(session)


def test_the_confirmation_is_one_child_of_each_mode(tmp_path, card):
    session = Played(tmp_path, arms.budgets())
    session.confirm()

    assert ["confirm-b00-0-default", "confirm-b00-0-deterministic"] == [spec.id for spec in session.ran]


@pytest.mark.parametrize(("overhead", "status"), [("15%", "pass"), ("5%", "fail")])
def test_step_time_that_a_budget_judges_is_confirmed_in_whole_blocks(tmp_path, card, overhead, status):
    session = Played(tmp_path, arms.budgets(overhead, metric="step_wall"))
    session.measure_blocks()
    session.confirm()
    (judged,) = session.result().comparisons

    assert 12 == len([spec for spec in session.ran if spec.purpose == "confirm"])
    assert ("step_wall", 3) == (judged.metric, judged.blocks)
    assert status == judged.status


def test_step_time_that_nobody_took_is_not_a_pass(tmp_path, card):
    session = Played(tmp_path, arms.budgets(metric="step_wall"), confirm=False)
    session.measure_blocks()
    session.confirm()

    assert "NOTHING_MEASURED" in {one.code for one in session.result().comparisons[0].reasons}
    assert 5 == session.result().verdict.exit_code


def test_a_default_that_fails_takes_its_range_out_of_every_child(tmp_path, card):
    session = Played(tmp_path, arms.budgets())
    session._collection.of["family/op:smoke:fwd:torch.a"].add_problem(Reason("WORKLOAD_FAILED", "ValueError"))
    session.measure_blocks()
    session.confirm()

    assert [] == session.ran
    assert 6 == session.result().verdict.exit_code


class Checked(Session):
    """Bits children are played: ``ends`` says, by spec id, what each tells of its variants and why it died."""

    def __init__(self, folder, device, ends, profiler=None):
        registry = Registry([sound_op()])
        plan = make_plan(registry, Config(op=("family/op",), case=("smoke",)), device, "nsys")
        prepared = Prepared(plan, registry, arms.budgets(), profiler or NoProfiler(), (), Looks.plan(3, 3), {"device": "cuda"})
        super().__init__(prepared, RunDirectory.create(str(folder / "run"), datetime.now(UTC)), "perfgate run", Silent())
        self.ends, self.order = ends, []

    def _played(self, spec):
        told, error = self.ends.get(spec.id, ({}, ""))
        outcome = {"status": "ok", "text": "", "digest": "d", "differing": 0, "replays": 3, "first_difference": ""}
        done = {one.name: {**outcome, **told.get(one.implementation, {})} for one in spec.variants}
        folder = self.directory.folder(spec)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "done.json").write_text(json.dumps({"complete": not error, "variants": done}))
        return Capture(spec, f"captures/{spec.id}", complete=not error, error=error, blame="workload" if error else "")

    def _run_together(self, specs):
        self.order.append([spec.id for spec in specs])
        return [self._played(spec) for spec in specs]

    def _captured(self, spec):
        self.order.append(spec.id)
        return self._played(spec)

    def problems(self, implementation):
        (own,) = (one for name, one in self._collection.of.items() if name.endswith(implementation))
        return [problem.code for problem in own.problems], len(own.bits)


STARVED = {"status": "failed", "text": "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"}


def test_on_a_card_all_bits_children_run_at_one_time(tmp_path):
    session = Checked(tmp_path, "cuda:0", {})
    session.check_bits()

    assert [["bits-b00-0-default", "bits-b00-0-deterministic", "bits-b00-1-deterministic"]] == session.order
    assert ([], 2) == session.problems("triton.b")


def test_on_a_cpu_they_run_one_after_the_other(tmp_path):
    session = Checked(tmp_path, "cpu", {})
    session.check_bits()

    assert all(isinstance(one, str) for one in session.order)


def test_what_found_no_memory_beside_the_others_runs_again_alone(tmp_path):
    session = Checked(tmp_path, "cuda:0", {"bits-b00-1-deterministic": ({"triton.b": STARVED}, "")})
    session.check_bits()

    assert "bits-b00-1-deterministic-alone" == session.order[-1]
    assert ([], 2) == session.problems("triton.b")


@pytest.mark.parametrize("again", [True, False])
def test_a_replay_follows_what_the_stored_run_took_again_alone(tmp_path, again):
    for name in ["bits-b00-0-default", *["bits-b00-1-deterministic-alone"] * again]:
        (tmp_path / "stored/captures" / name).mkdir(parents=True)
        (tmp_path / "stored/captures" / name / "spec.json").write_text("{}")
    ends = {"bits-b00-1-deterministic": ({"triton.b": STARVED}, "")}
    session = Checked(tmp_path, "cuda:0", ends, ReplayProfiler(tmp_path / "stored"))
    session.check_bits()

    assert again == ("bits-b00-1-deterministic-alone" in session.order)
    assert ([] if again else ["WORKLOAD_FAILED"]) == session.problems("triton.b")[0]


def test_what_finds_no_memory_alone_either_has_failed(tmp_path):
    starved = ({"triton.b": STARVED}, "")
    ends = {"bits-b00-1-deterministic": starved, "bits-b00-1-deterministic-alone": starved}
    session = Checked(tmp_path, "cuda:0", ends)
    session.check_bits()

    assert ["WORKLOAD_FAILED"] == session.problems("triton.b")[0]


@pytest.mark.parametrize(("metric", "confirm"), [("busy", True), ("step_wall", True), ("busy", False), ("step_wall", False)])
def test_the_dry_run_counts_the_unprofiled_children_that_run(tmp_path, card, metric, confirm):
    session = Played(tmp_path, arms.budgets(metric=metric), confirm=confirm)
    said = describe(session._prepared, tmp_path)
    session.confirm()

    assert f", {len(session.ran)} unprofiled" in said
