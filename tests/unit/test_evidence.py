"""What a capture's end means for its variants, and which implementation is judged."""

import json
from dataclasses import replace

import pytest

from perfgate.assemble import assemble, findings, peak_bandwidth, unproven
from perfgate.evidence import Collection, Evidence
from perfgate.measure import Measurement
from perfgate.model import Capture, Reason, RunSpec, Variant, Work
from perfgate.registry import Registry
from perfgate.store import RunDirectory
from tests.unit import arms
from tests.unit.test_registry import sound_op

RANGE = ("family/op", "smoke", "fwd")
DEFAULT = Variant(*RANGE, "torch.a", "default")
CHAMPION = Variant(*RANGE, "triton.b", "champion")
STOCK = Variant(*RANGE, "torch.a_det", "stock_deterministic")


@pytest.fixture
def run(tmp_path):
    (tmp_path / "captures" / "one").mkdir(parents=True)
    return RunDirectory(tmp_path)


def capture(run, told, *, purpose="bits", variants=(DEFAULT, CHAMPION), error="", done=True, blame="workload"):
    folder = run.path / "captures" / "one"
    if done:
        (folder / "done.json").write_text(json.dumps({"complete": True, "variants": told}))
    else:
        (folder / "results.jsonl").write_text(
            "".join(json.dumps({"variant": name, **said}) + "\n" for name, said in told.items())
        )
    spec = RunSpec("one", purpose, "default", tuple(variants), "cpu")
    return Capture(spec, "captures/one", complete=not error, error=error, blame=blame if error else "")


def codes(evidence):
    return [problem.code for problem in evidence.problems]


def bits(digest="d", differing=0, **more):
    return {"status": "ok", "text": "", "digest": digest, "differing": differing, "replays": 3, "first_difference": "", **more}


def test_unsupported_and_failed_variants_are_told_apart(run):
    collection = Collection(run, (DEFAULT, CHAMPION))
    told = {
        DEFAULT.name: {"status": "failed", "text": "ValueError: shape"},
        CHAMPION.name: {"status": "unsupported", "text": "needs a GPU"},
    }

    collection.add(capture(run, told))

    assert ["WORKLOAD_FAILED"] == codes(collection.of[DEFAULT.name])
    assert ["UNSUPPORTED"] == codes(collection.of[CHAMPION.name])


def test_a_child_that_died_has_one_culprit_and_the_rest_can_run_again(run):
    collection = Collection(run, (DEFAULT, CHAMPION, STOCK))
    told = {DEFAULT.name: bits(), CHAMPION.name: {"status": "started", "text": ""}}
    dead = capture(run, told, variants=(DEFAULT, CHAMPION, STOCK), error="the child was killed", done=False)

    collection.add(dead)

    assert (STOCK,) == collection.not_reached(dead)
    assert ["WORKLOAD_FAILED"] == codes(collection.of[CHAMPION.name])
    assert [] == codes(collection.of[DEFAULT.name]) + codes(collection.of[STOCK.name])
    assert (1, 0) == (len(collection.of[DEFAULT.name].bits), len(collection.of[CHAMPION.name].bits))


def test_a_child_that_died_before_its_first_variant_fails_them_all(run):
    collection = Collection(run, (DEFAULT, CHAMPION))
    dead = capture(run, {}, error="the worker failed", done=False)

    collection.add(dead)

    assert () == collection.not_reached(dead)
    assert [["WORKLOAD_FAILED"]] * 2 == [codes(one) for one in collection.of.values()]


@pytest.mark.parametrize("purpose", ["bits", "confirm"])
def test_a_child_that_died_after_its_last_variant_fails_them_all(run, purpose):
    collection = Collection(run, (DEFAULT, CHAMPION))
    told = {one.name: bits(step_wall_ns=[1]) for one in (DEFAULT, CHAMPION)}

    collection.add(capture(run, told, purpose=purpose, error="the child died of signal 11"))

    assert [["WORKLOAD_FAILED"]] * 2 == [codes(one) for one in collection.of.values()]


@pytest.mark.parametrize("purpose", ["bits", "confirm", "time"])
def test_a_variant_that_a_child_says_nothing_of_has_vanished(run, purpose):
    collection = Collection(run, (DEFAULT, CHAMPION))

    collection.add(capture(run, {DEFAULT.name: {"status": "unsupported", "text": "no"}}, purpose=purpose))

    assert [["UNSUPPORTED"], ["VANISHED"]] == [codes(one) for one in collection.of.values()]


def test_a_probe_that_changes_its_mind_is_a_failure_and_hides_nothing(run, registry):
    collection = Collection(run, (DEFAULT, CHAMPION, STOCK))
    collection.add(capture(run, {CHAMPION.name: bits()}, variants=(CHAMPION,)))
    collection.add(capture(run, {CHAMPION.name: {"status": "unsupported", "text": "no memory"}}, variants=(CHAMPION,)))

    assert ["UNSUPPORTED", "WORKLOAD_FAILED"] == codes(collection.of[CHAMPION.name])
    assert compared(registry, collection.of)["triton.b"].judged


def test_gpu_time_that_is_unknown_in_one_instance_is_a_failure_of_the_capture(run, monkeypatch):
    collection = Collection(run, (DEFAULT,))
    measured = arms.measured([[("k", "1x1x1", 0, 100)]] * 3, name=DEFAULT.name)
    measured.instances.loc[1, "busy_ns"] = -1
    whole = Measurement(measured.instances, measured.ops, (), (), ())
    monkeypatch.setattr("perfgate.evidence.read", lambda path: None)
    monkeypatch.setattr("perfgate.evidence.measure", lambda trace, detail: whole)

    told = {DEFAULT.name: {"status": "ok", "text": ""}}
    seen = capture(run, told, purpose="time", variants=(DEFAULT,))
    collection.add(replace(seen, spec=replace(seen.spec, device="cuda:0")))

    assert ["PROFILER_FAILED"] == codes(collection.of[DEFAULT.name])


def test_an_error_to_float64_that_was_not_taken_is_told(run):
    collection = Collection(run, (CHAMPION,))

    collection.add(capture(run, {CHAMPION.name: bits(error=None, error_note="no @op.reference")}, variants=(CHAMPION,)))

    assert ["ACCURACY_NOT_MEASURED"] == [one.code for one in collection.findings]


def test_a_profiler_that_failed_after_the_worker_was_done(run):
    collection = Collection(run, (DEFAULT, CHAMPION))

    collection.add(capture(run, {DEFAULT.name: bits()}, purpose="time", error="exit 0 but no report", blame="profiler"))

    assert [["PROFILER_FAILED"]] * 2 == [codes(one) for one in collection.of.values()]


def test_a_trace_that_is_not_there_is_a_profiler_failure_not_a_traceback(run):
    collection = Collection(run, (DEFAULT,))

    collection.add(capture(run, {DEFAULT.name: {"status": "ok", "text": ""}}, purpose="time", variants=(DEFAULT,)))

    assert ["PROFILER_FAILED"] == codes(collection.of[DEFAULT.name])


@pytest.fixture
def registry():
    op = sound_op()
    op.stock_deterministic("torch.a_det", workspace=lambda case: case.rows * 8)(lambda x: x)
    return Registry([op])


def compared(registry, evidence):
    variants = (DEFAULT, CHAMPION, STOCK)
    return {one.implementation: one for one in assemble(variants, evidence, registry, {"family/op:smoke:fwd": "busy"})}


def test_the_champion_is_judged_where_it_runs(registry):
    found = compared(registry, {one.name: Evidence() for one in (DEFAULT, CHAMPION, STOCK)})

    assert {"triton.b": True, "torch.a_det": False} == {name: one.judged for name, one in found.items()}


def test_the_stock_path_is_judged_where_the_champion_is_unsupported(registry):
    evidence = {one.name: Evidence() for one in (DEFAULT, CHAMPION, STOCK)}
    evidence[CHAMPION.name].add_problem(Reason("UNSUPPORTED", "needs a GPU"))

    found = compared(registry, evidence)

    assert {"triton.b": False, "torch.a_det": True} == {name: one.judged for name, one in found.items()}


def test_bits_of_two_processes_that_disagree_count_as_differing(registry):
    evidence = {one.name: Evidence() for one in (DEFAULT, CHAMPION, STOCK)}
    evidence[DEFAULT.name].bits.append(bits(differing=2))
    evidence[CHAMPION.name].bits += [bits("first"), bits("second")]

    found = compared(registry, evidence)["triton.b"].bits

    assert (7, 1, 2, 2, 3) == (found.replays, found.differing, found.processes, found.default_differing, found.default_replays)
    assert "a fresh process gave" in found.first_difference


def test_memory_and_accuracy_come_from_the_process_that_measured_them(registry):
    evidence = {one.name: Evidence() for one in (DEFAULT, CHAMPION, STOCK)}
    evidence[DEFAULT.name].bits.append(bits(peak_bytes=100, error=0.5))
    evidence[STOCK.name].bits += [bits(peak_bytes=120, output_bytes=40, error=0.25), bits(peak_bytes=121)]

    found = compared(registry, evidence)["torch.a_det"]

    assert (100, 120, 16, 40) == (
        found.memory.default_bytes, found.memory.deterministic_bytes, found.memory.declared_bytes, found.memory.output_bytes,
    )  # fmt: skip
    assert (0.5, 0.25) == (found.accuracy.default, found.accuracy.deterministic)


def test_the_least_work_comes_from_the_ops_own_formulas():
    op = sound_op(bytes_moved=lambda case, phase: 4 * case.rows, flops=lambda case, phase: 7)
    evidence = {one.name: Evidence() for one in (DEFAULT, CHAMPION)}
    (found,) = assemble((DEFAULT, CHAMPION), evidence, Registry([op]), {"family/op:smoke:fwd": "busy"})

    assert Work(bytes=8, flops=7) == found.work


def test_peak_bandwidth_of_an_h200():
    environment = {"gpu": {"memory_max_mhz": 3201, "memory_bus_bits": 6144}}

    assert 4.917e12 == pytest.approx(peak_bandwidth(environment), rel=1e-3)
    assert peak_bandwidth({"gpu": None}) is None


def test_an_arm_that_differs_from_itself_is_told_once_however_many_are_held_against_it():
    restless = arms.arm("old", [150, 155, 150.1, 155, 150, 155.1])
    both = [arms.comparison(restless, arms.noisy("new", 150)), arms.comparison(restless, arms.noisy("other", 151))]

    (found,) = findings(both, None)

    assert "AA_DIFFERS" == found.code
    assert found.text.startswith("moe/combine:typical:fwd: old against itself")


@pytest.mark.parametrize(("differing", "expected"), [(0, ["UNPROVEN_SENSITIVITY"]), (2, [])])
def test_equal_bits_say_little_where_no_control_differed(registry, differing, expected):
    evidence = {one.name: Evidence() for one in (DEFAULT, CHAMPION, STOCK)}
    evidence[DEFAULT.name].bits.append(bits(differing=differing))
    evidence[CHAMPION.name].bits.append(bits())
    racy = [replace(one, racy=True) for one in compared(registry, evidence).values()]

    assert expected == [reason.code for reason in unproven(racy)]
    assert [] == list(unproven([replace(one, racy=False) for one in racy]))


def test_an_arms_figures_are_worked_out_again_only_when_a_capture_came_or_went(monkeypatch):
    worked = []
    monkeypatch.setattr("perfgate.evidence.arm", lambda implementation, parts, **_: worked.append(len(parts)) or len(parts))
    evidence = Evidence()
    one, other = (arms.arm("old", [150, 151]).samples[n] for n in (0, 1))

    assert evidence.figures(CHAMPION) is None
    evidence.parts.append((None, one))
    assert [1, 1] == [evidence.figures(CHAMPION), evidence.figures(CHAMPION)]
    evidence.parts.append((None, other))
    assert 2 == evidence.figures(CHAMPION)
    evidence.parts = evidence.parts[1:]
    assert 1 == evidence.figures(CHAMPION)
    assert [1, 2, 1] == worked
